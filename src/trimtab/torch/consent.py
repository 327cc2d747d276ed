"""Whether all ranks of a run will sum the figures of their routers: asked through the store of torch.distributed.

Enters: what this rank watches by, and the step in which it is. Leaves: one answer, the same on every rank that takes
part, and the step from which it holds. Invariant: no collective is called, and no rank sums before all have accepted,
for a sum that one rank leaves out ends a training (gloo) or hangs it (NCCL).

```
  rank 0    offer <id>  ->  all accepted?  ->  decision <id>: all | some | unlike, from step n
  others    see the offer, accept <id>     ->  wait for the decision of the offer that they accepted
```

Every run offers under an id of its own, so that what another run has left behind is never taken for its word. A
decision is written once, by whoever is first (`compare_set`): who gives up waiting and who sees the last one accept
cannot come apart.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal

import torch.distributed as dist

from trimtab.torch.meeting import Store, default_store
from trimtab.torch.ranks import Ranks

PATIENCE_S: Final = 10.0
"""Seconds for the others at the first report. Ranks that reduce gradients together have all accepted by then, so that
only one without a watch is waited for, and its gradients wait meanwhile: well below a timeout of torch.distributed."""

_LOOK_INTERVAL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Answer:
    """What the ranks have settled on.

    Attributes:
        outcome: "all" sum; "some" would not, so none does; "unlike": all would, at other steps or by other settings.
        from_step: Optimizer step (1-based) at whose end it begins to hold.
        missing: Ranks that have not accepted.
        unlike: Settings, by name, that are not the same on all ranks.
    """

    outcome: Literal["all", "some", "unlike"]
    from_step: int = 0
    missing: tuple[int, ...] = ()
    unlike: tuple[str, ...] = ()


class SumConsent:
    """One run's question to its ranks.

    Args:
        ranks: The ranks; more than one.
        settings: What this rank watches by, by name.
    """

    def __init__(self, ranks: Ranks, settings: Mapping[str, object]) -> None:
        self._rank, self._others = ranks.rank, range(1, ranks.world_size)
        self._settings = json.dumps({name: repr(value) for name, value in settings.items()})
        members = dist.get_process_group_ranks(ranks.group)
        self._group = sha256(repr(members).encode()).hexdigest()[:16]
        self._offer: str | None = None
        self._answer: Answer | None = None
        if self._rank == 0:
            self._offer = uuid.uuid4().hex
            store = self._store()
            if store is not None:
                self._try(lambda: store.set(self._key("offer"), str(self._offer)))

    def look(self, step: int, *, waits: bool) -> Answer | None:
        """Looks at how far the others are; belongs at the end of every step until it gives an answer.

        Args:
            step: The step (1-based) that ends.
            waits: Whether to wait for the others, because figures would be summed now.

        Returns:
            The answer, once it holds; None before. Never raises: without a store nobody sums.
        """
        if self._answer is None:
            self._answer = self._try(lambda: self._ask(step, waits=waits), failed=Answer("some"))
        answer = self._answer
        return answer if answer is not None and (waits or step >= answer.from_step) else None

    def end(self) -> None:
        """Says that the run has ended here: an offer that was not decided is none any more."""
        if self._rank == 0 and self._answer is None and dist.is_initialized():
            self._try(lambda: self._decide(self._store(), Answer("some")))

    # Within.

    def _ask(self, step: int, *, waits: bool) -> Answer | None:
        store = self._store()
        if store is None:
            return Answer("some")
        deadline = time.monotonic() + (PATIENCE_S if waits else 0.0)
        while True:
            answer = self._lead(store, step, waits=waits) if self._rank == 0 else self._follow(store)
            if answer is not None:
                return answer
            if time.monotonic() >= deadline:
                return self._give_up(store, step) if waits else None
            time.sleep(_LOOK_INTERVAL_S)

    def _lead(self, store: Store, step: int, *, waits: bool) -> Answer | None:
        """On rank 0: decides as soon as all have accepted."""
        if not store.check([self._key("accepted", rank) for rank in self._others]):
            return None
        told = [json.loads(self._settings), *(json.loads(store.get(self._key("accepted", r))) for r in self._others)]
        unlike = tuple(name for name in told[0] if len({of_rank.get(name) for of_rank in told}) > 1)
        # A step later, where nothing is summed yet: by the end of that one every rank has seen it, and a rank that is
        # refused leaves none behind in a reduction of gradients.
        from_step = step if waits else step + 1
        return self._decide(store, Answer("unlike" if unlike else "all", from_step, unlike=unlike))

    def _follow(self, store: Store) -> Answer | None:
        """On another rank: accepts the newest offer that is open, and looks for what was decided."""
        if not store.check([self._key("offer")]):
            return None
        newest = store.get(self._key("offer")).decode()
        if newest != self._offer:
            if store.check([f"{self._prefix} {newest} decision"]):
                return self._read(store) if self._offer is not None else None  # of a run that is over
            self._offer = newest
            store.set(self._key("accepted", self._rank), self._settings)
        return self._read(store)

    def _give_up(self, store: Store, step: int) -> Answer:
        if self._offer is None:
            return Answer("some", step, missing=(0,))
        keys = {rank: self._key("accepted", rank) for rank in self._others}
        missing = tuple(rank for rank, key in keys.items() if not store.check([key]))
        # Where all have accepted and nobody has decided, it is rank 0 that is missing.
        return self._decide(store, Answer("some", step, missing=missing or (0,)))

    def _decide(self, store: Store | None, answer: Answer) -> Answer:
        if store is None:
            return answer
        spelled = json.dumps([answer.outcome, answer.from_step, answer.missing, answer.unlike])
        return _read_answer(store.compare_set(self._key("decision"), "", spelled))

    def _read(self, store: Store) -> Answer | None:
        key = self._key("decision")
        return _read_answer(store.get(key)) if store.check([key]) else None

    @property
    def _prefix(self) -> str:
        return f"trimtab sums {self._group}"

    def _key(self, *parts: Any) -> str:
        of_offer = () if parts == ("offer",) else (self._offer,)
        return " ".join(map(str, (self._prefix, *of_offer, *parts)))

    @staticmethod
    def _store() -> Store | None:
        return default_store() if dist.is_initialized() else None

    @staticmethod
    def _try(ask: Any, *, failed: Answer | None = None) -> Any:
        try:
            return ask()
        except Exception:  # noqa: BLE001 - a store whose host is gone: the run ends elsewhere, if it does
            return failed


def _read_answer(spelled: bytes) -> Answer:
    outcome, from_step, missing, unlike = json.loads(spelled)
    return Answer(outcome, int(from_step), tuple(missing), tuple(unlike))
