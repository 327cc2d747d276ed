"""A run whose loop is another program's: what the user of a loop calls, and the host calls here itself.

Enters: a call that is the host's to make. Leaves: an error that says what to call instead. What a host tells of its
moments it tells the gate and the core; see `trimtab.integrations.hf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from trimtab.errors import UsageError
from trimtab.torch.run import Run


class HostedRun(Run):
    """A run that the user reads from, never drives: the host's `train` does.

    Attributes:
        _host: What the host is called.
    """

    _host: ClassVar[str]

    def micro_batch(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises `UsageError`: the host hands over its micro-batches itself."""
        raise self._refused("hands over its micro-batches itself")

    def step(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises `UsageError`: the host steps itself."""
        raise self._refused("steps itself")

    def begin_window(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises `UsageError`: the host counts the tokens of its windows itself."""
        raise self._refused("counts the tokens of its windows itself")

    @property
    def window_open(self) -> NoReturn:
        """Raises `UsageError`: the host steps whatever window is open."""
        raise self._refused("steps whatever window is open")

    @property
    def window_complete(self) -> NoReturn:
        """Raises `UsageError`: the host steps when its window is complete."""
        raise self._refused("steps when its window is complete")

    def load_state_dict(self, state: Mapping[str, Any]) -> NoReturn:
        """Raises `UsageError`: the host resumes from checkpoints of its own."""
        raise self._refused(
            "resumes from checkpoints of its own, in which this state is", call="train(resume_from_checkpoint=...)"
        )

    def _refused(self, does: str, *, call: str = "train()") -> UsageError:
        return UsageError(f"The {self._host} {does}: call trainer.{call}.")
