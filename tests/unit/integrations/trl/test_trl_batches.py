"""Rows of tokens on their way through a collator: padded as the tokens are, or left out where nobody can tell."""

import pickle

import datasets
import numpy as np
import pytest
import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from trimtab.integrations.trl_batches import PackedDataset, SFTCollator
from trimtab.integrations.trl_keeping import COLUMN
from trimtab.torch.loader import LOOSE_KEY, ROW_KEY, TaggedItem

TAGGED = [
    TaggedItem(np.array([3, 3, 8]), {"input_ids": [11, 12, 13]}),
    TaggedItem(np.array([5, 6, 6, 6, 9]), {"input_ids": [21, 22, 23, 24, 25]}),
]


def test_padding_has_the_row_before_it():
    collator = SFTCollator(DataCollatorForLanguageModeling(pad_token_id=0), flattens=False)
    assert collator(TAGGED)[ROW_KEY].tolist() == [[3, 3, 8, 8, 8], [5, 6, 6, 6, 9]]


@pytest.mark.parametrize(("multiple", "more"), [(None, []), (3, [9])])
def test_a_flattened_batch_has_one_line_of_rows(multiple, more):
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True, pad_to_multiple_of=multiple)
    batch = SFTCollator(collate, flattens=True)(TAGGED)
    assert batch[ROW_KEY].tolist() == [[3, 3, 8, 5, 6, 6, 6, 9, *more]]
    assert batch[ROW_KEY].shape == batch["input_ids"].shape


def test_items_of_one_row_each_may_be_flattened_too():
    tagged = [TaggedItem(7, TAGGED[0].item), TaggedItem(4, TAGGED[1].item)]
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    assert SFTCollator(collate, flattens=True)(tagged)[ROW_KEY].tolist() == [[7, 7, 7, 4, 4, 4, 4, 4]]


def from_the_left(items):
    ids = [torch.tensor(item["input_ids"]) for item in items]
    return {"input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_side="left")}


@pytest.mark.parametrize(
    "collate",
    [
        from_the_left,
        lambda items: {"input_ids": torch.tensor([item["input_ids"][:2] for item in items])},
        lambda items: {"input_ids": torch.tensor([items[0]["input_ids"]])},
        lambda items: {"input_ids": [item["input_ids"] for item in items]},
        lambda items: {"labels": torch.zeros(2, 5)},
    ],
    ids=["padded on the left", "cut", "one is missing", "no tensor", "no tokens"],
)
def test_a_batch_whose_sequences_are_not_the_items_has_its_rows_in_no_place(collate):
    batch = SFTCollator(collate, flattens=False)(TAGGED)
    assert ROW_KEY not in batch
    assert set(batch[LOOSE_KEY].flatten().tolist()) == {3, 5, 6, 8, 9}


def test_a_batch_without_any_token_has_no_rows():
    batch = SFTCollator(from_the_left, flattens=False)([TaggedItem(np.array([], np.int64), {"input_ids": []})])
    assert not {ROW_KEY, LOOSE_KEY} & batch.keys() or batch[ROW_KEY].shape == (1, 0)


def test_a_batch_that_is_no_mapping_is_handed_on():
    assert SFTCollator(lambda items: [1, 2], flattens=False)(TAGGED) == [1, 2]


def test_packed_items_can_be_sent_to_a_spawned_worker():
    # given
    tokens = datasets.Dataset.from_dict({"input_ids": [[11, 12, 13], [21, 22], [31]]})
    rows = datasets.Dataset.from_dict({COLUMN: [[3, 3, 8], [5, 6], [9]]}).with_format("numpy")
    # when
    received = pickle.loads(pickle.dumps(PackedDataset(tokens, rows)))
    # then
    assert [entry.row.tolist() for entry in received.__getitems__([2, 0])] == [[9], [3, 3, 8]]
    assert [entry.item["input_ids"] for entry in received.__getitems__([2, 0])] == [[31], [11, 12, 13]]
    assert received[1].row.tolist() == [5, 6]
