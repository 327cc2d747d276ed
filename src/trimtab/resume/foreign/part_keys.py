"""Which key of a checkpoint that somebody's own loop saved makes which part. The one table of it.

Enters: the keys of an outermost mapping. Leaves: names of parts (`trimtab.resume.parts`). Invariant: a whole key counts
or none of it, whatever its case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_WORDS: Final[dict[str, str]] = {
    "model": "model model_state model_state_dict model_dict state_dict module net network weights",
    "optimizer": "optimizer optimizers optimizer_state optimizer_states optimizer_state_dict optim optim_state "
    "optim_state_dict optimizer_dict opt opt_state",
    "step": "step steps global_step global_steps num_steps train_step current_step iteration iter iter_num",
    "rng": "rng rngs rng_state rng_states rng_state_dict random_state random_states torch_rng torch_rng_state "
    "cpu_rng_state cuda_rng_state python_rng_state numpy_rng_state",
    "scheduler": "scheduler schedulers scheduler_state scheduler_state_dict lr_scheduler lr_schedulers "
    "lr_scheduler_state lr_scheduler_state_dict lr_sched sched opt_param_scheduler",
    "scaler": "scaler scaler_state scaler_state_dict grad_scaler amp amp_scaler",
    "loss": "loss train_loss last_loss",
    "data": "data data_state data_position dataloader dataloader_state loader train_loader train_dataloader sampler",
    "best_eval": "best_eval best_loss best_metric best_val best_val_loss",
    "config": "config cfg args hparams hyper_parameters model_args",
}
# As nanoGPT, Lightning, Megatron-LM and the loops of tutorials spell them.

_PART_OF: Final = {word: part for part, words in _WORDS.items() for word in words.split()}


def part_of(key: str) -> str | None:
    """The part that a key makes; None where it makes none that is known.

    Example:
        >>> part_of("model_state_dict"), part_of("epoch")
        ('model', None)
    """
    return _PART_OF.get(key.lower().replace("-", "_"))


def keys_of(part: str, keys: Iterable[str]) -> list[str]:
    """Those of some keys that make a part."""
    return [key for key in keys if part_of(key) == part]
