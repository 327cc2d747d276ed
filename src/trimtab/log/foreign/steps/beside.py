"""What a log at step level holds beside its steps: figures of routers, the throughput.

Enters: columns that a format decoded, by role. Leaves: `Beside`, in the order of the file, and `SideColumns` once it is
known which attempt a line is of. Invariant: a line that holds none of it costs nothing.

Shapes: N entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.log.columns import SideColumns
from trimtab.log.foreign.steps.metric_names import Role

BESIDE_ROLES: Final[tuple[Role, ...]] = ("router_z", "load_balance", "tokens_per_s")
"""Roles that are no part of a step record."""


class Beside(NamedTuple):
    """Entries that hold anything beside a step, in the order of the file.

    Attributes:
        step: (N,) int64.
        place: (N,) int64 line or entry number of each, counted from 1.
        values: (N,) float64 by role; NaN where not logged.
        names: What the log calls them.
    """

    step: NDArray[np.int64]
    place: NDArray[np.int64]
    values: Mapping[Role, NDArray[np.float64]]
    names: Mapping[Role, str]

    @classmethod
    def of(
        cls,
        step: NDArray[np.int64],
        *,
        place: NDArray[np.int64],
        values: Mapping[Role, NDArray[np.float64]],
        names: Mapping[Role, str],
    ) -> Beside:
        """Those entries that hold anything, of columns that may hold nothing (NaN) or be missing."""
        found = {role: np.asarray(values[role], np.float64) for role in BESIDE_ROLES if role in values}
        holds = np.zeros(step.size, np.bool_)
        for column in found.values():
            holds |= np.isfinite(column)
        return cls(
            step=step[holds],
            place=place[holds],
            values={role: column[holds] for role, column in found.items()},
            names={role: names[role] for role in found if role in names},
        )

    @classmethod
    def concat(cls, blocks: list[Beside]) -> Beside:
        """All blocks in one, in the order given; of names those that came first."""
        sizes = [block.step.size for block in blocks]
        roles = [role for role in BESIDE_ROLES if any(role in block.values for block in blocks)]
        return cls(
            step=np.concatenate([np.empty(0, np.int64), *(block.step for block in blocks)]),
            place=np.concatenate([np.empty(0, np.int64), *(block.place for block in blocks)]),
            values={
                role: np.concatenate(
                    [block.values.get(role, np.full(size, np.nan)) for block, size in zip(blocks, sizes, strict=True)]
                )
                for role in roles
            },
            names={role: name for block in reversed(blocks) for role, name in block.names.items()},
        )

    def columns(self, attempt: NDArray[np.int32]) -> SideColumns:
        """The same as columns of a log.

        Args:
            attempt: (N,) the attempt that each entry is of.
        """
        order = np.argsort(attempt, kind="stable")
        nothing = np.full(self.step.size, np.nan)
        router_z, load_balance, tokens_per_s = (self.values.get(role, nothing)[order] for role in BESIDE_ROLES)
        return SideColumns(
            attempt[order],
            self.step[order],
            router_z,
            load_balance,
            tokens_per_s,
            {str(role): name for role, name in self.names.items()},
        )
