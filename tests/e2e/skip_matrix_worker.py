"""What each rank does for `test_skip_matrix.py`: one long training a host and optimizer, with every fault in turn.

In lock-step: two guarded runs (the host decides, the device decides) and the oracles. After each window everything is
compared; a difference is named by its case, and the run is put back to where the oracle is, so that the cases that
follow say something of their own.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))

from skip_matrix_hosts import (
    ACCUMULATION,
    FAULTS,
    MAX_GRAD_NORM,
    NUM_TOKENS,
    OPTIMIZERS,
    PLACES,
    Case,
    Host,
    clean_batch,
    host_of,
    rank_and_world,
    schedule,
    spoiled,
    state_of,
    token_losses,
)
from skip_matrix_oracle import ByHand, Twin

from trimtab import GuardConfig, Run

NUM_WARMUP_WINDOWS = 3
MAX_FAILURES = 20
DECIDERS = ("host", "device")

# Of the calls a rank makes for itself; DDP and FSDP2 make theirs elsewhere. A rank with one more of them would hang.
_num_reductions = 0
_all_reduce = dist.all_reduce


def _counted_all_reduce(*args: Any, **kwargs: Any) -> Any:
    global _num_reductions
    _num_reductions += 1
    return _all_reduce(*args, **kwargs)


dist.all_reduce = _counted_all_reduce
_groups_of_one: list[dist.ProcessGroup] = []


def _own_group() -> dist.ProcessGroup | None:
    """A group of this process alone, in which "plain" trains; both ranks make both."""
    if not dist.is_initialized():
        return None
    if not _groups_of_one:
        _groups_of_one.extend(dist.new_group([rank]) for rank in range(dist.get_world_size()))
    return _groups_of_one[dist.get_rank()]


class Guarded:
    """The training under test, through the public names only."""

    def __init__(self, host: Host, optimizer: str, guard: GuardConfig | None) -> None:
        self.host, self.is_guarded, self.is_new = host, guard is not None, True
        self.rank, self.world_size = rank_and_world(host)
        self.model = host.wrapped(host.net())
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = schedule(self.optimizer)
        self.run = Run(
            None,
            record=False,
            model=self.model,
            optimizer=self.optimizer,
            accumulation=ACCUMULATION,
            max_grad_norm=MAX_GRAD_NORM,
            guard=guard,
            process_group=_own_group() if host.kind == "plain" else None,
        )

    def train(self, window: int, case: Case | None) -> Iterator[str]:
        """Trains one window; yields what is wrong with anything but the weights."""
        before = _num_reductions
        added = []
        for micro in range(ACCUMULATION):
            batch = clean_batch(window, micro, self.rank, self.host.dtype)
            if case is not None and case.hits(micro, self.rank):
                batch = spoiled(batch, case.fault)
            with self.host.around(self.model, micro):
                losses = token_losses(self.model(batch.x, batch.branch), batch)
                loss = self.run.micro_batch(losses, mask=batch.mask, rows=[window, micro])
                loss.backward()
            added.append(float(loss.detach()))
        num_reductions = _num_reductions - before
        is_first, self.is_new = self.is_new, False
        # One a micro-batch, and before the first of all one of the settings.
        if num_reductions != (ACCUMULATION + is_first if self.is_guarded and self.world_size > 1 else 0):
            yield f"{num_reductions} reductions"
        if case is None or case.fault != "inf derivative":
            bad = [name for name, p in self.model.named_parameters() if not _is_finite(p.grad)]
            if bad:
                yield f"gradients that are not finite: {bad[0]}"
        outcome = self.run.step()
        self.scheduler.step()
        reason = "stepped" if case is None else case.reason(self.world_size)
        num_skipped = 0 if case is None else case.num_skipped_micros
        if (outcome.reason, outcome.num_skipped_micros) != (reason, num_skipped):
            yield f"{outcome.reason} with {outcome.num_skipped_micros} skipped, expected {reason} with {num_skipped}"
        # A rank counts its own tokens.
        if outcome.num_skipped_tokens != num_skipped * NUM_TOKENS:
            yield f"{outcome.num_skipped_tokens} skipped tokens"
        if reason == "stepped" and any(value != 0.0 for value in added) and abs(outcome.loss - sum(added)) > 1e-5:
            yield f"loss {outcome.loss}, of which {added} came in"

    def compare(self, twin: Twin) -> list[str]:
        """Names of what is not, to the last bit, what the twin has; it is put right."""
        ours, expected = state_of(self.model, self.optimizer), state_of(twin.model, twin.optimizer)
        if ours.keys() != expected.keys():
            return sorted(ours.keys() ^ expected.keys())
        wrong = [name for name in expected if not torch.equal(ours[name], expected[name])]
        for name in wrong:
            ours[name].copy_(expected[name])
        if self.optimizer.param_groups[0]["lr"] != twin.optimizer.param_groups[0]["lr"]:
            wrong.append("lr")
        return wrong


def _is_finite(gradient: torch.Tensor | None) -> bool:
    if gradient is None:
        return True
    whole = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return bool(torch.isfinite(whole).all())


def cases_of(world_size: int, *, places: list[str]) -> list[Case]:
    """Each fault at each place, on the last rank alone and on all."""
    hit = {(world_size - 1,), tuple(range(world_size))}
    return [Case(*parts) for parts in product(FAULTS, places, sorted(hit))]


def matrix(
    host: str,
    optimizer: str,
    *,
    dtype: str | None = None,
    places: list[str] | None = None,
) -> dict[str, Any]:
    """Trains through every case; gives the failures, the number of cases, and what shows that ranks are equal."""
    way = host_of(host, dtype=dtype)
    rank, world_size = rank_and_world(way)
    cases = cases_of(world_size, places=places or list(PLACES))
    if host == "plain":  # alone, a process has its own rank's data
        cases = [case._replace(ranks=(rank,)) for case in cases]
    windows: list[Case | None] = [None] * NUM_WARMUP_WINDOWS
    for case in cases:
        windows += [case, None]
    windows.append(None)
    guarded = {
        decide: Guarded(way, optimizer, GuardConfig(multiplier=5.0, min_history=3, decide=decide))
        for decide in DECIDERS
    }
    twin = Twin(way, optimizer)
    by_hand = ByHand(way, optimizer) if way.dtype == torch.float64 else None
    failures: list[str] = []
    digests: list[str] = []
    case_now: Case | None = None
    for window, case in enumerate(windows):
        twin.train(window, case)
        case_now = case or case_now
        where = "before any fault" if case_now is None else f"{'at' if case else 'after'} {case_now}"
        for decide, training in guarded.items():
            # Never cut short: the other rank trains on, and would wait.
            failures += [f"{decide}: {where}: {what}" for what in training.train(window, case)]
            wrong = training.compare(twin)
            if wrong:
                failures.append(f"{decide}: {where}: {len(wrong)} tensors differ, first {wrong[0]}")
        expected = state_of(twin.model, twin.optimizer)
        if by_hand is not None:
            by_hand.train(window, case)
            far = _far(by_hand.state(expected), expected)
            failures += [f"oracles: {where}: {name} is {gap:.1e} from the update by hand" for name, gap in far[:1]]
        if way.kind == "ddp":
            digests.append(_digest(state_of(guarded["device"].model, guarded["device"].optimizer)))
    for training in guarded.values():
        training.run.close()
    return {"failures": failures[:MAX_FAILURES], "num_cases": len(cases) * len(DECIDERS), "digests": digests}


def _digest(state: dict[str, torch.Tensor]) -> str:
    """The same for the same bits; compared between the ranks by the test, without a collective."""
    return hashlib.sha256(b"".join(value.contiguous().numpy().tobytes() for value in state.values())).hexdigest()


def _far(ours: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[tuple[str, float]]:
    assert ours.keys() == expected.keys(), ours.keys() ^ expected.keys()
    gaps = {name: float((ours[name] - value).abs().max()) if value.numel() else 0.0 for name, value in expected.items()}
    return [(name, gap) for name, gap in gaps.items() if not gap <= 1e-12]


def without_a_fault(host: str, optimizer: str, *, dtype: str) -> list[str]:
    """Names of what a guard changes where there is nothing to skip, beside a run without one."""
    way = host_of(host) if host == "FSDP2 bf16" else host_of(host, dtype=dtype)
    off = Guarded(way, optimizer, None)
    on = {
        decide: Guarded(way, optimizer, GuardConfig(multiplier=5.0, min_history=3, decide=decide))
        for decide in DECIDERS
    }
    wrong = []
    for window in range(6):
        wrong += [f"off: window {window}: {what}" for what in off.train(window, None)]
        expected = state_of(off.model, off.optimizer)
        for decide, training in on.items():
            wrong += [f"{decide}: window {window}: {what}" for what in training.train(window, None)]
            ours = state_of(training.model, training.optimizer)
            assert ours.keys() == expected.keys()
            wrong += [f"{decide}: {name}" for name in expected if not torch.equal(ours[name], expected[name])]
    return wrong


if __name__ == "__main__":  # one process, in which torch.distributed was never started
    sys.stdout.write(json.dumps([matrix("plain", optimizer) for optimizer in sys.argv[1:]]))
