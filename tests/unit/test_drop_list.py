"""The file of rows to leave out: what is read, what is refused, and of which dataset its rows may be."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.dataset import DatasetFacts, describe
from trimtab.drop_list import MAX_SIZE_BYTES, read_drop_list, spell_drop_list
from trimtab.errors import UsageError

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture
def write(tmp_path):
    """Writes a document, or bytes, and gives the path."""

    def write(content):
        path = tmp_path / "drop.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return write


def document(**changes):
    return {"version": 1, "dataset_fingerprint": "f", "num_rows": 10, "rows": [3, 5]} | changes


@given(st.dictionaries(INT64, st.none() | INT64, max_size=8), st.none() | st.text(max_size=70))
def test_what_was_spelled_is_read_back(tmp_path_factory, digests, fingerprint):
    # given
    spelled = spell_drop_list(digests, run_id="r", dataset_fingerprint=fingerprint, num_rows=7, findings=[])
    path = tmp_path_factory.mktemp("drop") / "drop.json"
    path.write_text(json.dumps(spelled))
    # when
    found = read_drop_list(str(path))
    # then
    assert (found.path, found.dataset_fingerprint, found.num_rows) == (str(path), fingerprint, 7)
    assert (found.digests, found.rows) == (digests, tuple(digests))


def test_a_file_written_by_hand_needs_rows_and_a_version(write):
    found = read_drop_list(write({"version": 1, "rows": [5, 3]}))
    assert (found.rows, found.dataset_fingerprint, found.num_rows) == ((5, 3), None, None)


WRONG = {
    "no JSON": (b"rows: 3", "no JSON"),
    "not strict": (b'{"version": 1, "rows": [NaN]}', "no JSON"),
    "a key twice": (b'{"version": 1, "rows": [1], "rows": [2]}', "no JSON"),
    "deep": (b"[" * 100_000, "no JSON"),
    "a number of 5,000 digits": (b'{"version": ' + b"9" * 5000 + b"}", "no JSON"),
    "no object": ([3, 5], "no JSON object"),
    "no version": ({"rows": [3]}, "version None, expected 1"),
    "another version": (document(version=2), "version 2, expected 1"),
    "a true version": (document(version=True), "version True, expected 1"),
    "no rows": ({"version": 1}, "rows None, expected a list"),
    "rows by name": (document(rows={"3": 1}), "rows a dict, expected a list"),
    "a text row": (document(rows=[3, "5"]), "'5' as entry 1 of rows"),
    "a fraction": (document(rows=[3.0]), "3.0 as entry 0 of rows"),
    "a truth": (document(rows=[True]), "True as entry 0 of rows"),
    "a row in a row": (document(rows=[[3]]), "a list as entry 0 of rows"),
    "beyond int64": (document(rows=[2**63]), "9223372036854775808 as entry 0 of rows"),
    "a row twice": (document(rows=[3, 5, 3]), "row 3 a second time, as entry 2 of rows"),
    "half the rows": (document(num_rows=3.5), "num_rows 3.5"),
    "fewer than none": (document(num_rows=-1), "num_rows -1"),
    "an odd fingerprint": (document(dataset_fingerprint=5), "dataset_fingerprint 5"),
    "too few digests": (document(digests=[None]), "digests that are no list as long as its 2 rows"),
    "a short digest": (document(digests=["ff", None]), "'ff' as entry 0 of digests"),
    "a digest of other letters": (document(digests=[None, "000000000000000G"]), "entry 1 of digests"),
    "a digest that is a number": (document(digests=[7, None]), "7 as entry 0 of digests"),
    "control characters": (document(rows=["\x1b[31m"]), r"'\x1b[31m' as entry 0 of rows"),
}


@pytest.mark.parametrize(("content", "told"), WRONG.values(), ids=WRONG)
def test_what_is_no_drop_list_is_refused_by_file_and_entry(write, content, told):
    path = write(content)
    with pytest.raises(UsageError) as caught:
        read_drop_list(path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)
    assert "--drop-list" in str(caught.value)


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"absent\.json: cannot be read \(No such file"):
        read_drop_list(tmp_path / "absent.json")
    with pytest.raises(UsageError, match="cannot be read"):
        read_drop_list(tmp_path)
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(MAX_SIZE_BYTES + 1)
    with pytest.raises(UsageError, match="more than 67108864 bytes"):
        read_drop_list(tmp_path / "large.json")


@pytest.mark.parametrize("wrong", [[3, 5], 3, None, {"rows": [3]}, "a\0b"])
def test_rows_in_place_of_a_file_are_refused(wrong):
    with pytest.raises(UsageError, match="--drop-list"):
        read_drop_list(wrong)


# ----------------------------------------------------------------------------------------------------- of which dataset


def facts(num_rows=10, fingerprint="f"):
    return DatasetFacts(num_rows, fingerprint, "an index")


def check(write, of, **changes):
    read_drop_list(write(document(**changes))).check_facts(of)


def test_rows_of_the_same_dataset_are_taken(write):
    check(write, facts())
    check(write, facts(num_rows=6), num_rows=None)  # a fingerprint says more than a length
    check(write, facts(fingerprint=None), dataset_fingerprint=None)
    check(write, facts(num_rows=None, fingerprint=None), dataset_fingerprint=None, num_rows=None)


def test_a_real_dataset_is_told_from_one_of_the_same_length(write):
    rows = [{"text": "a"}, {"text": "b"}, {"text": "c"}]
    fingerprint = describe(rows).fingerprint
    check(write, describe(rows), rows=[1], num_rows=3, dataset_fingerprint=fingerprint)
    with pytest.raises(UsageError) as caught:
        check(write, describe(rows[::-1]), rows=[1], num_rows=3, dataset_fingerprint=fingerprint)
    assert fingerprint in str(caught.value)
    assert describe(rows[::-1]).fingerprint in str(caught.value)


def containers(rows):
    """The same rows, in each container that says a fingerprint."""
    import datasets

    table = datasets.Dataset.from_list(rows)
    return {
        "list": rows,
        "tuple": tuple(rows),
        "table": table,
        "formatted": table.with_format("numpy"),
        "selection": datasets.Dataset.from_list(rows[::-1]).select(range(len(rows))[::-1]),
    }


@pytest.mark.parametrize("num_rows", [3, 800, 1500])
def test_the_same_rows_are_taken_in_another_container_and_other_rows_in_none(write, num_rows):
    # given rows that differ in a place that every fingerprint sees
    rows = [{"text": f"row {row}", "ids": [row, row + 1]} for row in range(num_rows)]
    others = [*rows[:-1], {"text": "another", "ids": [0, 1]}]
    for origin in containers(rows).values():
        listed = dict(rows=[1], num_rows=num_rows, dataset_fingerprint=describe(origin).fingerprint)
        drops = read_drop_list(write(document(**listed)))
        # then
        for kind, at_hand in containers(rows).items():
            assert drops.check(at_hand).fingerprint == drops.dataset_fingerprint, kind
        for at_hand in containers(others).values():
            with pytest.raises(UsageError, match="hand over the dataset that the rows were found in"):
                drops.check(at_hand)


class OwnRows:
    def __init__(self):
        self.asked = []

    def __len__(self):
        return 3

    def __getitem__(self, index):
        self.asked.append(index)
        return {"text": "a"}


def test_no_code_of_a_dataset_is_run_to_tell_it(write):
    rows = OwnRows()
    with pytest.raises(UsageError, match="with the fingerprint none"):
        read_drop_list(write(document(num_rows=3, rows=[1]))).check(rows)
    assert rows.asked == []


@pytest.mark.parametrize(
    ("of", "changes", "told"),
    [
        (facts(fingerprint="g"), {}, "f, and this trainer's is a dataset of 10 rows with the fingerprint g"),
        (facts(fingerprint=None), {}, "with the fingerprint none: hand over"),
        (facts(), dict(dataset_fingerprint=None), '"dataset_fingerprint": "f" into the file'),
        (facts(), dict(dataset_fingerprint=None, num_rows=None), '"dataset_fingerprint": "f" into the file'),
        (facts(num_rows=11, fingerprint=None), dict(dataset_fingerprint=None), '"num_rows": 11 into the file'),
        (facts(fingerprint=None), dict(dataset_fingerprint=None, num_rows=None), "a dataset that nobody described"),
        (facts(num_rows=None, fingerprint=None), {}, "this trainer reads a stream"),
        (facts(num_rows=None, fingerprint=None), dict(dataset_fingerprint=None), "this trainer reads a stream"),
        (facts(num_rows=40), dict(num_rows=7), "the file's fingerprint, has 40 rows"),
        (facts(), dict(rows=[3, 10]), "row 10 (entry 1 of rows) is none of this dataset's, which are 0 to 9"),
        (facts(), dict(rows=[-1]), "row -1 (entry 0 of rows) is none"),
    ],
)  # fmt: skip
def test_rows_of_another_dataset_are_refused_with_what_to_do(write, of, changes, told):
    with pytest.raises(UsageError) as caught:
        check(write, of, **changes)
    assert told in str(caught.value)
    assert "drop.json" in str(caught.value)
