"""Rows left out of a training: it is the training on a dataset that never had them, and the numbers stay."""

import json

import pytest
import torch
from click.testing import CliRunner
from transformers import Trainer

import trimtab
from trimtab import UsageError
from trimtab.cli import main
from trimtab.dataset import describe
from trimtab.guard import GuardConfig
from trimtab.spelling import row_digest

GONE = (4, 0, 11)
KEPT = [row for row in range(13) if row not in GONE]


@pytest.fixture
def write(tmp_path):
    """Writes the drop list of a dataset, and gives its path."""

    def write(rows, *, dataset, digests=None, **changes):
        facts = describe(dataset)
        document = dict(version=1, dataset_fingerprint=facts.fingerprint, num_rows=facts.num_rows, rows=list(rows))
        (tmp_path / "drop.json").write_text(json.dumps(document | dict(digests=digests) | changes))
        return tmp_path / "drop.json"

    return write


@pytest.fixture
def drop_list_of(tmp_path, monkeypatch):
    """What `rewind --drop-list` writes for a run: the path, and the document."""

    def run(trained):
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(main, ["rewind", str(trained.run.folder), "--drop-list", "drop.json"])
        assert result.exit_code == 0, result.output
        return tmp_path / "drop.json", json.loads((tmp_path / "drop.json").read_text())

    return run


def same_weights(one, other):
    return all(torch.equal(value, other.weights[name]) for name, value in one.weights.items())


def spelled(item):
    return f"{row_digest(item) & 2**64 - 1:016x}"


def hf(rows):
    import datasets

    return datasets.Dataset.from_list([dict(row, text="not needed") for row in rows])


MAPPED = {"list": list, "map": None, "hf": hf, "hf_selection": lambda rows: hf(rows).select(range(13)[::-1])}
SETTINGS = {
    "one process": dict(),
    "workers": dict(dataloader_num_workers=2, num_train_epochs=2),
    "accumulated": dict(gradient_accumulation_steps=3, num_train_epochs=2),
    "by length": dict(train_sampling_strategy="group_by_length"),
    "dispatched": dict(accelerator_config=dict(dispatch_batches=True), dataloader_drop_last=True),
}


def dataset_of(bench, data, rows):
    if data == "map":
        return bench.trainer(dict(data="map"), rows=rows).train_dataset
    return MAPPED[data](rows)


def without(dataset, data):
    """An oracle: the dataset without the rows, by the means of its own kind."""
    if data.startswith("hf"):
        return dataset.filter(lambda _, index: index not in GONE, with_indices=True)
    kept = [dataset[row] for row in KEPT]
    return kept if data == "list" else type(dataset)(kept)


@pytest.mark.parametrize("args", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("data", MAPPED)
def test_the_training_is_that_on_a_dataset_without_the_rows_and_their_numbers_stay(bench, write, data, args):
    # given
    dataset = dataset_of(bench, data, bench.rows())
    oracle = bench.train(dict(args=args), dataset=without(dataset, data))
    # when
    trained = bench.train(dict(args=args), dataset=dataset, attach=dict(exclude=write(GONE, dataset=dataset)))
    # then
    assert same_weights(trained, oracle)
    assert trained.logged == oracle.logged
    assert trained.trainer.train_dataset is dataset
    # and by their first tokens the numbers are indices into the whole
    row_of = {dataset[row]["input_ids"][0] - 1: row for row in range(13)}
    assert trained.recorded_rows() == {
        step: [[row_of[token] for token in micro] for micro in micros] for step, micros in trained.probe.rows.items()
    }
    drawn = {row for _, _, row, *_ in trained.records()}
    assert drawn == set(KEPT) or ("dataloader_drop_last" in args and drawn < set(KEPT))


@pytest.mark.parametrize("data", ["list", "hf", "stream", "hf_stream"])
def test_from_the_drop_list_of_a_run_to_a_run_without_its_rows(bench, drop_list_of, data):
    # given a run with a row that is not finite, which a guard keeps out of the update
    args = dict(per_device_train_batch_size=4, max_steps=3, dataloader_num_workers=1)
    setting, guard = dict(data=data, args=args), GuardConfig(rule="robust")
    faults = dict(nan=[6])
    dataset = bench.trainer(setting, faults=faults).train_dataset
    first = bench.train(setting, attach=dict(guard=guard), dataset=dataset, faults=faults)
    path, document = drop_list_of(first)
    assert (document["rows"], document["num_rows"]) == ([6], None if "stream" in data else 13)
    assert [digest is None for digest in document["digests"]] == ["stream" not in data]
    # when
    second = bench.train(setting, attach=dict(exclude=path), dataset=dataset, faults=faults)
    # then
    assert not trimtab.rewind(second.run.folder).spikes
    rows = {row for _, _, row, *_ in second.records()}
    assert len(rows) == 12
    assert rows == set(range(13)) - {6}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("data", ["stream", "sized_stream", "hf_stream"])
def test_a_stream_passes_over_its_rows_as_if_it_never_had_them(bench, write, said, data, num_workers):
    # given rows of which a whole batch goes
    gone = (2, 3, 8)
    args = dict(max_steps=5, dataloader_num_workers=num_workers)
    rows = bench.rows()
    make = bench.trainer(dict(data=data, args=args), rows=rows).train_dataset
    contents = list(make)
    path = write(gone, dataset=make, digests=[spelled(contents[row]) for row in gone])
    oracle = bench.train(dict(data=data, args=args), rows=[row for i, row in enumerate(rows) if i not in gone])
    # when
    trained = bench.train(dict(data=data, args=args), dataset=make, attach=dict(exclude=path))
    # then
    assert same_weights(trained, oracle)
    seen = {row for micros in trained.probe.rows.values() for micro in micros for row in micro}
    assert not seen & set(gone)
    if num_workers == 0:  # two workers read the whole of a stream each
        assert [row for _, _, row, *_ in trained.records()] == [r for r in range(13) if r not in gone][:10]
    [met] = [line for line in said() if "passed over them" in line]
    assert met == f"Trimtab met 3 of the 3 rows of {path} and passed over them."


def test_rows_that_a_stream_never_yields_are_said(bench, write, said):
    stream = bench.trainer(dict(data="stream", args=dict(max_steps=1))).train_dataset
    first = next(iter(stream))
    path = write([0, 1], dataset=stream, digests=[spelled(first), spelled({"x": 1})])
    bench.train(dict(args=dict(max_steps=3)), dataset=stream, attach=dict(exclude=path))
    assert any("Trimtab met 1 of the 2 rows" in line and "The others were not" in line for line in said())


def test_a_streams_own_numbers_name_its_rows(bench, write):
    setting = dict(data="numbered_stream", args=dict(max_steps=5))
    stream = bench.trainer(setting).train_dataset
    trained = bench.train(setting, dataset=stream, attach=dict(exclude=write([12, 0], dataset=stream)))
    assert [row for _, _, row, *_ in trained.records()] == list(range(11, 1, -1))


def test_a_training_that_is_resumed_goes_on_without_the_rows(bench, write, tmp_path):
    # given
    dataset = bench.rows()
    args = dict(num_train_epochs=2, save_strategy="steps", save_steps=3, output_dir=str(tmp_path / "out"))
    exclude = write(GONE, dataset=dataset)
    whole = bench.train(dict(args=args), dataset=dataset, attach=dict(exclude=exclude, out=tmp_path / "whole"))
    # when
    trainer = bench.trainer(dict(args=args), dataset=dataset)
    run = trimtab.attach(trainer, exclude=exclude)
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-6"))
    # then
    weights = trainer.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in whole.weights.items())
    table = trimtab.open_log(run.folder).rows().numpy()
    again = list(zip(table["step"].tolist(), table["row"].tolist(), strict=True))
    assert again == [(step, row) for step, _, row, *_ in whole.records() if step > 6]


def test_evaluations_see_every_row(bench, write):
    # given
    rows = bench.rows()
    seen = []

    class Watched(Trainer):
        def prediction_step(self, model, inputs, *args, **kwargs):
            seen.extend((inputs["input_ids"][:, 0] - 1).tolist())
            return super().prediction_step(model, inputs, *args, **kwargs)

    args = dict(eval_strategy="epoch")
    # when
    bench.train(
        dict(args=args), dataset=rows, cls=Watched, eval_dataset=rows, attach=dict(exclude=write(GONE, dataset=rows))
    )
    # then
    assert sorted(seen) == list(range(13))


def test_a_loader_that_the_user_asks_for_is_over_the_whole_dataset(bench, write):
    rows = bench.rows()
    trainer = bench.trainer(dataset=rows)
    trimtab.attach(trainer, exclude=write(GONE, dataset=rows))
    assert len(trainer.get_train_dataloader()) == 7


def test_it_works_without_recording_and_without_a_guard(bench, write):
    rows = bench.rows()
    oracle = bench.train(dataset=[rows[row] for row in KEPT])
    trained = bench.train(dataset=rows, attach=dict(exclude=write(GONE, dataset=rows), record=False))
    assert same_weights(trained, oracle)
    assert trained.run.folder is None


def test_what_is_left_out_is_said_and_in_the_log(bench, write, said):
    rows = bench.rows()
    path = write(GONE, dataset=rows)
    trained = bench.train(dataset=rows, attach=dict(exclude=path))
    assert f"Trimtab leaves 3 of 13 rows out of training, those of {path}." in said()
    [event] = [event for event in trained.log.event_list() if event.kind == "excluded"]
    assert (event.step, event.facts) == (0, {"file": str(path), "num_rows": 3})
    assert (trained.log.header.num_rows, trained.log.header.dataset_fingerprint) == (13, describe(rows).fingerprint)


# ------------------------------------------------------------------------------------------------------------ refusals


def test_rows_of_another_dataset_are_refused_and_the_trainer_can_still_be_attached(bench, write):
    # given
    rows = bench.rows()
    trainer = bench.trainer(dataset=rows)
    with pytest.raises(UsageError) as caught:
        trimtab.attach(trainer, exclude=write([1], dataset=rows[::-1]))
    # then
    assert describe(rows).fingerprint in str(caught.value)
    assert describe(rows[::-1]).fingerprint in str(caught.value)
    trimtab.attach(trainer, exclude=write([1], dataset=rows))


def test_a_dataset_put_in_after_attach_is_refused_when_the_training_begins(bench, write):
    rows = bench.rows()
    trainer = bench.trainer(dataset=rows)
    trimtab.attach(trainer, exclude=write([1], dataset=rows))
    trainer.train_dataset = rows[::-1]
    with pytest.raises(UsageError, match="replaced after attach"):
        trainer.train()


def test_a_trainer_that_builds_its_loader_over_other_data_is_refused(bench, write):
    rows = bench.rows()

    class Own(Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(rows, batch_size=2, collate_fn=self.data_collator)

    trainer = bench.trainer(dataset=rows, cls=Own)
    trimtab.attach(trainer, exclude=write([1], dataset=rows))
    with pytest.raises(UsageError, match="13 rows of its own choice"):
        trainer.train()
    assert trainer.train_dataset is rows


def test_switched_off_leaves_nothing_out_and_says_so(bench, write, said, monkeypatch):
    monkeypatch.setenv("TRIMTAB", "off")
    rows = bench.rows()
    trained = bench.train(dataset=rows, attach=dict(exclude=write([1], dataset=rows)))
    assert len(trained.probe.rows) == 7
    assert any("exclude= leaves nothing out" in line for line in said())
