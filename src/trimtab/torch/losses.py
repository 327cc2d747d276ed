"""From losses of tokens or samples to losses of dataset rows, on the device, without a wait.

Enters: unreduced losses, which of them count, and the dataset row of each. Leaves: `RowLosses`, whose `loss_sum`
carries the gradient and whose per-row columns are detached, ready for the recorder.

Shapes: B sequences in a micro-batch, T tokens in a sequence, N entries of one dimension, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from trimtab.errors import UsageError
from trimtab.guard.figures import Leader

Per = Literal["token", "sample"]


class RowLosses(NamedTuple):
    """One micro-batch, reduced to rows.

    Attributes:
        loss_sum: 0-d, float32 or float64, differentiable: sum of the loss over supervised tokens.
        num_tokens: 0-d int64: their count.
        rows: (R,) int64 dataset rows.
        row_loss_sums: (R,) detached sums.
        row_num_tokens: (R,) int64 counts.
        packed: The R entries are tokens of packed sequences, to be summed per row by the recorder.
        num_entries: Losses that were handed over, supervised or not.
    """

    loss_sum: torch.Tensor
    num_tokens: torch.Tensor
    rows: torch.Tensor
    row_loss_sums: torch.Tensor
    row_num_tokens: torch.Tensor
    packed: bool
    num_entries: int


def leading_row(rows: Any, loss_sums: Any, num_tokens: Any) -> Leader | None:
    """The row of a micro-batch that is to be looked at first.

    Args:
        rows: (R,) dataset rows on the host, or on their way to it: then this waits.
        loss_sums: (R,) likewise.
        num_tokens: (R,) likewise.

    Returns:
        None where no row has tokens, or where it is not known what each of them cost.
    """
    counted = np.asarray(num_tokens) > 0
    row, sums = np.asarray(rows)[counted], np.asarray(loss_sums)[counted]
    if not row.size:
        return None
    bad = row[~np.isfinite(sums)]
    if bad.size:
        return Leader(int(bad[0]), num_nonfinite=np.unique(bad).size)
    distinct, place = np.unique(row, return_inverse=True)  # a packed row has an entry a token
    return Leader(int(distinct[np.bincount(place, weights=sums).argmax()]))


def rows_alone(rows: torch.Tensor, *, loss_sum: torch.Tensor, num_tokens: torch.Tensor) -> RowLosses:
    """A micro-batch of which the whole loss is known, and not what each row cost.

    Args:
        rows: Dataset rows, any shape; each is recorded once, with 0 tokens.
        loss_sum: 0-d, sum of the loss over supervised tokens.
        num_tokens: 0-d int64, their count.
    """
    flat = rows.flatten()
    nothing = torch.zeros(flat.shape, dtype=torch.int64)
    return RowLosses(loss_sum, num_tokens, flat.clone(), nothing, nothing, packed=rows.dim() == 2, num_entries=0)


def reduce_to_rows(
    losses: torch.Tensor,
    *,
    rows: torch.Tensor | Sequence[int],
    per: Per | None = None,
    mask: torch.Tensor | None = None,
    tokens: torch.Tensor | Sequence[int] | None = None,
) -> RowLosses:
    """Sums unreduced losses over supervised tokens, in all and per dataset row.

    Args:
        losses: (B, T) token losses, or (N,) losses of tokens or samples; floating, summed in at least float32.
        rows: Dataset rows: (B,) or (B, T) for 2-d losses, (N,) for 1-d ones; integers.
        per: What an entry of `losses` is; "token" for 2-d losses, required for 1-d ones.
        mask: Which entries are supervised, in the shape of `losses`; bool or integer (not 0). None: all.
        tokens: (N,) supervised tokens behind each loss, for `per="sample"`; default 1. The micro-batch's loss is then
            weighted by them.

    Returns:
        The reduced losses.

    Raises:
        UsageError: If a shape, dtype or combination makes no sense; the message gives the shapes found.
    """
    if not isinstance(losses, torch.Tensor) or not losses.is_floating_point():
        raise UsageError(f"losses must be a floating-point tensor, found {_describe(losses)}.")
    if losses.dim() not in (1, 2):
        raise UsageError(
            f"losses must be 1-d or 2-d, found shape {tuple(losses.shape)}: pass unreduced losses, for example "
            'F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels).'
        )
    if losses.dim() == 1 and per is None:
        raise UsageError(
            f"losses of shape {tuple(losses.shape)} may be one per token or one per sample: say which, "
            'per="token" or per="sample".'
        )
    if per not in (None, "token", "sample"):
        raise UsageError(f'per must be "token" or "sample", found {per!r}.')
    if losses.dim() == 2 and per == "sample":
        raise UsageError(f'per="sample" goes with 1-d losses, found shape {tuple(losses.shape)}.')
    if tokens is not None and per != "sample":
        raise UsageError('tokens= goes with per="sample": for token losses the mask says which are supervised.')
    row_ids = _row_ids(rows, losses)
    supervised = _supervised(mask, losses)
    wide = losses if losses.dtype in (torch.float32, torch.float64) else losses.float()
    weights = _token_counts(tokens, losses)
    if weights is not None:
        wide = wide * weights
        supervised = weights > 0 if supervised is None else supervised & (weights > 0)
    # where, not a product: a masked entry may hold NaN.
    counted = wide if supervised is None else torch.where(supervised, wide, 0.0)
    detached = counted.detach()
    if supervised is None:
        counts = torch.ones_like(losses, dtype=torch.int64)
    elif weights is None:
        counts = supervised.to(torch.int64)
    else:
        counts = torch.where(supervised, weights, 0)
    packed = per != "sample" and row_ids.dim() == losses.dim()
    if losses.dim() == 2 and not packed:
        detached, counts = detached.sum(1), counts.sum(1)
    # Copies: the recorder reads them later, when the caller may have filled its buffers anew.
    return RowLosses(
        loss_sum=counted.sum(),
        num_tokens=counts.sum(),
        rows=row_ids.flatten().clone(),
        row_loss_sums=detached.flatten().clone(),
        row_num_tokens=counts.flatten(),
        packed=packed,
        num_entries=losses.numel(),
    )


def _row_ids(rows: Any, losses: torch.Tensor) -> torch.Tensor:
    row_ids = _integers(rows, name="rows", meaning="dataset rows")
    shapes = [losses.shape[:1], losses.shape]
    if row_ids.shape not in shapes:
        expected = " or ".join(str(tuple(shape)) for shape in dict.fromkeys(shapes))
        raise UsageError(
            f"rows has shape {tuple(row_ids.shape)}, expected {expected} for losses of shape {tuple(losses.shape)}."
        )
    return row_ids.to(torch.int64)


def _supervised(mask: Any, losses: torch.Tensor) -> torch.Tensor | None:
    if mask is None:
        return None
    if not isinstance(mask, torch.Tensor) or mask.is_floating_point() or mask.is_complex():
        raise UsageError(f"mask must be a bool or integer tensor (which entries count), found {_describe(mask)}.")
    if mask.shape != losses.shape:
        raise UsageError(f"mask has shape {tuple(mask.shape)}, expected that of losses, {tuple(losses.shape)}.")
    return mask if mask.dtype == torch.bool else mask != 0


def _token_counts(tokens: Any, losses: torch.Tensor) -> torch.Tensor | None:
    if tokens is None:
        return None
    counts = _integers(tokens, name="tokens", meaning="counts of supervised tokens")
    if counts.shape != losses.shape:
        raise UsageError(f"tokens has shape {tuple(counts.shape)}, expected that of losses, {tuple(losses.shape)}.")
    if counts.device.type == "cpu" and counts.numel() and not 0 <= int(counts.min()) <= int(counts.max()) < 2**31:
        raise UsageError(f"tokens must lie between 0 and 2**31 - 1, found {int(counts.min())} to {int(counts.max())}.")
    return counts.to(losses.device, non_blocking=True)


def _integers(values: Any, *, name: str, meaning: str) -> torch.Tensor:
    """Whole numbers of any container or dtype, as int64."""
    if isinstance(values, np.ndarray):
        values = np.ascontiguousarray(values)  # torch takes no negative strides
        if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
            raise UsageError(f"{name} must be {meaning} within int64, found {values.max()}.")
    try:
        integers = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name} must be {meaning} (int64), found {_describe(values)}: {error}.") from error
    if integers.numel() == 0:  # an empty list has no dtype
        return integers.to(torch.int64)
    if integers.is_floating_point() or integers.is_complex() or integers.dtype == torch.bool:
        raise UsageError(f"{name} must be {meaning} (int64), found dtype {integers.dtype}.")
    return integers.to(torch.int64)


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype}"
    return f"{type(value).__name__}"
