"""Rows are windows of real text: each byte is predicted once, held-out files are never trained on, order is a number's.

What a row should be is read from the files themselves.
"""

import sysconfig
from pathlib import Path

import pytest
import torch

from recipes.strict_yaml import ConfigError
from recipes.twin_moe.config import DataConfig, presets, read_preset
from recipes.twin_moe.data import MicroBatches, Source, Windows, eval_batches, read_sources

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
CONFIG = DataConfig(batch_size=4, num_tokens=64, num_eval_batches=3)


def test_windows_cover_every_byte_but_a_files_first_once_and_leave_out_the_end():
    # given two files, of which the first has room for two windows and the second for none, and a third for one
    windows = Windows([Source("a", bytes(range(11))), Source("b", b"12345"), Source("c", b"abcdef")], num_tokens=5)

    # when
    batch = windows.batch(range(len(windows)))

    # then
    assert batch.input_ids.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], list(b"abcde")]
    assert batch.labels.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], list(b"bcdef")]
    assert [tuple(windows.place(row)) for row in range(3)] == [("a", 0), ("a", 5), ("c", 0)]


def test_a_row_names_the_file_and_offset_where_its_bytes_stand():
    data = MicroBatches(CONFIG, seed=3)
    for number in (0, 1, 1_000, 10**6):
        batch = data[number]
        for inputs, labels, row in zip(batch.input_ids, batch.labels, batch.rows.tolist(), strict=True):
            file, offset = data.windows.place(row)
            with (LIBRARY / file).open("rb") as source:
                source.seek(offset)
                expected = source.read(65)
            assert bytes([*inputs.tolist(), labels[-1].item()]) == expected
            assert inputs[1:].equal(labels[:-1])


def test_a_row_reads_as_its_text_and_place():
    windows = Windows([Source("a/b.py", "x = '\u00e4h'\n".encode() * 3)], num_tokens=10)
    assert windows[1] == {"text": "x = '\u00e4h'\nx", "place": "a/b.py:10"}  # 11 bytes, of which two are one letter


@pytest.mark.parametrize("row", [-1, 2], ids=["before", "behind"])
def test_a_row_that_there_is_not_is_refused(row):
    windows = Windows([Source("a", bytes(11))], num_tokens=5)
    with pytest.raises(IndexError, match=r"There is no row .*: rows are numbered from 0 to 1"):
        windows[row]


def test_no_byte_of_a_held_out_file_is_trained_on():
    training = {source.name for source in read_sources(held_out=False)}
    held_out = {source.name for source in read_sources(held_out=True)}
    assert not training & held_out
    assert 0.02 < len(held_out) / len(training | held_out) < 0.1
    assert {"argparse.py", "asyncio/locks.py"} <= training | held_out


def test_evaluations_look_at_the_same_rows_of_many_held_out_files():
    batches = eval_batches(CONFIG)
    windows = Windows(read_sources(held_out=True), num_tokens=CONFIG.num_tokens)
    rows = [row for batch in batches for row in batch.rows.tolist()]
    assert len(set(rows)) == 12
    assert len({windows.place(row).file for row in rows}) >= 4
    assert all(a.input_ids.equal(b.input_ids) for a, b in zip(batches, eval_batches(CONFIG), strict=True))


@pytest.mark.parametrize("preset", presets())
def test_no_window_that_is_evaluated_stands_in_a_file_that_is_trained_on(preset):
    # given: the standard library repeats itself, so that a held-out file may share a window with another one
    config = read_preset(preset).data
    batches = eval_batches(config)
    windows = [
        bytes([*inputs, labels[-1]])
        for batch in batches
        for inputs, labels in zip(batch.input_ids.tolist(), batch.labels.tolist(), strict=True)
    ]
    training = b"\0".join(source.text for source in read_sources(held_out=False))
    # then
    assert len(windows) == config.num_eval_batches * config.batch_size
    assert [window for window in windows if window in training] == []


def test_a_held_out_window_that_is_trained_on_gives_its_place_to_the_next_one(monkeypatch):
    # given: 6 held-out windows, of which the first and the last stand in the text that is trained on, between others
    held_out = [bytes([65 + number]) * 4 for number in range(6)]
    texts = {True: b"".join(held_out) + b"!", False: b"...AAAAB...FFFF!..."}
    monkeypatch.setattr(
        "recipes.twin_moe.data.read_sources", lambda *, held_out: (Source(f"{held_out}", texts[held_out]),)
    )
    # then: of each third of the windows the first that is new
    config = DataConfig(batch_size=3, num_tokens=4, num_eval_batches=1)
    [batch] = eval_batches(config)
    assert batch.rows.tolist() == [1, 2, 4]
    # and: where a part of them has none, that is said
    with pytest.raises(ConfigError, match=r"data.num_eval_batches: found 6, .* rows 0 to 0 .* give fewer"):
        eval_batches(DataConfig(batch_size=1, num_tokens=4, num_eval_batches=6))


def test_neither_tests_nor_what_differs_between_machines_is_text():
    names = [source.name for held_out in (True, False) for source in read_sources(held_out=held_out)]
    parts = {part for name in names for part in name.split("/")}
    assert not parts & {"test", "tests", "site-packages", "dist-packages", "__pycache__"}
    assert not [part for part in parts if part.startswith("_sysconfigdata")]
    assert all(name.endswith(".py") for name in names)


def test_an_epoch_has_every_row_once_and_the_next_one_has_another_order(monkeypatch):
    # given a library of 21 rows
    sources = (Source("a", bytes(128) + bytes(range(200)) * 6 + bytes(17)),)
    monkeypatch.setattr("recipes.twin_moe.data.read_sources", lambda *, held_out: sources)
    data = MicroBatches(CONFIG, seed=0)
    assert len(data.windows) == 21

    # when: five micro-batches of 4 are an epoch, and a row is left over
    epochs = [[row for number in range(5) for row in data[5 * epoch + number].rows.tolist()] for epoch in range(3)]

    # then
    assert all(len(set(rows)) == 20 for rows in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_micro_batch_is_decided_by_its_number_and_the_seed_alone():
    first, again, other = MicroBatches(CONFIG, seed=1), MicroBatches(CONFIG, seed=1), MicroBatches(CONFIG, seed=2)
    first[0], first[7]
    assert again[8].rows.equal(first[8].rows)
    assert not other[8].rows.equal(first[8].rows)
    assert first[8].input_ids.dtype == first[8].labels.dtype == first[8].rows.dtype == torch.int64
    assert first[8].input_ids.shape == (4, 64)


def test_more_than_there_is_is_refused_with_what_there_is(monkeypatch):
    sources = (Source("a", bytes(200)),)
    monkeypatch.setattr("recipes.twin_moe.data.read_sources", lambda *, held_out: sources)
    with pytest.raises(ConfigError, match=r"data.batch_size: found 4, expected at most the 3 rows"):
        MicroBatches(CONFIG, seed=0)
    with pytest.raises(ConfigError, match=r"data.num_eval_batches: found 4, expected at most 3"):
        eval_batches(DataConfig(batch_size=1, num_tokens=64, num_eval_batches=4))
    with pytest.raises(ConfigError, match=r"data.num_tokens: no file has 201 bytes"):
        eval_batches(DataConfig(batch_size=1, num_tokens=200, num_eval_batches=4))
