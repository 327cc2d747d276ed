"""Weights and moments of a checkpoint, for a model that lies on as many ranks as it does now.

    read              of a sharded checkpoint: the parts that this rank holds, whoever saved
    part_of_whole     of a plain one: the same parts, all of it where the model is not sharded
    Loaded.put        into the model and its optimizer
    Loaded.take_back  what stood in the model before

Enters: a checkpoint, a model in any layout, its optimizer. Leaves: their state as it was saved, bit for bit.
Invariants: nothing is changed before all was read and found to fit; no collective is called; no rank keeps more than
its own part.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from trimtab.errors import CheckpointError
from trimtab.text import plain
from trimtab.torch.module_names import bare_name, module_inside
from trimtab.torch.naming import weights_of
from trimtab.torch.optimizer_names import PARAMS, NamedState, numbered, parameters_by_name
from trimtab.torch.placement import placed
from trimtab.torch.same_state import is_same
from trimtab.torch.sharded_index import Index, SavedTensor
from trimtab.torch.state_fit import is_weight, refuse_unlike, refuse_unlike_groups, shapes
from trimtab.torch.training_fit import refuse_unlike_state

if TYPE_CHECKING:
    from trimtab.torch.sharded_reading import PieceReader

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Loaded:
    """What was read of a checkpoint, and found to fit; nothing has changed yet.

    Attributes:
        model: The model that it is for.
        weights: The part of each tensor that this rank holds of it. Once it is put, what stood there before, on the
            CPU: one tensor after the other takes its place, so that no rank keeps two checkpoints.
        extra: What else the model's state holds, each module's extra state for one.
        optimizer: The optimizer that it is for.
        state: A state for it.
    """

    model: nn.Module
    weights: dict[str, torch.Tensor]
    extra: Mapping[str, Any]
    optimizer: torch.optim.Optimizer | None
    state: dict[str, Any] | None
    _put: list[tuple[str, torch.Tensor]] = field(default_factory=list, init=False)
    _extra_before: dict[str, Any] | None = field(default=None, init=False)

    def put(self) -> None:
        """Puts it into the optimizer and its model."""
        self.put_moments()
        self.put_weights()

    def put_moments(self) -> None:
        """Puts the state into the optimizer."""
        if self.optimizer is not None and self.state is not None:
            self.optimizer.load_state_dict(self.state)

    def put_weights(self) -> None:
        """Puts the weights into the model, whose hooks and extra states may refuse them: see `take_back`."""
        inside = module_inside(self.model)
        state = inside.state_dict()
        self._extra_before = {
            name: copy.deepcopy(value) for name, value in state.items() if bare_name(name) in self.extra
        }
        with torch.no_grad():
            for name, into in state.items():
                if bare_name(name) in self.extra:
                    state[name] = self.extra[bare_name(name)]
                else:
                    self._exchange(bare_name(name), placed(into).local)
            # The tensors are in place: this is for what the model's own hooks make of a load.
            inside.load_state_dict(state)

    def take_back(self) -> bool:
        """Puts back what stood in the model before `put_weights`, as far as that came; moments are not touched.

        Returns:
            Whether the model's state is what it was: its extra states are its own to take back, and may refuse.
        """
        put = dict(self._put)
        with torch.no_grad():
            # Tied weights were exchanged twice.
            while self._put:
                name, local = self._put.pop()
                local.copy_(self.weights[name])
        if self._extra_before is None:
            return True
        inside = module_inside(self.model)
        now = inside.state_dict()
        # A model whose state is made of copies holds what its own load has put in: only that can take it out.
        copies = {
            name: self.weights[bare_name(name)]
            for name, value in now.items()
            if bare_name(name) in put and placed(value).local.data_ptr() != put[bare_name(name)].data_ptr()
        }
        with suppress(Exception):  # what refused the load may refuse this too; what counts is what the model then shows
            inside.load_state_dict({**now, **copies, **copy.deepcopy(self._extra_before)})
        now = inside.state_dict()
        return all(is_same(now.get(name), value) for name, value in {**copies, **self._extra_before}.items())

    def _exchange(self, name: str, local: torch.Tensor) -> None:
        before = local.to("cpu", copy=True)
        # Told first: a copy that is cut off in its middle is taken back too.
        loaded, self.weights[name] = self.weights[name], before
        self._put.append((name, local))
        local.copy_(loaded)


def read(folder: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Loaded:
    """Reads what this rank needs of a sharded checkpoint, for a model that is sharded in any way, or not at all.

    Args:
        folder: The checkpoint's folder with the pieces, as `write` left it.
        model: The model, in any wrapping, with any number of ranks.
        optimizer: Its optimizer, with the same parameter groups; None: the weights alone.

    Returns:
        It, on the CPU what is weights, and what is moments where the optimizer keeps them.

    Raises:
        CheckpointError: The folder is damaged, or does not fit the model or the optimizer.
    """
    from trimtab.torch.sharded_reading import PieceReader, read_index  # torch.distributed.checkpoint takes long to load

    index = read_index(folder)
    where = plain(str(folder))
    saved = dict(index.model) | {name: index.model[of] for name, of in index.aliases.items() if of in index.model}
    weights = weights_of(model)
    refuse_unlike(
        shapes(weights),
        shapes({**saved, **index.extra}),
        where=where,
    )
    with PieceReader(folder) as reader:
        state = None
        if optimizer is not None:
            named = _needed(index.optimizer, where=where)
            refuse_unlike_groups(named, optimizer, model, where=where)
            refuse_unlike_state(named, optimizer, model, where=where, tensors=index.moments)
            state = numbered(_moments(index, named, reader, optimizer, model), optimizer, model)

        def part_of(name: str, into: torch.Tensor) -> torch.Tensor:
            part = placed(into)
            # Not into the model itself: a piece that turns out damaged must leave it as it was. As it was saved: what
            # the model rounds is told.
            fresh = torch.empty(part.local.shape, dtype=saved[name].dtype)
            reader.read(name, saved[name], into=replace(part, local=fresh))
            return fresh

        parts = {name: part_of(name, into) for name, into in weights.items() if is_weight(name, into)}
        extra = dict(index.extra)
        for name in weights.keys() - parts.keys() - extra.keys():
            extra[name] = torch.empty(saved[name].shape, dtype=saved[name].dtype)
            reader.read(name, saved[name], into=placed(extra[name]))
    return Loaded(model=model, weights=parts, extra=extra, optimizer=optimizer, state=state)


def part_of_whole(
    model_state: Mapping[str, Any],
    optimizer_state: Mapping[str, Any] | None,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    where: str = "the checkpoint",
) -> Loaded:
    """What this rank needs of a checkpoint that was never sharded, for a model that is.

    Args:
        model_state: The whole weights under the names of the module inside.
        optimizer_state: What the optimizer's `state_dict` gave; looked at only where `optimizer` is given.
        model: The model, in any wrapping, with any number of ranks.
        optimizer: Its optimizer, with the same parameters in the same order; None: the weights alone.
        where: What to call the checkpoint in a message.

    Returns:
        It; weights are views of `model_state`.

    Raises:
        CheckpointError: It does not fit the model or the optimizer.
    """
    weights = weights_of(model)
    refuse_unlike(shapes(weights), shapes(model_state), where=where)
    _refuse_without_values(model_state, like=weights, where=where)
    state = None
    if optimizer is not None:
        state = _in_parts(_needed(optimizer_state, where=where), optimizer, where=where)
    parts = {
        name: placed(into).part_of(model_state[name].detach())
        for name, into in weights.items()
        if is_weight(name, into)
    }
    extra = {name: model_state[name] for name in weights if name not in parts}
    return Loaded(model=model, weights=parts, extra=extra, optimizer=optimizer, state=state)


def _moments(
    index: Index, saved: NamedState, reader: PieceReader, optimizer: torch.optim.Optimizer, model: nn.Module
) -> NamedState:
    """The optimizer's state with its tensors read, each laid out as the parameter that it belongs to."""
    parameters = {name: value for group in parameters_by_name(optimizer, model) for name, value in group.items()}
    state = {name: dict(values) for name, values in saved.state.items()}
    for (name, key), tensor in index.moments.items():

        def fill(into: torch.Tensor, *, name: str = name, key: str = key, tensor: SavedTensor = tensor) -> None:
            reader.read(f"{key} of {name}", tensor, into=placed(into))

        moment = _laid_out(torch.Size(tensor.shape), tensor.dtype, like=parameters[name], fill=fill)
        state[name][key] = moment
    return NamedState(groups=saved.groups, options=saved.options, state=state, rest=saved.rest)


def _in_parts(found: Mapping[str, Any], optimizer: torch.optim.Optimizer, *, where: str) -> dict[str, Any]:
    """A whole state of an optimizer, in which tensors are laid out as the parameters that they belong to."""
    groups = optimizer.param_groups
    sizes, saved_sizes = ([len(group[PARAMS]) for group in some] for some in (groups, found["param_groups"]))
    if sizes != saved_sizes:
        raise CheckpointError(
            f"{where}: its optimizer has groups of {saved_sizes} parameters, and this one of {sizes}: build it as the "
            "run that saved it did, or pass optimizer=None"
        )
    numbers = [number for group in found["param_groups"] for number in group[PARAMS]]
    parameters = [parameter for group in groups for parameter in group[PARAMS]]
    parameter_of = dict(zip(numbers, parameters, strict=True))
    state: dict[Any, dict[str, Any]] = {}
    for number, values in found["state"].items():
        state[number] = {}
        for key, value in values.items():
            if not isinstance(value, torch.Tensor) or not value.dim() or number not in parameter_of:
                state[number][key] = value
                continue

            _refuse_unfounded(
                value, like=parameter_of[number], where=f"{where}: {plain(str(key))} of parameter {number}"
            )

            def fill(into: torch.Tensor, *, value: torch.Tensor = value) -> None:
                part = placed(into)
                part.local.copy_(part.part_of(value))

            state[number][key] = _laid_out(value.shape, value.dtype, like=parameter_of[number], fill=fill)
    return {**found, "state": state}


def _refuse_unfounded(value: torch.Tensor, *, like: torch.Tensor, where: str) -> None:
    """Refuses what would take more memory than its parameter and than its own bytes in the file: 4 that say 4 TB."""
    size_bytes = value.untyped_storage().nbytes() if value.layout is torch.strided else value.numel()
    if value.numel() > like.numel() and value.numel() * value.element_size() > size_bytes:
        raise CheckpointError(
            f"{where} says that it has the shape {tuple(value.shape)}, in {size_bytes:,} bytes of the file, expected "
            "one that these can hold: it was made to take the memory of whoever loads it"
        )


def _refuse_without_values(state: Mapping[str, Any], *, like: Mapping[str, Any], where: str) -> None:
    """Refuses weights that those of the model cannot be filled from."""
    for name, value in state.items():
        if is_weight(name, value) and (value.is_meta or value.layout != like[name].layout):
            found = "on the meta device and holds no values" if value.is_meta else f"of layout {value.layout}"
            raise CheckpointError(f"{where}: {plain(name)} is {found}, expected a plain tensor; pick another one.")


def _laid_out(
    shape: torch.Size, dtype: torch.dtype, *, like: torch.Tensor, fill: Callable[[torch.Tensor], None]
) -> torch.Tensor:
    """A new tensor, sharded as a parameter is where it has the parameter's shape, else whole on every rank."""
    with torch.no_grad():
        if shape == like.shape:
            made = torch.empty_like(like, dtype=dtype, requires_grad=False)
        else:
            made = torch.empty(shape, dtype=dtype, device=like.device)
        fill(made)
    return made


def _needed(state: T | None, *, where: str) -> T:
    if state is None:
        raise CheckpointError(f"{where}: no state of an optimizer was saved in it; pass optimizer=None")
    return state
