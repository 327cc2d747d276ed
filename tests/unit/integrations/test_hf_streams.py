"""Which numbers the rows of iterable datasets get, in one process and in workers."""

import pytest
import torch

SHIFT = 40


class Stream(torch.utils.data.IterableDataset):
    """Every worker reads its own part, or, unsharded, all of it."""

    def __init__(self, rows, *, sharded):
        self.rows = rows
        self.sharded = sharded

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        part = slice(worker.id, None, worker.num_workers) if self.sharded else slice(None)
        yield from self.rows[part]


@pytest.mark.parametrize("sharded", [True, False])
def test_without_ids_a_row_is_the_worker_and_its_position(bench, sharded):
    # given a stream that two workers read, and what each of them yields first, second, ...
    args = dict(max_steps=6, dataloader_num_workers=2)
    rows = bench.rows()
    parts = [rows[0::2], rows[1::2]] if sharded else [rows, rows]
    numbers = {
        (worker << SHIFT | position): row["input_ids"][0] - 1
        for worker, part in enumerate(parts)
        for position, row in enumerate(part)
    }
    # when
    trained = bench.train(dict(args=args), attach={}, dataset=Stream(rows, sharded=sharded))
    # then
    recorded = trained.recorded_rows()
    assert {row >> SHIFT for micros in recorded.values() for row in micros[0]} == {0, 1}
    for step, micros in trained.probe.rows.items():
        assert [numbers[row] for row in recorded[step][0]] == micros[0]


@pytest.mark.parametrize(
    ("number", "taken"),
    [
        (lambda row: 500 + row, True),
        (lambda row: torch.tensor(500 + row), True),
        (lambda row: torch.tensor(500 + row).numpy()[()], True),
        (lambda row: str(500 + row), False),
        (lambda row: 500.0 + row, False),
        (lambda row: row % 2 == 0, False),
        (lambda row: 2**63 + row, False),
        (lambda row: None, False),
    ],
    ids=["int", "tensor", "numpy", "text", "float", "bool", "too large", "none"],
)
def test_a_column_of_integers_gives_the_numbers_and_any_other_does_not(bench, number, taken):
    # given
    rows = [dict(row, row_id=number(i)) for i, row in enumerate(bench.rows())]
    # when
    trained = bench.train(dict(data="stream", args=dict(max_steps=7)), attach={}, rows=rows)
    # then
    offset = 500 if taken else 0
    assert sorted(row for _, _, row, *_ in trained.records()) == [offset + row for row in range(13)]


def test_the_column_may_have_any_name(bench):
    rows = [dict(row, number=70 + i) for i, row in enumerate(bench.rows())]
    trained = bench.train(dict(data="stream", args=dict(max_steps=3)), attach=dict(row_id="number"), rows=rows)
    assert trained.recorded_rows()[1] == [[70, 71]]


def test_a_map_style_dataset_counts_by_index_whatever_its_columns_say(bench):
    rows = [dict(row, row_id=500 + i) for i, row in enumerate(bench.rows())]
    trained = bench.train(dict(data="map"), attach={}, rows=rows)
    assert sorted(row for _, _, row, *_ in trained.records()) == list(range(13))


def test_a_stream_that_is_read_twice_gives_the_same_numbers_again(bench):
    trained = bench.train(dict(data="stream", args=dict(max_steps=14)), attach={})
    recorded = trained.recorded_rows()
    assert [recorded[step] for step in range(1, 8)] == [recorded[step] for step in range(8, 15)]


def test_what_is_left_of_a_pass_counts_in_the_window_that_follows_it(bench):
    # given seven micro-batches a pass and windows of two: transformers lets the seventh wait for the next pass
    setting = dict(data="stream", args=dict(max_steps=7, gradient_accumulation_steps=2))
    plain = bench.train(setting)
    # when
    trained = bench.train(setting, attach={})
    # then
    assert trained.recorded_rows() == plain.probe.rows
    assert max(len(micros) for micros in plain.probe.rows.values()) == 3
    assert trained.log.step_columns().loss.tolist() == pytest.approx([entry["loss"] for entry in plain.logged])
