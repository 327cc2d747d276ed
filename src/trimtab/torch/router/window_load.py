"""The load of a whole batch: summed over the ranks that train on it, and over the micro-batches of a window.

Enters: what each layer of one micro-batch counted. Leaves: the same for the batch it is a part of. Invariants: values
are the same bits on every rank; the gradient that hangs on them is this rank's part times the number of ranks, so that
the mean over ranks, which DDP and FSDP2 make of gradients, is that of the batch. One collective a call.

The load-balance loss of a window is E / k * sum_i C_i S_i / N^2, where C (counts) and S (sums of the softmax) are sums
over its micro-batches. Its gradient is C_i times that of S_i: a micro-batch can go backward exactly only once the
counts of all are known, and those of later ones are known after their forward. Two ways out:

    so far   each micro-batch takes the counts up to its own: exact at the last one, nothing to add to a loop
    ahead    the counts of all come first, by a forward without gradients: exact at every one, costs that forward

Shapes: L layers, E experts of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from trimtab.errors import UsageError
from trimtab.torch.backward import backward_at_hand
from trimtab.torch.ranks import Ranks
from trimtab.torch.router.expert_load import layer_counts
from trimtab.torch.router.inputs import Logits, layers_of, top_k_of_layers


class Load(NamedTuple):
    """What one router did to tokens.

    Attributes:
        counts: (E,) tokens of each expert, without a gradient.
        num_counted: 0-d, the tokens behind `counts`.
        prob_sums: (E,) float32 or float64, sum of the full softmax over tokens, differentiable.
        num_tokens: 0-d, the tokens behind `prob_sums`.
    """

    counts: torch.Tensor
    num_counted: torch.Tensor
    prob_sums: torch.Tensor
    num_tokens: torch.Tensor

    def shares(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The shares f and P, (E,) each; zeros where there is no token."""
        dtype = self.prob_sums.dtype
        f = self.counts.to(dtype) / self.num_counted.clamp(min=1).to(dtype)
        return f, self.prob_sums / self.num_tokens.clamp(min=1).to(dtype)


class WindowLoad:
    """The load of an accumulation window so far, for `load_balancing_loss(..., global_batch=True, window=)`.

    Without anything else each micro-batch's loss takes the f of the window up to itself. That is exact at the last
    micro-batch of a window and approximate before: f of a later micro-batch cannot be known before its forward. Where
    it is to be exact, run the forward of every micro-batch without gradients first and hand its logits to
    `count_ahead`: then the mean of the micro-batches' losses is the loss of the window as one batch, and the mean of
    their gradients is its gradient, however the tokens are spread over them.

    One for all layers where they are handed over as one list; one for each where each layer calls by itself. What is
    computed again in a backward (activation checkpointing) is not counted again, and what has no gradients (an
    evaluation) is not counted: its loss is that of the window so far and itself. It holds 2 numbers an expert and layer
    and nothing of a graph, belongs to no checkpoint (windows end before a save), and stays outside of `torch.compile`.

    Example:
        >>> window = WindowLoad()
        >>> for logits in (torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])):
        ...     window.count_ahead(logits, top_k=1)
        >>> window.num_micros
        2
        >>> window.end()
    """

    def __init__(self) -> None:
        """Begins with an empty window."""
        self._sums: list[torch.Tensor] = []
        self._forget()

    def _forget(self) -> None:
        self._num_micros = self._num_taken = 0
        self._is_ahead = self._is_summed = self._was_without_gradients = False
        self._top_k: int | None = None

    @property
    def num_micros(self) -> int:
        """Micro-batches that are counted in the window."""
        return self._num_micros

    def count_ahead(self, logits: Logits, *, top_k: int, mask: torch.Tensor | None = None) -> None:
        """Counts a micro-batch of the window whose loss is taken later, as all of the window's must be.

        No collective, no wait. The forward behind the logits needs no gradient, and has to route as the later one does:
        with dropout or noise before a router the counts are of other choices.

        Args:
            logits: As in `load_balancing_loss`.
            top_k: As in `load_balancing_loss`.
            mask: As in `load_balancing_loss`.

        Raises:
            UsageError: A loss of this window was taken already; or a shape, dtype or `top_k` makes no sense, or is
                another than before.
        """
        if self._num_taken or (self._num_micros and not self._is_ahead):
            raise UsageError(
                f"count_ahead was called after {self._num_taken} losses of this window had been taken: count all of "
                "its micro-batches first, and call end() after the optimizer step."
            )
        layers = layers_of(logits, mask=mask)
        top_k = top_k_of_layers(top_k, layers=layers)
        self._refuse_other_top_k(top_k)
        self._is_ahead = True
        self._sums = self._with([_counted(layer_counts(layer, top_k=top_k), layer.num_tokens) for layer in layers])
        self._num_micros += 1

    def end(self) -> None:
        """Forgets the window; call it after each optimizer step."""
        self._sums = []
        self._forget()

    def take(self, sums: Sequence[torch.Tensor], *, top_k: int, ranks: Ranks) -> tuple[list[torch.Tensor], int | None]:
        """Takes part in the window with one micro-batch; for `whole_batch`.

        Args:
            sums: A layer each, (E + 1,) float64: counts and their tokens, over all ranks.
            top_k: Experts a token is sent to.
            ranks: Those over which what was counted ahead is summed, the first time.

        Returns:
            The window's sums, likewise; and its number of micro-batches where they were counted ahead.

        Raises:
            UsageError: The micro-batch has other layers or another `top_k` than those before, or is one too many.
        """
        self._refuse_other_top_k(top_k)
        is_in_backward = backward_at_hand() != -1
        # Within a backward a forward runs again, whose micro-batch is in the sums; but for that of a reentrant
        # checkpoint, which had no gradients when it ran first, and could not be told from an evaluation.
        is_again = is_in_backward and self._num_taken > 0 and not self._was_without_gradients
        is_counted = not is_again and (is_in_backward or torch.is_grad_enabled())
        if not is_in_backward:
            self._was_without_gradients = not is_counted
        if is_counted:
            self._num_taken += 1
        if not self._is_ahead:
            if is_again:
                self._refuse_unlike(sums)
                return self._sums, None
            with_it = self._with(sums)
            if is_counted:
                self._sums = with_it
                self._num_micros += 1
            return with_it, None
        self._refuse_unlike(sums)
        if self._num_taken > self._num_micros:
            raise UsageError(
                f"{self._num_taken} losses were taken in a window of which {self._num_micros} micro-batches were "
                "counted ahead: count every one, and call end() after the optimizer step."
            )
        if not self._is_summed:
            self._sums = _split(ranks.summed(torch.cat(self._sums)), like=self._sums)
            self._is_summed = True
        return self._sums, self._num_micros

    def _with(self, sums: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The window's sums and those of one more micro-batch."""
        if not self._sums:
            return [more.to(sums[0].device) for more in sums]
        self._refuse_unlike(sums)
        return [total + more.to(total.device) for total, more in zip(self._sums, sums, strict=True)]

    def _refuse_other_top_k(self, top_k: int) -> None:
        if self._top_k is None:
            self._top_k = top_k
        elif self._top_k != top_k:
            raise UsageError(
                f"A micro-batch has top_k={top_k} and the window so far {self._top_k}: their counts do not add up. "
                "Change top_k between windows, and call end() after the optimizer step."
            )

    def _refuse_unlike(self, sums: Sequence[torch.Tensor]) -> None:
        found, before = ([layer.shape[0] - 1 for layer in layers] for layers in (sums, self._sums))
        if found != before:
            raise UsageError(
                f"A micro-batch has layers of {found} experts and the window so far of {before}: hand over the same "
                "layers each time, or give each layer that calls by itself a WindowLoad of its own; call end() after "
                "the optimizer step."
            )


def whole_batch(loads: Sequence[Load], *, top_k: int, ranks: Ranks, window: WindowLoad | None) -> list[Load]:
    """The load of the whole batch for that of this rank's micro-batch; one collective where not alone.

    Args:
        loads: One a layer.
        top_k: Experts a token is sent to.
        ranks: Those that train on the rest of the batch.
        window: Where the batch is that of an accumulation window.

    Returns:
        One a layer, on the device of each.

    Raises:
        UsageError: The window does not fit.
    """
    device = loads[0].counts.device
    own = [
        torch.cat([_counted(load.counts, load.num_counted), load.prob_sums.detach().double()]).to(device)
        for load in loads
    ]
    # float64, in which integers add exactly to 2**53; a NaN of one rank's logits is then every rank's.
    together = _split(ranks.summed(torch.cat(own)), like=own)
    sums = [figures[: load.counts.shape[0] + 1] for figures, load in zip(together, loads, strict=True)]
    counted, num_micros = (sums, None) if window is None else window.take(sums, top_k=top_k, ranks=ranks)
    whole = []
    for load, figures, in_window in zip(loads, together, counted, strict=True):
        num_experts, dtype, place = load.counts.shape[0], load.prob_sums.dtype, load.prob_sums.device
        # Counted ahead, a micro-batch's part of the window's sum is over the window's tokens, times the micro-batches
        # over whose losses a mean is taken.
        factor = 1 if num_micros is None else num_micros
        num_tokens = figures[num_experts] if num_micros is None else in_window[num_experts]
        value = (figures[num_experts + 1 :] * factor).to(place, dtype)
        hung = load.prob_sums - load.prob_sums.detach()  # exact zeros, for the gradient
        whole.append(
            Load(
                counts=in_window[:num_experts].to(place),
                num_counted=in_window[num_experts].to(place),
                prob_sums=value + hung * (factor * ranks.world_size),
                num_tokens=num_tokens.to(place),
            )
        )
    return whole


def _counted(counts: torch.Tensor, num_tokens: torch.Tensor) -> torch.Tensor:
    return torch.cat([counts, num_tokens[None]]).double()


def _split(flat: torch.Tensor, *, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.split(flat, [layer.shape[0] for layer in like]))
