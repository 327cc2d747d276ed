"""The same rows are known again in whatever container they come back, and other rows are not taken for them."""

import hashlib
import json
import struct
import time

import numpy as np
import pytest

from trimtab.dataset import describe
from trimtab.dataset.fingerprint import NUM_SPREAD_ROWS, has_fingerprint
from trimtab.dataset.opening import open_data, open_recorded
from trimtab.values import RunHeader

datasets = pytest.importorskip("datasets")


def rows_of(num_rows):
    return [
        {"id": index, "text": f"row {index}", "input_ids": [index, 2, 3], "score": [0.5, float(index)], "note": None}
        for index in range(num_rows)
    ]


def is_of(data, fingerprint):
    return any(has_fingerprint(one, fingerprint) for one in open_data(data))


def header_of(dataset):
    facts = describe(dataset)
    paths, index_paths, columns = facts.files
    return RunHeader(
        run_id="r",
        backend="test",
        num_rows=facts.num_rows,
        dataset_fingerprint=facts.fingerprint,
        dataset_files=paths,
        dataset_index_files=index_paths,
        dataset_columns=columns,
    )


@pytest.fixture
def json_file(tmp_path):
    """2,500 rows as JSON lines."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(2_500)))
    return path


@pytest.fixture
def loaded(json_file, tmp_path):
    """What `load_dataset` makes of them: a table in a file of its cache."""

    def load(**settings):
        return datasets.load_dataset(
            "json", data_files=str(json_file), cache_dir=str(tmp_path / "cache"), split="train", **settings
        )

    return load


def test_the_sample_of_a_table_is_the_written_down_spelling_hashed():
    # given: three rows, whose places in the order of their reversed bits are 0, 2, 1
    table = datasets.Dataset.from_dict({"a": ["x", "y", "z"]})

    def spelled(letter):
        return b"m" + struct.pack("<Q", 1) + b"s" + struct.pack("<Q", 1) + b"a" + b"s" + struct.pack("<Q", 1) + letter

    # then
    content = b"".join(
        struct.pack("<Q", place) + spelled(letter) for place, letter in ((0, b"x"), (2, b"z"), (1, b"y"))
    )
    expected = hashlib.sha256(b"trimtab sample 1\n" + struct.pack("<Q", 3) + content + struct.pack("<Q", 3)).hexdigest()
    assert describe(table).fingerprint == expected


def test_a_list_a_table_and_a_file_of_the_same_rows_are_the_same_rows(json_file):
    # given
    rows = [json.loads(line) for line in json_file.read_text().splitlines()]
    table = datasets.Dataset.from_list(rows)
    # then
    for trained_on in (rows, tuple(rows), table):
        fingerprint = describe(trained_on).fingerprint
        assert is_of(rows, fingerprint)
        assert is_of(table, fingerprint)
        assert is_of(json_file, fingerprint)


@pytest.mark.parametrize(
    "other",
    [
        lambda rows: rows[:-1],
        lambda rows: rows[::-1],
        lambda rows: [*rows[:-1], {**rows[-1], "text": "other"}],
        lambda rows: [{**rows[0], "input_ids": [9, 2, 3]}, *rows[1:]],
        lambda rows: [{name: value for name, value in row.items() if name != "note"} for row in rows],
    ],
    ids=["shorter", "reversed", "another last", "another first", "a column less"],
)
@pytest.mark.parametrize("num_rows", [40, 2_500])
def test_other_rows_are_other_rows(num_rows, other):
    rows = rows_of(num_rows)
    for trained_on in (rows, datasets.Dataset.from_list(rows)):
        fingerprint = describe(trained_on).fingerprint
        assert is_of(rows, fingerprint)
        assert not is_of(other(rows), fingerprint)
        assert not is_of(datasets.Dataset.from_list(other(rows)), fingerprint)


def test_of_a_long_table_rows_spread_evenly_are_read():
    # given
    num_rows = 5 * NUM_SPREAD_ROWS
    rows = [{"id": index} for index in range(num_rows)]
    places = {place * (num_rows - 1) // (NUM_SPREAD_ROWS - 1) for place in range(NUM_SPREAD_ROWS)}
    seen, unseen = sorted(places)[500], next(row for row in range(num_rows) if row not in places)
    fingerprint = describe(datasets.Dataset.from_list(rows)).fingerprint
    # then
    for row, is_seen in ((seen, True), (unseen, False)):
        changed = [*rows[:row], {"id": -1}, *rows[row + 1 :]]
        assert is_of(datasets.Dataset.from_list(changed), fingerprint) != is_seen


def test_big_rows_cost_the_sample_rows_not_time():
    # given: 600 rows of 256 kB, of which 255 are hashed
    rows = [np.full(1 << 18, row, np.uint8).tobytes() for row in range(6)] * 100
    table = datasets.Dataset.from_dict({"image": rows})
    # when
    began = time.process_time()
    fingerprint = describe(table).fingerprint
    # then: 0.06 s measured
    assert time.process_time() - began < 1.0
    assert fingerprint is not None
    assert is_of([{"image": image} for image in rows], fingerprint)


def test_a_wide_table_and_long_lists_cost_little():
    # given
    wide = datasets.Dataset.from_dict({f"column {index}": list(range(1_200)) for index in range(1_000)})
    ids = [list(range(8_192))] * 1_200
    long = datasets.Dataset.from_dict({"input_ids": ids, "labels": ids})
    for table in (wide, long):
        # when
        began = time.process_time()
        assert describe(table).fingerprint is not None
        # then: 0.18 s and 0.06 s measured
        assert time.process_time() - began < 2.0


def test_dates_and_decimals_of_a_table_are_hashed():
    import datetime
    import decimal

    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    rows = [{"at": at, "day": datetime.date(2026, 1, 2), "price": decimal.Decimal("1.5")}]
    other = [{**rows[0], "day": datetime.date(2026, 1, 3)}]
    fingerprint = describe(datasets.Dataset.from_list(rows)).fingerprint
    assert fingerprint is not None
    assert is_of(rows, fingerprint)
    assert not is_of(other, fingerprint)


# A Hugging Face Dataset that is opened again


def test_a_table_loaded_again_from_its_cache_from_its_file_and_from_disk_is_the_same(loaded, tmp_path):
    # given
    trained_on = loaded()
    fingerprint = describe(trained_on).fingerprint
    trained_on.save_to_disk(tmp_path / "saved", num_shards=3)
    # then
    assert is_of(loaded(), fingerprint)
    assert is_of(datasets.Dataset.from_file(trained_on.cache_files[0]["filename"]), fingerprint)
    assert is_of(datasets.load_from_disk(tmp_path / "saved"), fingerprint)
    assert is_of(trained_on.cache_files[0]["filename"], fingerprint)
    assert is_of(tmp_path / "saved", fingerprint)


def test_a_map_that_is_run_again_gives_the_same_rows_and_another_map_does_not(loaded):
    def mapped(factor):
        return loaded().map(lambda row: {"doubled": row["id"] * factor}, load_from_cache_file=False)

    fingerprint = describe(mapped(2)).fingerprint
    assert is_of(mapped(2), fingerprint)
    assert not is_of(mapped(3), fingerprint)


@pytest.mark.parametrize(
    "choose",
    [
        lambda table: table,
        lambda table: table.shuffle(seed=1),
        lambda table: table.select(range(1_500)),
        lambda table: table.select(range(700, 2_500)),
        lambda table: table.train_test_split(test_size=0.3, seed=2)["train"],
        lambda table: table.remove_columns(["note"]),
        lambda table: table.select_columns(["text", "id"]).shuffle(seed=4),
        lambda table: table.map(lambda row: {"length": len(row["text"])}),
        lambda table: table.filter(lambda row: row["id"] % 2 == 0),
        lambda table: datasets.concatenate_datasets([table, table]),
    ],
    ids=[
        "whole",
        "shuffled",
        "first",
        "last",
        "split",
        "fewer_columns",
        "columns_shuffled",
        "mapped",
        "filtered",
        "twice",
    ],
)
def test_the_files_of_a_dataset_give_its_rows_again(loaded, choose):
    # given
    trained_on = choose(loaded())
    header = header_of(trained_on)
    # when
    readings = open_recorded(header)
    # then
    right = [one for one in readings if has_fingerprint(one, header.dataset_fingerprint)]
    assert len(right) == 1
    for row in (0, 1, len(trained_on) - 1):
        (read,) = right[0].rows([row])
        expected = trained_on[row]
        assert {
            name: list(value) if name in ("input_ids", "score") else value for name, value in read.items()
        } == expected


@pytest.mark.parametrize(
    "choose",
    [
        lambda table: datasets.Dataset.from_list(table.to_list()),
        lambda table: table.select([5, 3, 1]),
        lambda table: table.add_column("new", ["x"] * len(table)),
        lambda table: datasets.concatenate_datasets(
            [
                table.select_columns("id"),
                datasets.Dataset.from_dict({"id": [1]}, features=table.select_columns("id").features),
            ]
        ),
    ],
    ids=["in memory", "selected in memory", "a column in memory", "half in memory"],
)
def test_a_dataset_of_which_a_part_is_in_memory_names_no_files(loaded, choose):
    header = header_of(choose(loaded()))
    assert header.dataset_fingerprint is not None
    assert (header.dataset_files, header.dataset_index_files) == ((), ())
    assert open_recorded(header) == ()


def test_a_split_by_slicing_is_found_in_the_file_of_the_whole(loaded, json_file, tmp_path):
    for part in ("train[:40%]", "train[80%:]"):
        split = datasets.load_dataset("json", data_files=str(json_file), cache_dir=str(tmp_path / "cache"), split=part)
        header = header_of(split)
        readings = open_recorded(header)
        assert any(has_fingerprint(one, header.dataset_fingerprint) for one in readings)


def test_formats_and_transforms_change_nothing_and_no_transform_runs(loaded):
    # given
    table = loaded()
    calls = []
    watched = table.with_transform(lambda batch: calls.append(1) or batch)
    # then
    fingerprint = describe(table).fingerprint
    assert describe(watched) == describe(table)
    assert describe(table.with_format("numpy", columns=["id"])).fingerprint == fingerprint
    assert is_of(watched, fingerprint)
    assert calls == []


def test_asking_leaves_the_dataset_as_it_was(loaded):
    # given
    table = loaded().shuffle(seed=3)
    before = (table._fingerprint, table.cache_files, table.format, table[7])
    # when
    describe(table)
    # then
    assert (table._fingerprint, table.cache_files, table.format, table[7]) == before


def test_an_empty_table_has_a_fingerprint():
    facts = describe(datasets.Dataset.from_dict({"a": []}))
    assert facts.num_rows == 0
    assert facts.fingerprint is not None


def test_what_only_looks_like_a_dataset_raises_nothing():
    class Pretender:
        _fingerprint = "f"
        _data = object()

        def __len__(self):
            return 3

    facts = describe(Pretender())
    assert (facts.num_rows, facts.fingerprint, facts.files.paths) == (3, None, ())
