"""Micro-batches of which nobody knows what each row cost, between others: their rows and their loss are recorded."""

import pytest

import trimtab
from trimtab import GuardConfig

ODD = 8


def doubling(collate):
    """Makes two sequences of each row of one batch: which is whose, nobody can tell from outside."""

    def collated(items):
        is_odd = any(item["input_ids"][0] == 1 + ODD for item in items)
        return collate([*items, *items] if is_odd else items)

    return collated


def train(bench, *, attach, **faults):
    setting = dict(args=dict(gradient_accumulation_steps=2, num_train_epochs=2, learning_rate=1e-3))
    trainer = bench.trainer(setting, faults=faults)
    trainer.data_collator = doubling(trainer.data_collator)
    run = trimtab.attach(trainer, **attach) if attach is not None else None
    trainer.train()
    return trainer, run


def odd_records(run):
    """(step, tokens) of the records of the row in question."""
    table = trimtab.open_log(run.folder).rows().numpy()
    at = table["row"] == ODD
    return list(zip(table["step"][at].tolist(), table["num_tokens"][at].tolist(), strict=True))


def test_the_step_has_the_whole_loss_and_all_tokens_and_the_rows_are_there_without_shares(bench):
    # given
    plain, _ = train(bench, attach=None)
    # when
    trainer, run = train(bench, attach={})
    # then
    reported = [entry["loss"] for entry in plain.state.log_history if "loss" in entry]
    assert [entry["loss"] for entry in trainer.state.log_history if "loss" in entry] == reported
    steps = trimtab.open_log(run.folder).steps().numpy()
    assert steps["loss"].tolist() == pytest.approx(reported, rel=1e-5)
    found = odd_records(run)
    assert len(found) == 2
    assert {tokens for _, tokens in found} == {0}
    # and it is said of which steps
    [notice] = [n for n in trimtab.rewind(run.folder).notices if "rows whose losses were not recorded" in n]
    assert notice.startswith(f"2 steps, the first of them {found[0][0]}, have")
    assert "one sequence a row" in notice


def test_a_spike_in_such_a_micro_batch_is_found(bench):
    _, run = train(bench, attach={}, costly=[ODD])
    findings = trimtab.rewind(run.folder, rule="median")
    assert [spike.step for spike in findings.spikes if spike.severity == "warning"] == [odd_records(run)[1][0]]


def test_calibrate_counts_what_it_could_not_judge(bench):
    _, run = train(bench, attach={})
    assert any("the losses of 2 micro-batches were not recorded" in n for n in trimtab.calibrate(run.folder).notices)


def test_a_guard_that_skips_such_a_micro_batch_names_no_row(bench, said):
    train(bench, attach=dict(guard=GuardConfig(multiplier=3.0)), costly=[ODD])
    lines = [line for line in said() if "Guard skipped" in line]
    assert lines
    assert not [line for line in lines if "leads it" in line]
