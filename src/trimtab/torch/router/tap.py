"""Hooks on a model and its routers: what routers gave back in the forwards of training, and nothing else.

Enters: calls of the model and of its routers. Leaves: `RouterLayers`, and the tokens that went into the model.
Invariant: the hooks change nothing, raise nothing, wait for nothing, and keep neither the watch nor the model alive.

    a pass      from the model's entrance to its return; it counts where the model trains and gradients are on
    in a pass   a router's output is kept, detached; at its end the sums of all layers are made, if there is much
    outside     a call counts where the router trains and no backward is under way: of a model whose parts are called
                one by one. The recompute of activation checkpointing is a call within backward, and does not count
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from trimtab.torch.backward import backward_at_hand
from trimtab.torch.module_names import module_inside
from trimtab.torch.router.entrance import Entered, argument_names, entered
from trimtab.torch.router.families import Router
from trimtab.torch.router.layers import RouterLayers

_NOTHING_ENTERED: Final = Entered(None, None, None)
_MOST_MASKS: Final = 16
"""Attention masks that are kept until they are summed at once."""


class RouterTap:
    """The hooks of one watch, and what they heard since it was last taken.

    Attributes:
        layers: What routers gave back.
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
        self._pass: bool | None = None
        self._begin = 0
        self._entered = _NOTHING_ENTERED
        self._forget_tokens()

        me = weakref.ref(self)
        handles = [
            model.register_forward_pre_hook(_Hook(me, RouterTap._enter, 0), with_kwargs=True),
            model.register_forward_hook(_Hook(me, RouterTap._leave, 0)),
        ]
        for place, router in enumerate(routers):
            handles.append(router.module.register_forward_hook(_Hook(me, RouterTap._hear, place)))
        self.remove: Callable[[], Any] = weakref.finalize(self, _remove, handles)

    def hold(self, place: int, logits: Any, *, indices: torch.Tensor | None, mask: torch.Tensor | None) -> None:
        """Keeps logits of a layer, where they are of a training's forward; as `RouterLayers.hold`.

        Args:
            place: Which layer.
            logits: (..., E).
            indices: The chosen experts; None: those of the largest logits.
            mask: (T,) bool; None: what went into the model says which tokens are real.
        """
        if not self._counts():
            return
        self.layers.hold(place, logits, indices=indices, mask=self._entered.mask if mask is None else mask)
        if self._pass is None or self.layers.is_full:
            self.layers.make_sums_if_many()

    def taken_tokens(self) -> tuple[int, torch.Tensor | None, bool]:
        """The tokens that went in since they were last taken: those of calls without a mask; the real ones of calls
        with one, 0-d int64 on the device; and whether these are all.
        """
        self._sum_masks()
        taken = self._num_tokens, self._num_real_tokens, self._are_all
        self._forget_tokens()
        return taken

    def _forget_tokens(self) -> None:
        self._num_tokens = 0
        self._num_real_tokens: torch.Tensor | None = None
        self._masks: list[torch.Tensor] = []
        self._are_all = self._has_one_entrance

    def _enter(self, place: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._pass is not None:
            self.layers.drop_held(self._begin)  # of a forward that raised; what of it was summed stays
            self._are_all = False
        self._begin = self.layers.num_held
        self._pass = self._model.training and torch.is_grad_enabled()
        if self._pass:
            self._entered = entered(self._names, args, kwargs)

    def _leave(self, place: int, args: tuple[Any, ...], output: Any) -> None:
        if self._pass:
            self._count_entered()
            self.layers.make_sums_if_many()
        self._pass = None
        self._entered = _NOTHING_ENTERED

    def _hear(self, place: int, args: tuple[Any, ...], output: Any) -> None:
        layer = self.layers.all[place]
        router = layer.router
        if router is None or layer.is_left_out:
            return
        logits, indices = output, None
        if isinstance(output, tuple | list) and len(output) >= max(router.fewest_outputs, router.logits_at + 1):
            logits = output[router.logits_at]
            indices = next((other for other in output if _is_integer(other)), None)
        self.hold(place, logits, indices=indices, mask=None)

    def _counts(self) -> bool:
        if self._pass is not None:
            return self._pass
        if not (self._model.training and torch.is_grad_enabled()):
            return False
        if torch.compiler.is_compiling():
            self.layers.notes["compiled"] = (
                "a compiled part of the model was called outside of the model's own forward, so that nobody sees where "
                "a forward begins, and is not counted: call the model, or make RouterWatch of what torch.compile gives"
            )
            return False
        if backward_at_hand() >= 0:
            return False
        self._are_all = False
        return True

    def _count_entered(self) -> None:
        seen = self._entered
        if seen.unread_mask is not None:
            self.layers.notes["mask"] = (
                f"the attention mask has shape {seen.unread_mask}, and only one of whole numbers or bool (sequences, "
                "tokens) is read: padding, if any, is counted"
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
        if tap is not None:
            self._verb(tap, self._place, args, given)

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _no_hook, ()


def _no_hook() -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
    return _do_nothing


def _do_nothing(module: nn.Module, args: tuple[Any, ...], given: Any) -> None:
    """The hook of a copy."""


def _is_integer(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32)


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
