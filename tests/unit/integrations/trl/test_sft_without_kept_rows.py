"""An SFTTrainer that was built without `keep_row_ids`: rows where they can still be told, and one line where not."""

import json

import pytest
import torch

import trimtab
from trimtab import UsageError

UNKNOWN = {
    "packed": (dict(args=dict(packing=True)), "its constructor has packed them"),
    "packed stream": (dict(stream=True, args=dict(packing=True, max_steps=3)), "its constructor has packed them"),
    "shuffled, and nothing else": (
        dict(kind="tokens and labels", args=dict(shuffle_dataset=True, max_length=None)),
        "its constructor has shuffled them",
    ),
}

KNOWN = {
    "text": dict(),
    "shuffled": dict(args=dict(shuffle_dataset=True)),
    "dropped": dict(kind="prompt-completion", args=dict(max_length=6)),
    "dropped, shuffled": dict(kind="prompt-completion", args=dict(max_length=6, shuffle_dataset=True)),
    "nothing to cut": dict(kind="tokens and labels", args=dict(max_length=None)),
    "padding-free": dict(args=dict(padding_free=True, max_length=None)),
    "stream": dict(stream=True, args=dict(max_steps=7)),
    "two workers": dict(args=dict(dataloader_num_workers=2)),
}


def still(setting):
    return dict(setting, args=dict(setting.get("args", {}), learning_rate=0.0))


def assert_costs_are_right(trained, *, row_of=lambda document: document):
    expected, found = trained.true_costs(), trained.recorded_costs()
    assert {step: {row_of(d): n for d, (_, n) in documents.items()} for step, documents in expected.items()} == {
        step: {row: n for row, (_, n) in rows.items()} for step, rows in found.items()
    }


@pytest.mark.parametrize("name", KNOWN)
def test_rows_that_were_not_mixed_are_told_by_their_index(sft, said, name):
    trained = sft.train(still(KNOWN[name]), attach={})
    assert_costs_are_right(trained)
    assert not [line for line in said() if "keep_row_ids" in line]
    assert trained.log.header.num_rows == (None if KNOWN[name].get("stream") else 13)


@pytest.mark.parametrize("name", ["text", "dropped", "nothing to cut"])
def test_a_row_of_a_selection_is_its_place_there(sft, name):
    # given documents in another order
    chosen = [12, 0, 9, 3, 6, 1]
    dataset = sft.make_dataset(KNOWN[name].get("kind", "text")).select(chosen)
    # when
    trained = sft.train(still(KNOWN[name]), attach={}, dataset=dataset)
    # then
    assert_costs_are_right(trained, row_of=chosen.index)
    assert trained.log.header.num_rows == len(chosen)


def test_data_that_trl_does_not_prepare_is_the_users_own(sft):
    # given
    chosen = [12, 0, 9, 3, 6, 1]
    dataset = sft.make_dataset("tokens and labels").select(chosen)
    args = dict(dataset_kwargs={"skip_prepare_dataset": True}, shuffle_dataset=True, max_length=None, learning_rate=0.0)
    # when
    trained = sft.train(dict(args=args), attach={}, dataset=dataset)
    # then
    assert_costs_are_right(trained, row_of=chosen.index)
    assert trained.log.header.dataset_fingerprint is not None


@pytest.mark.parametrize("name", UNKNOWN)
def test_rows_that_nothing_is_left_of_are_named_with_the_remedy_and_steps_are_recorded(sft, said, name):
    # given
    setting, why = UNKNOWN[name]
    plain = sft.train(setting)
    # when
    trained = sft.train(setting, attach={})
    # then one line says it, and where training begins it is not said again
    [line] = [line for line in said() if why in line]
    assert "not its rows" in line
    assert "with trimtab.keep_row_ids():" in line
    # and what is known is there
    steps = trained.log.step_columns()
    assert steps.loss.tolist() == pytest.approx([entry["loss"] for entry in plain.logged], rel=1e-6)
    assert steps.num_tokens.min() > 0
    assert trained.recorded_costs() == {}
    assert trained.log.header.row_index == f"no rows: {why}"
    assert trained.log.header.num_rows is None
    assert [event.facts for event in trained.log.event_list() if event.kind == "no_row_losses"] == [{"why": why}]
    # and nothing has changed
    assert trained.logged == plain.logged


def test_a_dataset_that_is_replaced_after_the_constructor_has_no_rows(sft, said):
    # given a trainer whose data is changed by hand, as some training recipes do
    trainer = sft.trainer(dict(args=dict(packing=True)), keep=True)
    trainer.train_dataset = trainer.train_dataset.select(range(3))
    # when
    run = trimtab.attach(trainer)
    trainer.train()
    # then
    assert [line for line in said() if "its train_dataset was replaced after it was built" in line]
    assert trimtab.open_log(run.folder).step_columns().step.tolist() == [1, 2]


REPLACED = {
    "packed": dict(packing=True),
    "one by one": dict(),
    "padding-free": dict(padding_free=True, max_length=None),
}


@pytest.mark.parametrize("args", REPLACED.values(), ids=REPLACED)
@pytest.mark.parametrize("rows", [range(2), [*range(3), *range(3), 1]], ids=["shorter", "longer"])
def test_a_dataset_that_is_replaced_after_attach_has_no_rows_and_trains_as_without_trimtab(sft, said, args, rows):
    # given
    trainers = [sft.trainer(dict(args=args), keep=True) for _ in range(2)]
    run = trimtab.attach(trainers[1])
    # when
    for trainer in trainers:
        trainer.train_dataset = trainer.train_dataset.select(rows)
        trainer.train()
    # then
    weights = trainers[0].model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in trainers[1].model.state_dict().items())
    [line] = [line for line in said() if "its train_dataset was replaced after it was built" in line]
    assert "change the data before you hand it to the constructor" in line
    log = trimtab.open_log(run.folder)
    assert log.step_columns().step.size == (len(rows) + 1) // 2
    assert log.rows().numpy()["row"].size == 0
    assert log.header.row_index.startswith("no rows: its train_dataset was replaced")


def test_leaving_rows_out_afterwards_is_refused_with_what_to_do(sft, tmp_path):
    path = tmp_path / "drop.json"
    path.write_text(json.dumps({"version": 1, "rows": [3]}))
    with pytest.raises(UsageError, match=r"drop.json comes too late for an SFTTrainer.*dataset\.select"):
        trimtab.attach(sft.trainer(keep=True), exclude=path)
