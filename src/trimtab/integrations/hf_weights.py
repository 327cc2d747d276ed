"""Whether a Trainer would load all weights of its model from a checkpoint; seen with transformers 5.24.

Enters: a checkpoint's folder and the trainer that is to go on from it. Leaves: nothing, or an error that says how to go
on. Nothing is loaded here: of the files their headers are read.

Transformers saves the experts of Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, DeepSeek-V3 and others (of Mixtral the routers,
too) under the names of its older versions, and only `from_pretrained` turns them back. A Trainer loads by the names of
today and leaves what it does not find as the model was built: at random, with a line in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from trimtab.errors import CheckpointError
from trimtab.resume.foreign.payload import Unsound
from trimtab.resume.foreign.safetensors_file import read_tensor_names
from trimtab.text import listed, plain

_WHOLE: Final = "model.safetensors"
_SHARDS: Final = "model-*.safetensors"
_MOST_NAMED: Final = 2


def refuse_if_not_all_load(folder: Path, trainer: Any) -> None:
    """Refuses a checkpoint from which the trainer would load a part of its weights, and begin anew with the rest.

    A model that was built from the very checkpoint has the rest already.

    Args:
        folder: The checkpoint.
        trainer: The `Trainer`, before it has loaded anything.

    Raises:
        CheckpointError: As said.
    """
    left = _left_as_built(folder, trainer)
    if not left:
        return
    names = listed(map(plain, left), most=_MOST_NAMED)
    raise CheckpointError(
        f"{plain(str(folder))} holds weights under names that a Trainer does not load: {names} would stay as the model "
        f"was built, {len(left)} of its weights in all. Nothing was loaded. Transformers turns the names back where "
        f"the model is made from the checkpoint: give the Trainer {_made_from(folder, trainer)}, and resume from there "
        "as before."
    )


def model_to_give(folder: Path, trainer: Any) -> str | None:
    """The model to give a Trainer that is to go on from a checkpoint, as code; None where it has that already.

    Args:
        folder: The checkpoint.
        trainer: The `Trainer`.
    """
    return _made_from(folder, trainer) if _left_as_built(folder, trainer) else None


def _left_as_built(folder: Path, trainer: Any) -> list[str]:
    """Names of the weights that the trainer would not load."""
    model = trainer.model
    loads_itself = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or hasattr(model, "peft_config")
    if model is None or loads_itself:
        return []
    saved = _saved_names(folder)
    left = _not_found(model, saved) if saved else []
    return [] if _is_built_from(model, folder) else left


def _made_from(folder: Path, trainer: Any) -> str:
    return f"{plain(type(trainer.model).__name__)}.from_pretrained({plain(str(folder))!r})"


def _saved_names(folder: Path) -> frozenset[str]:
    """Names of the tensors in a checkpoint of safetensors; none where it has other files, or damaged ones."""
    whole = folder / _WHOLE
    try:
        files = [whole] if whole.is_file() else sorted(folder.glob(_SHARDS))
        return frozenset(name for file in files for name in read_tensor_names(file))
    except (OSError, Unsound):  # of what is wrong with them `examine` tells
        return frozenset()


def _not_found(model: Any, saved: frozenset[str]) -> list[str]:
    """Names of the model's state that are not saved, and are no second name of what is."""
    state: Mapping[str, Any] = model.state_dict()
    there = {_place(state[name]) for name in saved & state.keys()}
    ignored = frozenset(getattr(model, "_keys_to_ignore_on_save", None) or ())
    return [name for name in state if name not in saved | ignored and _place(state[name]) not in there]


def _place(value: Any) -> tuple[int, torch.Size] | None:
    """Where a tensor lies, by which tied weights are told; None where that is not known."""
    if not isinstance(value, torch.Tensor) or value.is_meta or not value.numel():
        return None
    return value.data_ptr(), value.shape


def _is_built_from(model: Any, folder: Path) -> bool:
    name = getattr(model, "name_or_path", None)
    return isinstance(name, str) and bool(name) and Path(name).resolve() == folder.resolve()
