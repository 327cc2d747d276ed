"""The random number generators of this process: what they are at, and back to there.

Enters: the global generators of Python, NumPy, torch and each CUDA device; or a saved state, which may come from a
stranger's file. Leaves: plain values and tensors that `torch.load(weights_only=True)` reads; or generators that go on
where the saved ones were. Invariant: a state that one generator would refuse is refused before any of them is changed.

Not here: generators of the user's own (`DataLoader(generator=...)`), which belong to the data position, and the seeds
of DataLoader workers, which come from torch's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from trimtab.errors import CheckpointError

_NUMPY_KIND: Final = "MT19937"


def rng_state() -> dict[str, Any]:
    """The state of the global generators, as a copy.

    Returns:
        `python` [version, (n,) int64 words, next Gaussian], `numpy` [(624,) int64 words, position, whether a Gaussian
        is left, it] or None where `np.random.set_bit_generator` put another kind there, `torch` (n,) uint8, `cuda` one
        (n,) uint8 a device, none where CUDA was not used yet.
    """
    version, python_words, next_gauss = random.getstate()
    used_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "python": [version, torch.tensor(python_words, dtype=torch.int64), next_gauss],
        "numpy": _numpy_state(),
        "torch": torch.get_rng_state().clone(),
        "cuda": [torch.cuda.get_rng_state(device) for device in range(torch.cuda.device_count())] if used_cuda else [],
    }


@contextmanager
def kept_rng() -> Iterator[None]:
    """Gives the global generators back as they were: what is drawn inside is as if it had not been.

    For passing over the rows of an epoch that were trained on before a resume: reading them may draw numbers, which the
    run has drawn before the checkpoint already.

    Example:
        >>> state = torch.get_rng_state()
        >>> with kept_rng():
        ...     _ = torch.rand(3)
        >>> bool(torch.equal(state, torch.get_rng_state()))
        True
    """
    state = checked_rng(rng_state(), where="this process")
    try:
        yield
    finally:
        state.restore()


@dataclass(frozen=True, slots=True)
class CheckedRng:
    """A saved state that every generator was found to take.

    Attributes:
        remarks: What cannot be put back here, a sentence each.
    """

    python: tuple[Any, ...]
    numpy: tuple[Any, ...] | None
    torch_state: torch.Tensor
    cuda: tuple[torch.Tensor, ...]
    remarks: tuple[str, ...]

    def restore(self) -> None:
        """Puts the global generators back to it."""
        random.setstate(self.python)
        if self.numpy is not None:
            np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch_state)
        for device, state in enumerate(self.cuda):
            torch.cuda.set_rng_state(state, device)


def checked_rng(saved: object, *, where: str) -> CheckedRng:
    """Looks whether the generators would take a saved state, by one of each kind that nobody uses.

    Args:
        saved: What `rng_state` gave.
        where: What to call it in a message.

    Raises:
        CheckpointError: One would not.
    """
    try:
        if not isinstance(saved, Mapping):
            raise TypeError("it is no mapping")
        version, python_words, next_gauss = saved["python"]
        python = (version, tuple(python_words.tolist()), next_gauss)
        random.Random().setstate(python)
        numpy = None
        if saved["numpy"] is not None:
            words, position, has_gauss, gauss = saved["numpy"]
            numpy = (_NUMPY_KIND, words.numpy().astype(np.uint32), position, has_gauss, gauss)
            np.random.RandomState().set_state(numpy)
        torch_state = saved["torch"]
        torch.Generator().set_state(torch_state)
        cuda = tuple(saved["cuda"])
        if not all(isinstance(state, torch.Tensor) and state.dtype is torch.uint8 for state in cuda):
            raise TypeError("a CUDA state is no tensor of bytes")
    except Exception as error:
        raise CheckpointError(
            f"{where}: the state of the random number generators is none that they take "
            f"({type(error).__name__}); load another checkpoint."
        ) from error
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    remarks: tuple[str, ...] = ()
    if numpy is None:
        remarks = ("NumPy's global generator was of another kind than its own: its random numbers are not put back",)
    if len(cuda) > num_devices:
        remarks += (
            f"saved with {len(cuda)} CUDA devices, and {num_devices} are here: the random numbers of the others are "
            "not put back",
        )
    return CheckedRng(python, numpy, torch_state, cuda[:num_devices], remarks)


def _numpy_state() -> list[Any] | None:
    state = np.random.get_state(legacy=False)
    if not isinstance(state, dict) or state["bit_generator"] != _NUMPY_KIND:
        return None
    words = torch.from_numpy(state["state"]["key"].astype(np.int64))
    return [words, int(state["state"]["pos"]), int(state["has_gauss"]), float(state["gauss"])]
