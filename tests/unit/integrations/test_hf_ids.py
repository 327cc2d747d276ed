"""What the log says of a row beside its number: the user's own id, the row of the table, the digest of its content."""

import pytest
import torch
from transformers import Trainer

import trimtab
from trimtab.guard import GuardConfig
from trimtab.spelling import row_digest

SETTINGS = {
    "one process": dict(),
    "workers": dict(dataloader_num_workers=2, num_train_epochs=2),
    "every column": dict(remove_unused_columns=False),
    "dispatched": dict(accelerator_config=dict(dispatch_batches=True)),
    "by length": dict(train_sampling_strategy="group_by_length"),
}


def named(rows, *, name="doc-{}"):
    return [dict(row, row_id=name.format(i)) for i, row in enumerate(rows)]


def ids_of(trained):
    """row -> (row of the table, digest, name), None where the log knows nothing."""
    row, table_row, digest, has_digest, name = (column.tolist() for column in trained.log.id_columns())
    entries = zip(row, table_row, digest, has_digest, name, strict=True)
    return {r: (t if t >= 0 else None, d if known else None, n) for r, t, d, known, n in entries}


def same_weights(one, other):
    return all(torch.equal(value, other.weights[name]) for name, value in one.weights.items())


def hf(rows):
    import datasets

    return datasets.Dataset.from_list(rows)


@pytest.mark.parametrize("args", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("data", ["list", "map", "hf"])
def test_the_users_own_id_of_a_row_is_in_the_log_and_the_training_is_what_it_was(bench, data, args):
    # given
    rows = named(bench.rows())
    setting, dataset = (dict(args=args), hf(rows)) if data == "hf" else (dict(data=data, args=args), None)
    plain = bench.train(setting, rows=rows, dataset=dataset)
    # when
    trained = bench.train(setting, rows=rows, dataset=dataset, attach={})
    # then
    assert ids_of(trained) == {i: (None, None, f"doc-{i}") for i in range(13)}
    assert same_weights(trained, plain)
    assert trained.logged == plain.logged


@pytest.mark.parametrize("collator", ["pad", "flatten"])
def test_of_a_selection_the_row_of_the_table_is_in_the_log(bench, collator):
    # given a table of 26 rows in which those of the bench stand at odd places, backwards
    rows = bench.rows()
    table = hf([row for row in reversed(rows) for row in (rows[0], row)])
    dataset = table.select([25 - 2 * i for i in range(13)])
    assert dataset[4]["input_ids"] == rows[4]["input_ids"]
    # when
    trained = bench.train(dict(collator=collator), attach={}, dataset=dataset)
    # then
    assert ids_of(trained) == {i: (25 - 2 * i, None, None) for i in range(13)}
    seen = {step: [sorted(micro) for micro in micros] for step, micros in trained.probe.rows.items()}
    assert {s: [sorted(micro) for micro in micros] for s, micros in trained.recorded_rows().items()} == seen


def test_a_row_that_nobody_drew_is_not_in_the_log(bench):
    # given a selection that is trained on for two steps only
    rows = named(bench.rows())
    dataset = hf(rows).shuffle(seed=1)
    trained = bench.train(dict(args=dict(max_steps=2)), attach={}, dataset=dataset)
    # then
    drawn = {row for micros in trained.recorded_rows().values() for micro in micros for row in micro}
    table = {row: dataset._indices.column(0)[row].as_py() for row in drawn}
    assert ids_of(trained) == {row: (table[row], None, f"doc-{table[row]}") for row in drawn}


def test_integers_in_the_column_of_a_dataset_are_ids_too_and_the_column_may_have_any_name(bench):
    rows = [dict(row, number=70 + i) for i, row in enumerate(bench.rows())]
    trained = bench.train(attach=dict(row_id="number"), rows=rows)
    assert ids_of(trained) == {i: (None, None, str(70 + i)) for i in range(13)}


def test_without_any_id_there_is_none_in_the_log(bench):
    trained = bench.train(attach={})
    assert ids_of(trained) == {}


def test_a_second_training_tells_its_rows_again(bench):
    trainer = bench.trainer(rows=named(bench.rows()))
    run = trimtab.attach(trainer)
    trainer.train()
    trainer.train()
    assert trimtab.open_log(run.folder).id_columns().num_records == 13


def test_no_id_is_told_of_rows_that_a_trainer_takes_from_elsewhere(bench):
    # given trainers that build their loader over a part of their dataset, or have none
    rows = bench.rows()

    class Own(Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(rows[5:], batch_size=2, collate_fn=self.data_collator)

    for dataset in (hf(named(rows)), None):
        trainer = bench.trainer(dataset=rows, cls=Own)
        trainer.train_dataset = dataset
        run = trimtab.attach(trainer)
        trainer.train()
        # then
        log = trimtab.open_log(run.folder)
        assert log.id_columns().num_records == 0
        assert set(log.rows().numpy()["row"].tolist()) == set(range(8))


# ------------------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("data", ["stream", "sized_stream", "hf_stream"])
def test_a_row_of_a_stream_is_known_by_its_content_and_the_training_is_what_it_was(bench, data, num_workers):
    # given
    args = dict(max_steps=7, dataloader_num_workers=num_workers)
    rows = named(bench.rows())
    if data == "hf_stream":
        contents = [{"input_ids": r["input_ids"], "labels": r["labels"], "text": "not needed"} for r in rows]
    else:
        contents = rows
    plain = bench.train(dict(data=data, args=args), rows=rows)
    # when
    trained = bench.train(dict(data=data, args=args), rows=rows, attach={})
    # then
    digests = {row_digest(content): i for i, content in enumerate(contents)}
    found = {row: (digests[digest], name) for row, (_, digest, name) in ids_of(trained).items()}
    for step, micros in trained.probe.rows.items():
        assert [found[row][0] for row in trained.recorded_rows()[step][0]] == micros[0]
    assert all(name == (None if data == "hf_stream" else f"doc-{i}") for i, name in found.values())
    assert same_weights(trained, plain)
    assert trained.logged == plain.logged


def test_a_stream_in_another_order_each_time_has_digests_of_what_stayed_in_its_place(bench):
    # given a stream that is turned around from its second pass on, and has its middle in its place
    class Turning(torch.utils.data.IterableDataset):
        def __init__(self, rows):
            self.rows = rows

        def __iter__(self):
            yield from self.rows
            self.rows = self.rows[::-1]

    rows = bench.rows()
    # when
    trained = bench.train(dict(args=dict(max_steps=14)), attach={}, dataset=Turning(rows))
    # then
    digests = {row: digest for row, (_, digest, _) in ids_of(trained).items()}
    assert digests == {i: row_digest(rows[6]) if i == 6 else 0 for i in range(13)}


def test_a_skipped_micro_batch_has_its_ids_as_well(bench):
    rows = named(bench.rows(nan=[4]))
    guarded = dict(guard=GuardConfig(rule="robust"))
    trained = bench.train(attach=guarded, rows=rows, faults=dict(nan=[4]))
    assert len(ids_of(trained)) == 13
