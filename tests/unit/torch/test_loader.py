"""Rows that travel with the data: real loaders, whose order and batches stay what they were."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from trimtab.spelling import row_digest
from trimtab.torch.loader import (
    LOOSE_KEY,
    ROW_KEY,
    TaggedDataset,
    TaggedItem,
    TaggedStream,
    TaggingCollator,
    loose_rows,
    tag_rows,
)
from trimtab.torch.marks import MARKS_KEY, Mark, unpack_marks


class Rows(Dataset):
    """Items tell their index; `epoch` is something hosts look for."""

    def __init__(self, num_rows=11):
        self.num_rows = num_rows
        self.epoch = None

    def __len__(self):
        return self.num_rows

    def __getitem__(self, index):
        return {"x": torch.tensor(100 + index), "input_ids": [index] * (1 + index % 3)}

    def set_epoch(self, epoch):
        self.epoch = epoch


class BatchRows(Rows):
    """Fetches several at once, as Hugging Face datasets do."""

    def __getitems__(self, indices):
        return [super(BatchRows, self).__getitem__(index) | {"together": len(indices)} for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first = worker.id if worker is not None else 0
        step = worker.num_workers if worker is not None else 1
        for index in range(first, 11, step):
            yield {"x": torch.tensor(100 + index), "number": torch.tensor(40 + index)}


class SizedStream(Stream):
    def __len__(self):
        return 11


def only_x(items):
    return {"x": torch.stack([item["x"] for item in items])}


def tagged(dataset, *, row_id="row_id", **settings):
    loader = DataLoader(dataset, batch_size=4, collate_fn=only_x, **settings)
    tag_rows(loader, row_id=row_id)
    return loader


LOADERS = {
    "in order": dict(),
    "shuffled": dict(shuffle=True),
    "drop_last": dict(shuffle=True, drop_last=True),
    "workers": dict(shuffle=True, num_workers=2),
}


@pytest.mark.parametrize("dataset", [Rows, BatchRows])
@pytest.mark.parametrize("settings", LOADERS.values(), ids=LOADERS)
def test_batches_are_the_same_with_their_rows_beside_them(settings, dataset):
    def seeded(**more):
        return dict(settings, generator=torch.Generator().manual_seed(5), **more)

    # given
    plain = DataLoader(dataset(), batch_size=4, collate_fn=only_x, **seeded())
    own = tagged(dataset(), **seeded())
    assert len(own) == len(plain)
    for _ in range(2):  # two epochs
        batches, expected = list(own), list(plain)
        assert [batch["x"].tolist() for batch in batches] == [batch["x"].tolist() for batch in expected]
        assert [(batch[ROW_KEY] + 100).tolist() for batch in batches] == [batch["x"].tolist() for batch in expected]
        assert all(batch[ROW_KEY].dtype == torch.int64 for batch in batches)


def test_rows_come_out_of_spawned_workers_too():
    # given a dataset of plain values: a spawned process cannot import this file
    loader = DataLoader(
        [{"x": 100 + i} for i in range(6)], batch_size=2, num_workers=1, multiprocessing_context="spawn"
    )
    tag_rows(loader, row_id="row_id")
    # then
    batches = list(loader)
    assert [batch[ROW_KEY].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
    assert [batch["x"].tolist() for batch in batches] == [[100, 101], [102, 103], [104, 105]]


def test_a_batch_fetch_stays_one_fetch():
    items = TaggedDataset(BatchRows()).__getitems__([3, 5])
    assert [(item.row, item.item["together"]) for item in items] == [(3, 2), (5, 2)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_is_numbered_by_worker_and_position(num_workers):
    found = {}
    for batch in tagged(Stream(), num_workers=num_workers):
        found |= dict(zip(batch[ROW_KEY].tolist(), batch["x"].tolist(), strict=True))
    if num_workers == 0:
        assert found == {index: 100 + index for index in range(11)}
    else:
        assert found == {((index % 2) << 40 | index // 2): 100 + index for index in range(11)}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_streams_own_numbers_are_taken(num_workers):
    for batch in tagged(Stream(), row_id="number", num_workers=num_workers):
        assert (batch[ROW_KEY] - 40).tolist() == (batch["x"] - 100).tolist()
        assert MARKS_KEY not in batch  # nothing is known beside them


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_row_of_a_stream_brings_the_digest_of_its_content_and_a_name(num_workers):
    # given
    expected = {100 + i: row_digest({"x": torch.tensor(100 + i), "number": torch.tensor(40 + i)}) for i in range(11)}
    for batch in tagged(Stream(), num_workers=num_workers):
        rows, digests, names = unpack_marks(batch[MARKS_KEY].numpy())
        # then
        assert rows.tolist() == batch[ROW_KEY].tolist()
        assert digests.tolist() == [expected[x] for x in batch["x"].tolist()]
        assert set(names) == {None}


def test_a_stream_is_not_hashed_where_nobody_asks():
    loader = DataLoader(Stream(), batch_size=4, collate_fn=only_x)
    tag_rows(loader, row_id="row_id", with_marks=False)
    assert all(MARKS_KEY not in batch for batch in loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_id_in_an_item_of_a_dataset_travels_with_its_row(num_workers):
    # given a list of which every third row has no id
    rows = [{"x": torch.tensor(i)} | ({"doc": f"doc-{i}"} if i % 3 else {}) for i in range(11)]
    for batch in tagged(rows, row_id="doc", shuffle=True, num_workers=num_workers):
        numbers, digests, names = unpack_marks(batch[MARKS_KEY].numpy())
        assert numbers.tolist() == batch["x"].tolist()
        assert names == [f"doc-{i}" if i % 3 else None for i in numbers]
        assert set(digests.tolist()) == {0}


def test_rows_may_be_numbered_otherwise_than_by_their_index():
    dataset = TaggedDataset(BatchRows(), rows=torch.arange(50, 61).numpy())
    assert (dataset[3].row, [entry.row for entry in dataset.__getitems__([0, 10])]) == (53, [50, 60])


def test_only_a_stream_that_knows_its_length_has_one():
    assert len(tagged(SizedStream())) == 3
    with pytest.raises(TypeError):
        len(tagged(Stream()))
    assert not hasattr(TaggedStream(Stream(), row_id="row_id"), "__len__")


def test_what_hosts_look_for_on_a_dataset_is_found():
    rows = Rows()
    loader = tagged(rows)
    loader.dataset.set_epoch(4)
    assert rows.epoch == 4
    assert loader.dataset.num_rows == 11
    assert not hasattr(loader.dataset, "column_names")


def test_tagging_twice_tags_once():
    loader = tagged(Rows())
    tag_rows(loader, row_id="row_id")
    assert next(iter(loader))["x"].tolist() == [100, 101, 102, 103]


@pytest.mark.parametrize("dataset", [TaggedDataset(Rows()), TaggedStream(Stream(), row_id="number")])
def test_a_tagged_dataset_can_be_sent_to_a_spawned_worker(dataset):
    copy = pickle.loads(pickle.dumps(dataset))
    assert type(copy) is type(dataset)
    assert type(copy.dataset) is type(dataset.dataset)


# -------------------------------------------------------------------------------------------------------- the collator


def collated(collate, items, rows=(7, 9)):
    return TaggingCollator(collate)([TaggedItem(row, item) for row, item in zip(rows, items, strict=True)])


ITEMS = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]


def test_one_sequence_an_item_gives_one_row_a_sequence():
    batch = collated(lambda items: {"mask": None, "input_ids": torch.zeros(len(items), 3)}, ITEMS)
    assert batch[ROW_KEY].tolist() == [7, 9]


def test_items_put_end_to_end_give_one_row_a_token():
    batch = collated(lambda items: {"input_ids": torch.tensor([[t for i in items for t in i["input_ids"]]])}, ITEMS)
    assert batch[ROW_KEY].tolist() == [[7, 7, 7, 9, 9]]


@pytest.mark.parametrize(
    ("collate", "shape"),
    [
        (lambda items: {"input_ids": torch.zeros(len(items), 3)}, (2, 32)),
        (lambda items: {"input_ids": torch.tensor([[t for i in items for t in i["input_ids"]]])}, (1, 2, 32)),
    ],
    ids=["one a sequence", "end to end"],
)
def test_marks_have_the_leading_size_of_the_batch_which_hosts_cut_it_by(collate, shape):
    tagged = [TaggedItem(7, ITEMS[0], Mark(70)), TaggedItem(9, ITEMS[1], Mark(90))]
    marks = TaggingCollator(collate)(tagged)[MARKS_KEY]
    assert marks.shape == shape
    assert unpack_marks(marks.numpy())[1].tolist() == [70, 90]


def test_a_batch_without_a_mark_carries_none_unless_it_always_does():
    tagged = [TaggedItem(7, ITEMS[0]), TaggedItem(9, ITEMS[1])]

    def collate(items):
        return {"input_ids": torch.zeros(len(items), 3)}

    assert MARKS_KEY not in TaggingCollator(collate)(tagged)
    assert unpack_marks(TaggingCollator(collate, always_marks=True)(tagged)[MARKS_KEY].numpy())[2] == [None, None]


def test_one_item_alone_is_one_sequence():
    batch = collated(lambda items: {"input_ids": torch.tensor([items[0]["input_ids"]])}, ITEMS[:1], rows=[7])
    assert batch[ROW_KEY].tolist() == [7]


def test_lengths_are_taken_before_a_collator_takes_the_items_apart():
    def greedy(items):
        return {"input_ids": torch.tensor([[token for item in items for token in item.pop("input_ids")]])}

    batch = collated(greedy, [dict(item) for item in ITEMS])
    assert batch[ROW_KEY].shape == (1, 5)


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": torch.zeros(4, 3)},
        {"input_ids": torch.zeros(1, 4)},
        {"input_ids": torch.zeros(())},
        {"text": "no tensor at all"},
        {},
    ],
    ids=["doubled", "cut", "a number", "no tensor", "empty"],
)
def test_where_sequences_are_not_the_items_no_row_is_claimed_and_all_are_there(batch):
    found = collated(lambda _: dict(batch), ITEMS)
    assert ROW_KEY not in found
    assert set(found[LOOSE_KEY].flatten().tolist()) == {7, 9}


@pytest.mark.parametrize(
    ("shape", "rows"), [((4, 3), [[7], [9], [9], [9]]), ((1, 9), [[7, 9]]), ((), [[7, 9]]), ((0,), [[7, 9]])]
)
def test_rows_in_no_place_have_the_leading_size_of_the_batch_which_hosts_cut_it_by(shape, rows):
    assert loose_rows({"input_ids": torch.zeros(shape)}, [7, 9]).tolist() == rows


def test_a_batch_that_is_no_mapping_is_left_as_it_is():
    assert collated(lambda items: (1, 2), ITEMS) == (1, 2)


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        ({"pixels": torch.zeros(9, 3), "labels": torch.zeros(2)}, [7, 9]),  # patches of several images
        ({"scale": torch.tensor(1.0), "features": torch.zeros(2, 5)}, [7, 9]),
    ],
    ids=["labels", "first tensor"],
)
def test_the_number_of_sequences_is_that_of_tokens_else_labels_else_the_first_tensor(batch, rows):
    assert collated(lambda _: dict(batch), ITEMS)[ROW_KEY].tolist() == rows
