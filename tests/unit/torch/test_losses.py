"""Tokens to rows: hand-worked sums, and clear errors for what makes no sense."""

import math

import numpy as np
import pytest
import torch

from trimtab import UsageError
from trimtab.torch.losses import leading_row, reduce_to_rows


def test_token_losses_are_summed_per_row_over_supervised_tokens_only():
    # given
    losses = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
    mask = torch.tensor([[True, False, True], [False, False, False]])

    # when
    reduced = reduce_to_rows(losses, rows=[7, 9], mask=mask)

    # then
    assert reduced.rows.tolist() == [7, 9]
    assert reduced.row_loss_sums.tolist() == [5.0, 0.0]
    assert reduced.row_num_tokens.tolist() == [2, 0]
    assert (reduced.loss_sum.item(), reduced.num_tokens.item()) == (5.0, 2)
    assert not reduced.packed


def test_a_nan_behind_the_mask_reaches_neither_sum_nor_gradient():
    losses = torch.tensor([[1.0, math.nan]], requires_grad=True)

    reduced = reduce_to_rows(losses, rows=[0], mask=torch.tensor([[True, False]]))
    reduced.loss_sum.backward()

    assert reduced.loss_sum.item() == 1.0
    assert losses.grad.tolist() == [[1.0, 0.0]]


def test_rows_of_every_token_are_handed_over_as_packed():
    losses = torch.tensor([[1.0, 2.0, 4.0]])

    reduced = reduce_to_rows(losses, rows=torch.tensor([[3, 3, 5]]))

    assert reduced.packed
    assert reduced.rows.tolist() == [3, 3, 5]
    assert reduced.row_loss_sums.tolist() == [1.0, 2.0, 4.0]
    assert reduced.row_num_tokens.tolist() == [1, 1, 1]


def test_sample_losses_are_weighted_by_their_tokens():
    losses = torch.tensor([2.0, 3.0, math.nan])

    reduced = reduce_to_rows(losses, rows=[0, 1, 2], per="sample", tokens=[10, 30, 0])

    assert (reduced.loss_sum.item(), reduced.num_tokens.item()) == (110.0, 40)
    assert reduced.row_loss_sums.tolist() == [20.0, 90.0, 0.0]
    assert reduced.row_num_tokens.tolist() == [10, 30, 0]


def test_sample_losses_count_one_token_each_unless_told():
    reduced = reduce_to_rows(torch.tensor([2.0, 4.0]), rows=[5, 5], per="sample")

    assert (reduced.loss_sum.item(), reduced.num_tokens.item()) == (6.0, 2)
    assert not reduced.packed  # row 5 occurred twice


def test_half_precision_losses_are_summed_in_float32():
    losses = torch.full((1, 4096), 1.0, dtype=torch.bfloat16)

    reduced = reduce_to_rows(losses, rows=[0])

    assert reduced.loss_sum.dtype == torch.float32
    assert reduced.loss_sum.item() == 4096.0


def leader(reduced):
    return leading_row(reduced.rows, reduced.row_loss_sums, reduced.row_num_tokens)


def test_the_leading_row_is_not_finite_or_has_the_largest_sum():
    losses = torch.tensor([[1.0, 5.0, 1.0, 3.0]])
    packed = torch.tensor([[7, 9, 7, 7]])

    assert leader(reduce_to_rows(losses, rows=packed[:, :1].flatten())) == (7, 0)
    # 1 + 1 + 3 = 5 is no more than 5: the first of equals
    assert leader(reduce_to_rows(losses, rows=packed)) == (7, 0)
    assert leader(reduce_to_rows(losses, rows=packed, mask=torch.tensor([[True, True, False, True]]))) == (9, 0)
    losses[0, 2:] = math.nan
    assert leader(reduce_to_rows(losses, rows=packed)) == (7, 1)  # one row, of two such tokens
    losses[0, 3] = 3.0
    losses[0, 2] = 1.0
    losses[0, 1] = -math.inf  # the least of all sums, and the one to look at
    assert leader(reduce_to_rows(losses, rows=packed)) == (9, 1)
    losses[0, 0] = math.nan
    assert leader(reduce_to_rows(losses, rows=packed)) == (7, 2)
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    assert leader(reduce_to_rows(losses, rows=packed, mask=nothing)) is None


def test_rows_may_come_in_any_container_of_integers():
    losses = torch.ones(3)
    for rows in ([1, 2, 3], np.array([3, 2, 1])[::-1], np.array([1, 2, 3], np.uint64), torch.tensor([1, 2, 3]).int()):
        assert reduce_to_rows(losses, rows=rows, per="sample").rows.tolist() == [1, 2, 3]
    assert reduce_to_rows(torch.ones(0), rows=[], per="sample").rows.tolist() == []


TWO = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(losses=torch.ones(()), rows=[0]), r"found shape \(\).*reduction=\"none\""),
        (dict(losses=torch.ones(2, 3, 4), rows=[0, 1]), r"found shape \(2, 3, 4\)"),
        (dict(losses=torch.ones(4), rows=[0, 1, 2, 3]), r'per="token" or per="sample"'),
        (dict(losses=TWO, rows=[0, 1], per="sample"), r'per="sample" goes with 1-d losses'),
        (dict(losses=TWO, rows=[0, 1], per="row"), r'per must be "token" or "sample", found \'row\''),
        (dict(losses=TWO, rows=[0, 1, 2]), r"rows has shape \(3,\), expected \(2,\) or \(2, 3\)"),
        (dict(losses=TWO, rows=[0.0, 1.0]), r"rows must be dataset rows \(int64\), found dtype torch.float32"),
        (dict(losses=TWO, rows=[True, False]), r"found dtype torch.bool"),
        (dict(losses=TWO, rows=["a", "b"]), r"rows must be dataset rows \(int64\), found list"),
        (dict(losses=TWO, rows=None), r"rows must be dataset rows \(int64\), found NoneType"),
        (dict(losses=TWO, rows=[2**63, 1]), r"rows must be dataset rows \(int64\), found list: .*[Oo]verflow"),
        (dict(losses=TWO, rows=np.array([2**63, 1], np.uint64)), r"within int64, found 9223372036854775808"),
        (dict(losses=TWO, rows=[0, 1], mask=torch.ones(2, dtype=torch.bool)), r"mask has shape \(2,\)"),
        (dict(losses=TWO, rows=[0, 1], mask=torch.ones(2, 3)), r"mask must be a bool or integer tensor"),
        (dict(losses=TWO, rows=[0, 1], tokens=[1, 1]), r'tokens= goes with per="sample"'),
        (dict(losses=torch.ones(2), rows=[0, 1], per="sample", tokens=[1]), r"tokens has shape \(1,\), expected"),
        (dict(losses=torch.ones(2), rows=[0, 1], per="sample", tokens=["a", "b"]), r"tokens must be counts"),
        (dict(losses=torch.ones(2), rows=[0, 1], per="sample", tokens=[1.0, 1.0]), r"found dtype torch.float32"),
        (dict(losses=torch.ones(2), rows=[0, 1], per="sample", tokens=[-5, 10]), r"found -5 to 10"),
        (dict(losses=torch.ones(2), rows=[0, 1], per="sample", tokens=[2**31, 10]), r"found 10 to 2147483648"),
        (dict(losses=torch.ones(2, dtype=torch.int64), rows=[0, 1], per="token"), r"floating-point tensor"),
        (dict(losses=[1.0], rows=[0]), r"floating-point tensor, found list"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_was_found(arguments, message):
    losses = arguments.pop("losses")
    with pytest.raises(UsageError, match=message):
        reduce_to_rows(losses, **arguments)
