"""`GradientMask`: what a skip is made of, a loss that knows its verdict and a hook on every trainable parameter.

Enters: the loss of a micro-batch and the verdict on it, a bool of the host or a 0-d tensor that only the device knows.
Leaves: a loss whose backward leaves gradients that are what it made of them, or exact zeros. Invariants: backward
always runs, on every rank; a gradient that counts keeps its bits; one that does not adds +0.0, whatever it was; a
verdict holds from where backward reaches its loss to the end of that backward, so that no other backward is touched.
Multiplying a bad loss by zero is no skip: 0 x NaN is NaN, and a finite loss can have an infinite derivative.

    hook -> bind -> (backward)     once a micro-batch
    lift -> open                   once a window

A graph of `torch.compile` can hang no hook on a loss. Within one there are `set` and `kept` in place of `bind`: there
the verdict holds until the next one, or until `open`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from trimtab.errors import UsageError
from trimtab.notices import warn_once
from trimtab.torch.backward import backward_at_hand, when_backward_ends
from trimtab.torch.decision import where_kept
from trimtab.torch.sharding import UnshardedParameters


class GradientMask:
    """Lets the gradients of a backward through, or makes zeros of them.

    Example:
        >>> weight = nn.Parameter(torch.ones(2))
        >>> mask = GradientMask(None, parameters=lambda: [weight])
        >>> mask.hook()
        >>> loss = mask.bind((weight * torch.inf).sum(), False)
        >>> loss.backward()
        >>> loss.item(), weight.grad.tolist()
        (0.0, [0.0, 0.0])
    """

    def __init__(
        self, model: nn.Module | None, *, parameters: Callable[[], Iterable[nn.Parameter]], alone: bool = False
    ) -> None:
        """Begins open; no parameter is hooked before `hook`.

        Args:
            model: The model; its `fully_shard` modules are looked for here.
            parameters: Gives every parameter that may be trained: the model's, and those that only an optimizer knows.
            alone: Whether no other process has these gradients too: only then may `lift` take some away.
        """
        self._model = model
        self._parameters = parameters
        self._unsharded = UnshardedParameters(model)
        # Held by the parameter itself, for the id of a parameter that is gone could belong to a new one.
        self._hooked: dict[int, tuple[nn.Parameter, RemovableHandle]] = {}
        self._alone = alone
        self._is_walked = self._is_in_window = False
        self._frozen: list[nn.Parameter] = []
        self._entries: list[dict[str, Any]] = []
        self._num_entries = 0
        self._active: _Verdict | None = None
        self._has_arrived = self._is_missed = False
        self._kept_in = self._active_in = -1
        self._is_set = False
        self._masks: dict[torch.device, torch.Tensor] = {}
        self._followed: set[torch.device] = set()
        self._zeros: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
        self._without_gradient: list[nn.Parameter] = []

    def hook(self) -> None:
        """Hooks every trainable parameter that has no hook yet; belongs between a micro-batch's forward and backward.

        Before a window's first `bind` it looks at every parameter: one that was frozen, or was not there, or was put in
        another's place, has its hook from then on; one that is gone loses it. After that it notices what was frozen and
        is no longer, and a module or parameter of the model that is more or less; what only took another's place, or
        only an optimizer knows, it meets in the next window. Of a thousand parameters in 750 modules the look at all
        takes 1.3 ms of the host, the others 0.03 ms; neither waits for a device. The first call
        after `fully_shard` gathers each of its modules once, on every rank. Within `torch.compile` it does nothing:
        call it once before.

        Raises:
            UsageError: If a parameter is sharded in a way that no hook on it fires, or is not materialised yet.
        """
        if torch.compiler.is_compiling():
            return
        is_looked_at = self._is_walked and self._is_in_window
        if is_looked_at and not self._is_unfrozen() and sum(map(len, self._entries)) == self._num_entries:
            return
        shown = self._unsharded.in_place_of(list(self._parameters()))
        present = {id(parameter): parameter for parameter in shown}
        for key, parameter in present.items():
            # Only one that requires a gradient can have a hook; tied weights are one parameter.
            if parameter.requires_grad and key not in self._hooked:
                handle = parameter.register_hook(self._masked)  # type: ignore[no-untyped-call]
                self._hooked[key] = (parameter, handle)
        for key in self._hooked.keys() - present.keys():
            self._hooked.pop(key)[1].remove()
        self._follow(parameter.device for parameter, _ in self._hooked.values())
        self._remember(shown)

    def is_on(self, parameter: nn.Parameter) -> bool:
        """Whether this very parameter has a hook; of a sharded one the one that backward knows has it."""
        return id(parameter) in self._hooked

    def bind(self, loss: torch.Tensor, counts: bool | torch.Tensor, *, lifts: bool = True) -> torch.Tensor:  # noqa: FBT001 - a verdict
        """The loss to call backward on: that backward, and no other, leaves zeros unless it counts.

        Backward may come at any time, more than once, or never. What else is in the same backward (a penalty that was
        added to the loss) goes the same way. Never waits, unless parameters lie on the CPU and `counts` elsewhere.

        Args:
            loss: Any shape, floating point.
            counts: A bool of the host, or a 0-d bool tensor on any device, which must not be changed afterwards.
            lifts: Whether `lift` is to take away the zeros that a False of the host leaves.

        Returns:
            `loss` itself if the host says True, else `loss` where it counts, or zeros that hang on its graph. Its
            backward raises `UsageError` where it is one for two losses with different verdicts.
        """
        self._active, self._is_set, self._is_in_window = None, False, True
        self._tell_missed()
        if counts is True:
            if loss.requires_grad:
                loss.register_hook(self._keep)  # type: ignore[no-untyped-call]
            return loss
        verdict = _Verdict(counts, lifts=lifts and self._alone)
        for device in self._masks:
            verdict.on(device)
        bound = where_kept(verdict.on(loss.device), loss)
        if bound.requires_grad:
            bound.register_hook(partial(self._begin, verdict))  # type: ignore[no-untyped-call]
        return bound

    def set(self, counts: torch.Tensor) -> None:
        """Says within a compiled graph whether the gradients of the backward that comes count.

        Args:
            counts: 0-d bool on any device, copied.
        """
        self._is_set = self._is_in_window = True  # written only: a compiled graph would be bound to what it reads here
        self._mask_on(counts.device)
        for mask in self._masks.values():
            # A copy to the CPU has to arrive before backward, which runs there, looks at it.
            mask.copy_(counts, non_blocking=mask.device.type != "cpu")

    def kept(self, x: torch.Tensor) -> torch.Tensor:
        """`x` where its gradient counts by the last `set`, else zeros that still hang on its graph.

        Args:
            x: Any shape, floating point.
        """
        return where_kept(self._mask_on(x.device), x)

    def open(self) -> None:
        """Ends a window: only what is bound is masked, and the next `hook` looks at every parameter.

        Within a backward, where an optimizer may step, that goes on as it was.
        """
        if backward_at_hand() < 0:
            self._active, self._is_set = None, False
            self._tell_missed()
        self._is_walked = self._is_in_window = False

    def lift(self) -> None:
        """Takes away the zeros that a skip left where there was no gradient: weight decay would act on them.

        Only after a verdict of the host, in one process: among several, all ranks must have the same gradients. The
        next gradient that is not masked does it too, so that nothing but the zeros goes.
        """
        without, self._without_gradient = self._without_gradient, []
        for parameter in without:
            parameter.grad = None

    def remove(self) -> None:
        """Takes every hook away."""
        for _, handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()
        self._is_walked = self._is_in_window = False

    def _keep(self, _: torch.Tensor | None) -> None:
        """The hook on a loss that the host keeps."""
        if self._active is not None:
            self._refuse()
        self._kept_in = backward_at_hand()

    def _begin(self, verdict: _Verdict, _: torch.Tensor | None) -> None:
        """The hook on a loss that may not count: its verdict holds from here to the end of this backward."""
        at_hand = backward_at_hand()
        active = self._active
        is_alike = active is None or active is verdict or (active.counts is verdict.counts is False)
        if self._kept_in == at_hand or not is_alike:
            self._refuse()
        if self._active_in != at_hand:  # also where one has raised, and is tried again
            self._active, self._active_in, self._has_arrived = verdict, at_hand, False
            when_backward_ends(self._end)
        if verdict.lifts:
            self.lift()
            self._without_gradient = _without_gradient(self._parameters())

    def _end(self) -> None:
        self._is_missed = self._active is not None and not self._has_arrived
        self._active = None

    def _refuse(self) -> NoReturn:
        self._active = None
        raise UsageError(
            "One backward reached the losses of two micro-batches, as that of (a + b).backward() does: there is one "
            "mask in a backward, so that what was kept would be lost, or what was skipped would count. Call backward "
            "on each loss by itself."
        )

    def _tell_missed(self) -> None:
        is_missed, self._is_missed = self._is_missed, False
        if is_missed:
            warn_once(
                "guard",
                "The backward of a guarded loss reached no parameter of the guarded model: a micro-batch that is "
                "skipped is not kept out of what is trained. Is it this model that computes the loss? Give the guard "
                "that one, and shard, wrap and unfreeze it before. Said once.",
                cause="no gradient of the guarded model",
            )

    def _masked(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """The hook on a parameter; where no loss that may not count is in this backward, it costs this call only.

        There is no gradient where the loss leaves out the only output of the model that holds the parameter, and the
        outputs have passed a function that hands back what it was given, as DDP's have.
        """
        if self._active is None and not self._is_set:
            if self._without_gradient:
                self.lift()
            return None
        self._has_arrived = True
        if gradient is None:
            return None
        if not gradient.is_sparse:
            return self._where(gradient)
        return torch.sparse_coo_tensor(
            gradient._indices(),
            self._where(gradient._values()),
            gradient.shape,
            is_coalesced=gradient.is_coalesced(),
            check_invariants=False,  # the indices are autograd's own; unsaid, torch warns
        )

    def _follow(self, devices: Iterable[torch.device]) -> None:
        """Has a mask wherever there is a parameter, and none where a model was: each costs a copy a micro-batch."""
        found = list(dict.fromkeys(devices))
        for device in found:
            self._mask_on(device)
        for device in self._followed - set(found):
            del self._masks[device]
        self._followed = set(found)

    def _remember(self, shown: Sequence[nn.Parameter]) -> None:
        """Remembers by what a later call finds that something is new."""
        self._is_walked, self._is_in_window = True, False
        self._frozen = [parameter for parameter in shown if not parameter.requires_grad]
        num_entries = sum(map(len, self._entries))
        if self._model is not None and (num_entries != self._num_entries or not self._entries):
            modules = list(self._model.modules())
            # No public name tells their number without a walk, which is what takes the time.
            self._entries = [entries for module in modules for entries in (module._parameters, module._modules)]
            num_entries = sum(map(len, self._entries))
        self._num_entries = num_entries

    def _is_unfrozen(self) -> bool:
        return any(parameter.requires_grad for parameter in self._frozen)

    def _where(self, gradient: torch.Tensor) -> torch.Tensor:
        key = (gradient.device, gradient.dtype)
        zero = self._zeros.get(key)
        if zero is None:
            # One a dtype, made once: Python's 0.0 costs three operations a gradient, and a zero of another dtype would
            # widen a 0-d gradient in half precision.
            zero = self._zeros[key] = torch.zeros((), dtype=gradient.dtype, device=gradient.device)
        mask = self._active.on(gradient.device) if self._active is not None else self._mask_on(gradient.device)
        return torch.where(mask, gradient, zero)

    def _mask_on(self, device: torch.device) -> torch.Tensor:
        """What `set` writes, one tensor a device, changed in place: compiled graphs hold the tensor itself."""
        mask = self._masks.get(device)
        if mask is None:
            mask = torch.ones((), dtype=torch.bool, device=device)
            for other in self._masks.values():
                mask.copy_(other)
                break
            self._masks[device] = mask
        return mask


class _Verdict:
    """What is bound to one loss.

    Attributes:
        counts: Whether its gradients count.
        lifts: Whether zeros that it leaves are lifted.
    """

    __slots__ = ("_on", "counts", "lifts")

    def __init__(self, counts: bool | torch.Tensor, *, lifts: bool) -> None:  # noqa: FBT001 - a verdict
        self.counts = counts
        self.lifts = lifts and counts is False
        self._on: dict[torch.device, torch.Tensor] = {}

    def on(self, device: torch.device) -> torch.Tensor:
        """The verdict there, 0-d; a tensor that is never changed, for a backward of a backward may need it again."""
        mask = self._on.get(device)
        if mask is None:
            if isinstance(self.counts, bool):
                mask = torch.full((), self.counts, dtype=torch.bool, device=device)
            else:
                # A copy to the CPU has to arrive before backward, which runs there, looks at it.
                mask = self.counts.to(device, non_blocking=device.type != "cpu")
            self._on[device] = mask
        return mask


def _without_gradient(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if parameter.requires_grad and parameter.grad is None]
