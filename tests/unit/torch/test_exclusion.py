"""Rows left out of a loader: what is left is what it would be without them, under the numbers it had."""

import json
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from trimtab.dataset import describe
from trimtab.errors import UsageError
from trimtab.spelling import row_digest
from trimtab.torch.exclusion import Exclusion, Remainder
from trimtab.torch.loader import ROW_KEY, tag_rows

ROWS = [{"x": 100 + i} for i in range(11)]


class Rows(Dataset):
    """A dataset that nobody can tell a fingerprint of."""

    name = "mine"

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return ROWS[index]


class BatchRows(Rows):
    def __getitems__(self, indices):
        return [dict(ROWS[index], together=len(indices)) for index in indices]


class Stream(IterableDataset):
    def __init__(self, items=ROWS):
        self.items = items

    def __iter__(self):
        worker = get_worker_info()
        part = slice(worker.id, None, worker.num_workers) if worker is not None else slice(None)
        yield from self.items[part]


class SizedStream(Stream):
    def __len__(self):
        return len(self.items)


def xs(items):
    return {"x": torch.tensor([item["x"] for item in items])}


@pytest.fixture
def exclude(tmp_path):
    """An exclusion of some rows of a dataset, as a file written for it lists them."""

    def make(rows, *, dataset, digests=None, **changes):
        facts = describe(dataset)
        document = {
            "version": 1,
            "dataset_fingerprint": facts.fingerprint,
            "num_rows": facts.num_rows,
            "rows": rows,
            "digests": digests,
        }
        (tmp_path / "drop.json").write_text(json.dumps(document | changes))
        return Exclusion(tmp_path / "drop.json", dataset=dataset)

    return make


def spelled(item):
    return f"{row_digest(item) & 2**64 - 1:016x}"


def batches_of(dataset, exclusion, **settings):
    loader = DataLoader(dataset, batch_size=4, collate_fn=xs, **settings)
    tag_rows(loader, row_id="row_id", exclusion=exclusion)
    return list(loader)


# --------------------------------------------------------------------------------------------------------- map-style


@pytest.mark.parametrize("kind", [lambda: list(ROWS), Rows, BatchRows], ids=["list", "dataset", "batch fetch"])
@pytest.mark.parametrize("settings", [dict(), dict(shuffle=True), dict(shuffle=True, num_workers=2, drop_last=True)])
def test_what_is_left_is_a_dataset_without_the_rows_under_their_old_numbers(exclude, kind, settings):
    def seeded():
        return dict(settings, generator=torch.Generator().manual_seed(5))

    # given
    dataset = kind()
    exclusion = exclude([10, 0, 3], dataset=dataset)
    remainder = exclusion.remainder(dataset)
    oracle = DataLoader(
        [row for i, row in enumerate(ROWS) if i not in (0, 3, 10)], batch_size=4, collate_fn=xs, **seeded()
    )
    expected = [batch["x"].tolist() for batch in oracle]
    # when
    found = batches_of(remainder, exclusion, **seeded())
    # then
    assert [batch["x"].tolist() for batch in found] == expected
    assert [batch[ROW_KEY].tolist() for batch in found] == [[x - 100 for x in xs] for xs in expected]


def test_a_view_is_looked_at_as_the_dataset_is():
    view = Remainder(BatchRows(), np.array([1, 4, 9]))
    assert (len(view), view.name, view[-1]) == (3, "mine", {"x": 109})
    assert [item["x"] for item in view] == [101, 104, 109]  # hosts that group by length go through it
    assert [item["together"] for item in view.__getitems__([2, 0])] == [2, 2]
    assert not hasattr(view, "column_names")
    copy = pickle.loads(pickle.dumps(view))
    assert copy[1] == {"x": 104}


def test_a_hugging_face_dataset_stays_one(exclude):
    import datasets

    dataset = datasets.Dataset.from_list(ROWS).select([9, 8, 7, 6])
    remainder = exclude([1], dataset=dataset).remainder(dataset)
    assert isinstance(remainder, datasets.Dataset)
    assert remainder["x"][:] == [109, 107, 106]


def test_rows_found_in_a_list_are_left_out_of_a_dataset_with_the_same_rows(exclude, tmp_path):
    import datasets

    exclude([0, 3], dataset=list(ROWS))
    dataset = datasets.Dataset.from_list(ROWS)
    exclusion = Exclusion(tmp_path / "drop.json", dataset=dataset)
    assert exclusion.remainder(dataset)["x"][:] == [101, 102, *range(104, 111)]
    assert "fingerprint" not in exclusion.introduction()


def test_nothing_left_and_another_dataset_are_refused(exclude):
    with pytest.raises(UsageError, match="all 11 rows"):
        exclude(list(range(11)), dataset=list(ROWS))
    with pytest.raises(UsageError, match="fingerprint"):
        exclude([1], dataset=list(ROWS), dataset_fingerprint="f")
    with pytest.raises(UsageError, match="replaced after attach"):
        exclude([1], dataset=list(ROWS)).remainder(list(ROWS))


def test_a_loader_over_other_rows_than_the_remainder_is_refused(exclude):
    exclusion = exclude([1], dataset=list(ROWS))
    with pytest.raises(UsageError, match="11 rows of its own choice"):
        batches_of(list(ROWS), exclusion)


@pytest.mark.parametrize("dataset", [list(ROWS), Stream()], ids=["list", "stream"])
def test_an_empty_list_leaves_nothing_out_and_says_so(exclude, dataset):
    exclusion = exclude([], dataset=dataset)
    assert exclusion.introduction().startswith("Trimtab leaves no row out of training: ")
    assert exclusion.introduction().endswith("drop.json lists none.")
    found = batches_of(exclusion.remainder(dataset), exclusion)
    assert [x for batch in found for x in batch["x"].tolist()] == [100 + i for i in range(11)]


def test_one_line_says_what_is_left_out_and_what_was_compared(exclude):
    told = exclude([1], dataset=list(ROWS))
    assert told.introduction().startswith("Trimtab leaves 1 of 11 rows out of training, those of ")
    assert "fingerprint" not in told.introduction()
    assert "only its length was compared" in exclude([1, 2], dataset=Rows()).introduction()
    assert (told.outcome(), told.facts()["num_rows"]) == (None, 1)


# ----------------------------------------------------------------------------------------------------------- a stream


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_of_a_stream_are_passed_over_by_their_content_and_the_others_keep_their_numbers(exclude, num_workers):
    # given: whole batches, the first and the last row, a row that the stream does not hold
    gone = [0, 4, 5, 6, 7, 10]
    digests = [*(spelled(ROWS[row]) for row in gone), spelled({"x": 5})]
    stream = Stream()
    exclusion = exclude([*gone, 77], digests=digests, dataset=stream)
    assert exclusion.remainder(stream) is stream
    plain = {x: row for b in batches_of(Stream(), None, num_workers=num_workers) for x, row in pairs(b)}
    # when
    found = [pair for b in batches_of(Stream(), exclusion, num_workers=num_workers) for pair in pairs(b)]
    # then
    kept = [100 + row for row in range(11) if row not in gone]
    assert sorted(x for x, _ in found) == kept
    assert dict(found) == {x: plain[x] for x in kept}
    assert "met 6 of the 7 rows" in exclusion.outcome()
    assert exclusion.outcome().endswith("The others were not in what was read of the stream.")


def pairs(batch):
    return list(zip(batch["x"].tolist(), batch[ROW_KEY].tolist(), strict=True))


def test_listed_rows_of_the_same_content_are_all_met(exclude):
    stream = Stream([ROWS[0], ROWS[1], ROWS[0]])
    exclusion = exclude([0, 2], digests=[spelled(ROWS[0])] * 2, dataset=stream)
    assert [x for batch in batches_of(stream, exclusion) for x in batch["x"].tolist()] == [101]
    assert exclusion.outcome().startswith("Trimtab met 2 of the 2 rows")


def test_rows_that_could_not_be_known_again_are_not_said_to_be_elsewhere(exclude):
    exclusion = exclude([3, 5, 8], digests=[None, None, spelled({"x": 5})], dataset=Stream())
    assert "the 2 rows without a digest by the stream's own integer row numbers alone" in exclusion.introduction()
    assert sum(len(batch["x"]) for batch in batches_of(Stream(), exclusion)) == 11
    assert "met 0 of the 3 rows" in exclusion.outcome()
    assert "Of 2 rows the file has no digest" in exclusion.outcome()
    assert "may have been trained on" in exclusion.outcome()
    assert exclusion.outcome().endswith("The others were not in what was read of the stream.")
    assert "without a digest" not in exclude([3], digests=[spelled(ROWS[3])], dataset=Stream()).introduction()


def test_a_list_of_which_nothing_could_be_known_again_is_refused_where_the_columns_are_known(exclude):
    import datasets

    stream = datasets.Dataset.from_list(ROWS).to_iterable_dataset()
    with pytest.raises(UsageError, match=r"no digest of any of its rows.*no column 'row_id'"):
        exclude([3, 5], dataset=stream)
    exclude([3, 5], digests=[None, spelled(ROWS[5])], dataset=stream)
    exclude([], dataset=stream)
    exclude([3], dataset=datasets.Dataset.from_list([{"row_id": 3}]).to_iterable_dataset())


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_of_which_nothing_is_left_is_refused_when_it_has_been_read(exclude, num_workers):
    exclusion = exclude(list(range(11)), digests=[spelled(row) for row in ROWS], dataset=Stream())
    with pytest.raises(UsageError, match=r"drop\.json lists every row that the stream has, 11 in this pass"):
        batches_of(Stream(), exclusion, num_workers=num_workers)


def test_a_worker_of_several_may_have_nothing_left(exclude):
    gone = ROWS[0::2]
    exclusion = exclude(list(range(6)), digests=[spelled(row) for row in gone], dataset=Stream())
    assert sum(len(batch["x"]) for batch in batches_of(Stream(), exclusion, num_workers=2)) == 5


def test_of_a_stream_that_knows_its_length_a_list_of_all_rows_is_refused_at_once(exclude):
    with pytest.raises(UsageError, match="lists all 11 rows of the stream"):
        exclude(list(range(11)), digests=[spelled(row) for row in ROWS], dataset=SizedStream())


def test_a_workers_process_that_was_spawned_counts_too(exclude):
    # given a process like a worker's that is spawned, and gets the rows as a loader would send them
    exclusion = exclude([0], digests=[spelled(ROWS[0])], dataset=Stream())
    process = torch.multiprocessing.get_context("spawn").Process(
        target=exclusion.passed_over.holds, kwargs=dict(digest=row_digest(ROWS[0]), own_row=None)
    )
    # when
    process.start()
    process.join()
    # then
    assert exclusion.passed_over.num_met == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_without_a_digest_are_known_by_the_streams_own_numbers_alone(exclude, num_workers):
    # given numbers of the user's that are no positions
    items = [dict(row, row_id=70 - i) for i, row in enumerate(ROWS)]
    exclusion = exclude([70, 62, 3], dataset=Stream(items))
    found = [x for b in batches_of(Stream(items), exclusion, num_workers=num_workers) for x in b["x"].tolist()]
    # then the row at position 3 stays
    assert sorted(found) == [101, 102, 103, 104, 105, 106, 107, 109, 110]
    assert "met 2 of the 3 rows" in exclusion.outcome()


def test_a_digest_is_looked_for_where_the_stream_has_no_number_of_its_own(exclude):
    items = [dict(row, row_id=70 + i) for i, row in enumerate(ROWS)]
    exclusion = exclude([0], digests=[spelled(items[0])], dataset=Stream(items))
    assert sum(len(batch["x"]) for batch in batches_of(Stream(items), exclusion)) == 11


def test_a_stream_that_knows_its_length_is_planned_without_the_rows(exclude):
    stream = SizedStream()
    exclusion = exclude([0, 1, 2], digests=[spelled(row) for row in ROWS[:3]], dataset=stream)
    loader = DataLoader(stream, batch_size=4, collate_fn=xs)
    tag_rows(loader, row_id="row_id", exclusion=exclusion)
    assert (len(loader), len(list(loader))) == (2, 2)
