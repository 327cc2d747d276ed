"""A micro-batch loses its supervised tokens, whatever it is held in, and nothing else."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from trimtab.proof.tokens import without_tokens


class Tuple(NamedTuple):
    x: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True)
class Record:
    x: torch.Tensor
    targets: torch.Tensor


def test_whole_number_labels_become_those_that_are_ignored():
    batch = {"input_ids": torch.tensor([1, 2]), "labels": torch.tensor([3, -100])}
    emptied = without_tokens(batch)
    assert emptied["labels"].tolist() == [-100, -100]
    assert emptied["input_ids"].tolist() == [1, 2]
    assert batch["labels"].tolist() == [3, -100]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_masks_become_zeros_of_their_dtype(dtype):
    emptied = without_tokens(Tuple(torch.ones(2), torch.ones(2, dtype=dtype)))
    assert isinstance(emptied, Tuple)
    assert emptied.mask.dtype == dtype
    assert not emptied.mask.any()


def test_a_dataclass_stays_one():
    emptied = without_tokens(Record(torch.ones(2), torch.tensor([1, 2])))
    assert isinstance(emptied, Record)
    assert emptied.targets.tolist() == [-100, -100]


def test_a_batch_of_transformers_stays_one():
    from transformers import BatchEncoding

    emptied = without_tokens(BatchEncoding({"input_ids": torch.tensor([1]), "labels": torch.tensor([1])}))
    assert isinstance(emptied, BatchEncoding)
    assert emptied["labels"].tolist() == [-100]


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.ones(2), "targets": torch.ones(2)},
        {"x": torch.ones(2), "attention_mask": torch.ones(2)},
        (torch.ones(2), torch.tensor([1, 2])),
        torch.ones(2),
    ],
    ids=["float targets", "an attention mask", "a plain tuple", "a tensor"],
)
def test_where_nothing_says_what_is_supervised_nothing_is_guessed(batch):
    assert without_tokens(batch) is None
