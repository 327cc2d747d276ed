"""Hooks on a model and its routers: what routers gave back in the forwards of training, and nothing else.

Enters: calls of the model and of its routers. Leaves: `RouterLayers`, and the tokens that went into the model.
Invariant: the hooks change nothing, raise nothing, wait for nothing, and keep neither the watch nor the model alive.

    a pass      from the model's entrance to its return; it counts where the model trains and gradients are on, and
                nothing of it where it raises
    in a pass   a router's output is kept, detached; at its end the sums of all layers are made, if there is much
    outside     a call counts where the router trains and no backward is under way: of a model whose parts are called
                one by one. The recompute of activation checkpointing is a call within backward, and does not count
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from trimtab.torch.backward import backward_at_hand, is_transformed
from trimtab.torch.module_names import module_inside
from trimtab.torch.router.entrance import Entered, argument_names, entered
from trimtab.torch.router.families import Read, Router
from trimtab.torch.router.layers import RouterLayers
from trimtab.torch.router.reading import Taken

_NOTHING_ENTERED: Final = Entered(None, None, None)
_MOST_MASKS: Final = 16
"""Attention masks that are kept until they are summed at once."""

_OUTER_DOOR: Final = 0
_INNER_DOOR: Final = 1
"""Of the model inside of DistributedDataParallel, which a loop may call by itself, as for an evaluation."""

_PADDING_UNKNOWN: Final = (
    "a part of the model was called outside of the model's own forward, where nobody says which tokens are padding, so "
    "that it is counted, if there is any: call the model, or hand over tap(mask=)"
)

_INTERRUPTED: Final = (
    "a forward did not come to its end, as by an interrupt: what was heard from it on is in no figure of its report"
)

_taps: weakref.WeakSet[RouterTap] = weakref.WeakSet()


@contextmanager
def unheard() -> Iterator[None]:
    """Within it no watch counts what is called: forwards that are no training, though they look like it."""
    before = [(tap, tap.is_deaf) for tap in list(_taps)]
    for tap, _ in before:
        tap.is_deaf = True
    try:
        yield
    finally:
        for tap, was_deaf in before:
            tap.is_deaf = was_deaf


class _Pass(NamedTuple):
    """A forward of the model, while it calls itself; or none, outside of which all is."""

    counts: bool | None
    door: int
    is_inside: bool
    begin: int
    is_summed: bool
    entered: Entered
    error: int


_NO_PASS: Final = _Pass(None, _OUTER_DOOR, False, 0, False, _NOTHING_ENTERED, 0)


class RouterTap:
    """The hooks of one watch, and what they heard since it was last taken.

    Attributes:
        layers: What routers gave back.
        is_deaf: Whether what is called now counts for nobody.
    """

    def __init__(self, model: nn.Module, routers: Sequence[Router]) -> None:
        """Puts the hooks; they go with this object.

        Args:
            model: The outermost module that is called in training.
            routers: Its routers.
        """
        inside = module_inside(model)
        self._model = inside
        self._names = argument_names(inside)
        # The two halves of such a model see sequences of their own.
        self._has_one_entrance = not getattr(getattr(inside, "config", None), "is_encoder_decoder", False)
        self.layers = RouterLayers(routers)
        self.is_deaf = False
        self._is_on = True
        self._thread = 0
        self._outer: list[_Pass] = []
        self._go_on_in(_NO_PASS)
        self._forget_tokens()

        me = weakref.ref(self)
        doors = [model]
        if isinstance(model, DistributedDataParallel) and model.module is inside:
            doors.append(inside)
        handles = []
        for door, module in enumerate(doors):
            handles.append(module.register_forward_pre_hook(_Hook(me, RouterTap._enter, door), with_kwargs=True))
            # Also of a forward that raises: else what is called next would look like a part of it.
            handles.append(module.register_forward_hook(_Hook(me, RouterTap._leave, door), always_call=True))
        for place, router in enumerate(routers):
            handles.append(router.module.register_forward_hook(_Hook(me, RouterTap._hear, place)))
        self._take_off: Callable[[], Any] = weakref.finalize(self, _remove, handles)
        _taps.add(self)

    def remove(self) -> None:
        """Takes the hooks off; nothing counts any more."""
        self._is_on = False
        self._take_off()

    def hold(self, place: int, read: Read, *, mask: torch.Tensor | None) -> None:
        """Keeps logits of a layer, where they are of a training's forward; as `RouterLayers.hold`.

        Args:
            place: Which layer.
            read: Logits, and the chosen experts.
            mask: (T,) bool; None: what went into the model says which tokens are real.
        """
        try:
            if self._is_on and self._counts():
                self._hold(place, read, mask=mask)
        except Exception as error:  # noqa: BLE001 - what measures must not cost the run
            self.layers.go_without(error)

    def end_passes(self) -> None:
        """Forgets forwards that never came to an end, as one that was interrupted; belongs outside of any."""
        if self._outer:
            self.layers.drop_held(self._outer[1].begin if len(self._outer) > 1 else self._begin)
            self.layers.notes.add(_INTERRUPTED)
            self._are_all = False
            self._outer.clear()
            self._go_on_in(_NO_PASS)

    def _go_on_in(self, outer: _Pass) -> None:
        # Apart, and not as one value: torch.compile looks at those alone that a router's hook reads.
        self._pass, self._door, self._is_inside, self._begin, self._is_summed, self._entered, self._error = outer

    def _hold(self, place: int, read: Read, *, mask: torch.Tensor | None) -> None:
        if self._pass is None and mask is None:
            self.layers.notes.add(_PADDING_UNKNOWN)
        self.layers.hold(place, read, mask=self._entered.mask if mask is None else mask)
        if self._pass is None:
            self.layers.make_sums_if_many()
        elif self.layers.is_full:
            self.layers.make_sums()
            self._begin, self._is_summed = 0, True

    def taken(self) -> Taken:
        """What was heard since it was last taken; raises nothing. Belongs outside of any forward."""
        layers = self.layers
        sums: dict[str, torch.Tensor] = {}
        try:
            self.end_passes()
            layers.make_sums()
            sums = layers.taken()
            self._sum_masks()
        except Exception as error:  # noqa: BLE001 - other ranks wait for this one, whatever happens to it
            layers.go_without(error)
        are_all = self._are_all and not layers.has_lost
        taken = Taken(sums, self._num_tokens, self._num_real_tokens, are_all=are_all, has_lost=layers.has_lost)
        layers.has_lost = False
        self._forget_tokens()
        return taken

    def _forget_tokens(self) -> None:
        self._num_tokens = 0
        self._num_real_tokens: torch.Tensor | None = None
        self._masks: list[torch.Tensor] = []
        self._are_all = self._has_one_entrance

    def _enter(self, door: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        is_eager = not torch.compiler.is_compiling()
        if self._pass is not None:
            if is_eager and self._thread != get_ident():
                self._are_all = False
                self.layers.notes.add(
                    "several threads called the model at once, and their forwards are not told apart: counts are rough"
                )
            if door == _INNER_DOOR and not self._is_inside:
                self._is_inside = True
                return
        self._outer.append(
            _Pass(self._pass, self._door, self._is_inside, self._begin, self._is_summed, self._entered, self._error)
        )
        counts = self._model.training and torch.is_grad_enabled() and not self.is_deaf
        error = 0
        if is_eager:
            counts = counts and not self._is_in_transform()
            self._thread, error = get_ident(), id(sys.exc_info()[1])
        seen = entered(self._names, args, kwargs) if counts else _NOTHING_ENTERED
        self._go_on_in(_Pass(counts, door, door == _INNER_DOOR, self.layers.num_held, False, seen, error))

    def _leave(self, door: int, args: tuple[Any, ...], output: Any) -> None:
        if door == _INNER_DOOR and self._door == _OUTER_DOOR:
            self._is_inside = False
            return
        if not self._outer:
            return  # as of a pass that was forgotten
        # Asked first: torch.compile would else look at what the model gave.
        is_eager = not torch.compiler.is_compiling()
        has_raised = is_eager and output is None and id(sys.exc_info()[1]) not in (id(None), self._error)
        counts, begin, is_summed, seen = self._pass, self._begin, self._is_summed, self._entered
        self._go_on_in(self._outer.pop())
        if counts and has_raised:
            self.layers.drop_held(begin)
            self._are_all = self._are_all and not is_summed
        elif counts:
            self._count_entered(seen)
            if not self._pass:
                self.layers.make_sums_if_many()

    def _hear(self, place: int, args: tuple[Any, ...], output: Any) -> None:
        layer = self.layers.all[place]
        if layer.router is None or layer.left_out_for is not None or not self._counts():
            return
        read = layer.router.read(output)
        if isinstance(read, str):
            layer.left_out_for = read
        else:
            self._hold(place, read, mask=None)

    def _counts(self) -> bool:
        if self._pass is not None:
            return self._pass
        if not (self._model.training and torch.is_grad_enabled()) or self.is_deaf:
            return False
        if torch.compiler.is_compiling():
            self.layers.notes.add(
                "a compiled part of the model was called outside of the model's own forward, so that nobody sees where "
                "a forward begins, and is not counted: call the model, or make RouterWatch of what torch.compile gives"
            )
            return False
        if backward_at_hand() >= 0 or self._is_in_transform():
            return False
        self._are_all = False
        return True

    def _is_in_transform(self) -> bool:
        if not is_transformed():
            return False
        self.layers.notes.add(
            "the model was called within a transform of torch.func (vmap, grad), with whose end its tensors end: not "
            "counted"
        )
        return True

    def _count_entered(self, seen: Entered) -> None:
        if seen.unread_mask is not None:
            self.layers.notes.add(
                f"the attention mask is {seen.unread_mask}, and only one of whole numbers or bool (sequences, tokens) "
                "is read: padding, if any, is counted"
            )
        if seen.num_tokens is None:
            self._are_all = False
        elif seen.mask is None:
            self._num_tokens += seen.num_tokens
        else:
            self._masks.append(seen.mask)
            if len(self._masks) >= _MOST_MASKS:
                self._sum_masks()

    def _sum_masks(self) -> None:
        if not self._masks:
            return
        real = torch.cat(self._masks).sum()
        self._num_real_tokens = real if self._num_real_tokens is None else self._num_real_tokens + real
        self._masks = []


class _Hook:
    """Hands a call on to a tap that is still there.

    A copy of a model, and a pickle, has hooks that do nothing: what it computes is not of this training.
    """

    __slots__ = ("_place", "_tap", "_verb")

    def __init__(
        self,
        tap: weakref.ref[RouterTap],
        verb: Callable[[RouterTap, int, tuple[Any, ...], Any], None],
        place: int,
    ) -> None:
        self._tap = tap
        self._verb = verb
        self._place = place

    def __call__(self, module: nn.Module, args: tuple[Any, ...], given: Any) -> None:
        tap = self._tap()
        if tap is None:
            return
        if torch.compiler.is_compiling():
            self._verb(tap, self._place, args, given)
            return
        try:
            self._verb(tap, self._place, args, given)
        except Exception as error:  # noqa: BLE001 - what measures must not cost the run
            tap.layers.go_without(error)

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _no_hook, ()


def _no_hook() -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
    return _do_nothing


def _do_nothing(module: nn.Module, args: tuple[Any, ...], given: Any) -> None:
    """The hook of a copy."""


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
