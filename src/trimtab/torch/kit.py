"""`Kit`: what a scalar-loss engine and a token-normed one have in common, between their forward and their step.

Enters: once a micro-batch its loss; once a window the parameters whose gradients are complete. Leaves: a verdict that
the host can act on, a loss to call backward on whatever the verdict, gradients of the right size, and a
`WindowResult`. Forward, backward, clipping and step are the engine's. Invariants: there is no rule and no arithmetic
here that `Run` does not have too; without a guard nothing waits for a device, and nothing is dropped.

    guard_loss -> accumulate -> (backward)               once a micro-batch
    finish_window -> (clip -> step -> zero_grad)         once a window
    discard_window -> (zero_grad)                        in its place, where the engine gives the window up
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import nn

from trimtab.errors import UsageError
from trimtab.guard import GuardConfig, PerTokenLossGuard
from trimtab.notices import warn_setting
from trimtab.run import RunCore, switched_off
from trimtab.torch.anchors import anchored
from trimtab.torch.decision import Decision
from trimtab.torch.gate import Gate
from trimtab.torch.gradients import drop_gradients
from trimtab.torch.losses import rows_alone
from trimtab.torch.outcome import WindowResult
from trimtab.torch.ranks import Ranks
from trimtab.torch.scalars import check_loss, given_count, judged_loss, known_count, token_count
from trimtab.torch.schedule import current_lr
from trimtab.torch.settings import check_guard, check_parts
from trimtab.torch.step_verdict import StepVerdict
from trimtab.torch.window import WindowMean
from trimtab.torch.window_parameters import window_parameters
from trimtab.values import STEP_CODE, RunHeader

_FIXED_DIVISOR: Final = 4096.0
"""What sums of losses are divided by before backward: near the tokens of a micro-batch, so that gradients in half
precision stay in range, and a power of two, so that the division rounds nothing."""

_NO_ROWS: Final = torch.zeros(0, dtype=torch.int64)


class _Judged(NamedTuple):
    """A micro-batch that was judged and is yet to be accumulated."""

    decision: Decision
    loss: torch.Tensor
    num_tokens: torch.Tensor
    given_tokens: torch.Tensor | int


class Kit:
    """The middle of an engine's window; see `LossKit` and `TokenNormedLossKit`."""

    def __init__(
        self,
        model: nn.Module | None,
        *,
        optimizer: torch.optim.Optimizer | None,
        normalize: Literal["micro", "window"],
        accumulation: int,
        process_group: torch.distributed.ProcessGroup | None,
    ) -> None:
        """Begins without a guard.

        Raises:
            UsageError: If a setting makes no sense.
        """
        check_parts(model=model, optimizer=optimizer)
        self._model = model
        self._optimizer = optimizer
        self._normalize: Literal["micro", "window"] = normalize
        self._accumulation = accumulation
        self._ranks, self._process_group = Ranks.of(process_group), process_group
        self._judged: _Judged | None = None
        self._is_built = False
        self._gate, self._mean = self._made(None)

    def build_loss_guard(self, optim: Mapping[str, Any] | GuardConfig | object) -> PerTokenLossGuard | None:
        """Builds the guard that `guard_loss` asks from now on, in place of the one before; on every rank alike.

        Args:
            optim: A mapping or an object with the keys `loss_spike_skip_multiplier`, `loss_spike_skip_window_size` and
                `loss_spike_skip_min_history`; missing ones take their defaults. Or a `GuardConfig`, of which
                `decide` changes nothing: a kit always decides on the host.

        Returns:
            The guard, whose `num_judged` and `num_skipped` count; None where it is off (no multiplier).

        Raises:
            UsageError: If a setting makes no sense, or the guard is on and the kit has no model, or a window is open.
        """
        self._refuse_open_window("build_loss_guard")
        config = optim if isinstance(optim, GuardConfig) else GuardConfig.from_optim(optim)
        is_on = config.enabled and not switched_off()
        if is_on:
            check_guard(config, model=self._model, where=type(self).__name__)
        if is_on and config.decide == "device":
            warn_setting(
                f'decide="device" has no effect on {type(self).__name__}, whose guard_loss gives a bool, so that the '
                "host decides; leave it out, or use loss = guard(loss) of trimtab.LossGuard, which never waits."
            )
        step = self._gate.core.step
        self._gate.remove()
        self._gate, self._mean = self._made(replace(config, decide="host") if is_on else None)
        self._gate.core.begin_step(step)
        self._is_built = True
        return self._gate.core.guard

    # Once a micro-batch.

    def _judge(self, loss: Any, num_tokens: torch.Tensor | int) -> bool:
        core = self._gate.core
        if core.guard is None:
            return True
        if self._judged is not None:
            raise self._unaccumulated("guard_loss")
        loss, num_tokens = judged_loss(loss, where="guard_loss"), given_count(num_tokens)
        self._begin_micro_batch()
        tokens = token_count(num_tokens, device=loss.device)
        decision = self._gate.take(rows_alone(_NO_ROWS, loss_sum=loss, num_tokens=tokens))
        assert decision is not None, "there is a guard"
        self._judged = _Judged(decision, loss, tokens, num_tokens)
        return decision.keep is True

    def _accumulate(self, loss: Any, num_tokens: torch.Tensor | int, *, where: str) -> torch.Tensor:
        decision: Decision | None = None
        if self._gate.core.guard is None:
            num_tokens = _checked_count(loss, num_tokens, where=where)
            self._begin_micro_batch()
            tokens = token_count(num_tokens, device=loss.device)
            self._gate.take(rows_alone(_NO_ROWS, loss_sum=loss, num_tokens=tokens))
        else:
            judged = self._judged
            if judged is None:
                raise UsageError(
                    f"{where} came before guard_loss: with a guard ask guard_loss about each micro-batch first, then "
                    f"call {where} and backward, whatever it said."
                )
            decision, tokens = judged.decision, judged.num_tokens
            if decision.counts is True:
                num_tokens = _checked_count(loss, num_tokens, where=where)
                _refuse_other_count(num_tokens, judged.given_tokens, where=where)
            else:
                loss = anchored(loss, judged=judged.loss, parameters=self._gate.parameters())
            self._judged = None
        taken = self._mean.take(rows_alone(_NO_ROWS, loss_sum=loss, num_tokens=tokens), None, decision)
        return self._gate.bind(taken, decision)

    # Once a window.

    def finish_window(
        self, parameters: Iterable[nn.Parameter], *, scaler: torch.amp.GradScaler | None = None
    ) -> WindowResult:
        """Gives the window's gradients their size, or drops it; belongs after its last backward, before clipping.

        A window is dropped, with a guard only, if every micro-batch was skipped, or none has a supervised token, or
        the norm of the gradients is not finite: they become None, those of the kit's optimizer too, so that its step
        changes nothing. The engine may clip, step and go on with its scheduler either way.

        With a guard it waits for the device once, for the norm. Without one it never does; the token-normed kit then
        sums the window's tokens over the ranks, which blocks where the group is on the CPU (gloo).

        Args:
            parameters: Those whose gradients the window has left: what is clipped and stepped. Taken anew each time: an
                iterator is used up by one window.
            scaler: The gradient scaler, if there is one; call its `unscale_` before or after this, and its `step` and
                `update` whatever `stepped` says: it is to see the gradients of a dropped window, to lower its scale by
                them, so they stay, and go with that step, which changes nothing. A scaler that is not handed over finds
                no gradient after a dropped window, and its `update` raises where it has seen none before.

        Returns:
            What the window came to.

        Raises:
            UsageError: If there was no micro-batch since the last one, or the last was judged and not accumulated, or
                there is a scaler and the kit has no optimizer; or `parameters` are none, or none of them has a gradient
                though something counts. The window is still open then.
        """
        core, optimizer = self._gate.core, self._optimizer
        if self._judged is not None:
            raise self._unaccumulated("finish_window")
        if core.window.num_micros == 0:
            raise UsageError(
                f"finish_window came for step {core.step} without any micro-batch since the last one: call it once a "
                "window, after the last backward."
            )
        if scaler is not None and not scaler.is_enabled():
            scaler = None
        if scaler is not None and optimizer is None:
            raise UsageError(
                f"finish_window was given a scaler, and {type(self).__name__} no optimizer whose step it could drop "
                f"once the scaler has looked: pass optimizer= to {type(self).__name__}."
            )
        trained = window_parameters(parameters, counts=self._counts)
        is_empty = self._gate.close_window(scaler_waits=scaler is not None)
        verdict = self._gate.judge_step(None if is_empty else self._mean.put_right(trained, core.window))
        if scaler is None:
            self._gate.release_step()  # an engine that obeys `stepped` would leave the veto to a step of another window
            if verdict.dropped:
                groups = optimizer.param_groups if optimizer is not None else []
                drop_gradients([*trained, *(parameter for group in groups for parameter in group["params"])])
        elif verdict.is_for_norm and verdict.norms is not None and verdict.norms.is_of_nonfinite():
            verdict = StepVerdict(STEP_CODE["scaler_overflow"])
        outcome = self._gate.end(
            verdict,
            loss=self._mean.reported_loss(core.window),
            num_tokens=self._mean.num_tokens,
            norm=None,
            clip_at=None,
            lr=current_lr(optimizer) if optimizer is not None else math.nan,
        )
        self._mean.begin()
        return WindowResult.of(outcome)

    def discard_window(self) -> None:
        """Gives the open window up, with a micro-batch that was judged and not accumulated; on every rank alike.

        For an engine that throws a window away, as after an out-of-memory error that it has caught: what came since the
        last `finish_window` is in no later window's sums, and the step number stays. The gradients are the engine's to
        clear (`zero_grad`). What the guard has judged stays in its history. Without an open window it does nothing.
        """
        if self._gate.core.window.num_micros == 0:
            return
        self._judged = None
        self._gate.close_window()
        self._gate.core.begin_step(self._gate.core.step)
        self._mean.begin()

    # State.

    def state_dict(self) -> dict[str, Any]:
        """All that decides, as plain values: step, guard history, last losses. Put it into every checkpoint.

        Waits for the device.

        Raises:
            UsageError: If a window is open: half of one is in no state.
        """
        self._refuse_open_window("state_dict")
        return self._gate.core.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken; call it between two windows, after `build_loss_guard`.

        Raises:
            UsageError: If a window is open, or the state is of another version or guard, or of one that judges losses
                of another kind, or damaged, or holds a guard's history and `build_loss_guard` was never called; nothing
                has changed then.
        """
        self._refuse_open_window("load_state_dict")
        if not self._is_built and isinstance(state, Mapping) and state.get("guard") is not None:
            raise UsageError(
                "load_state_dict was given the history of a guard, and build_loss_guard was not called: call it first "
                "(also where it is off), then load the state; the history would be lost."
            )
        self._gate.load_state_dict(state)

    # Within.

    def _made(self, config: GuardConfig | None) -> tuple[Gate, WindowMean]:
        core = RunCore(
            RunHeader(run_id=None, backend="torch"),
            guard=config,
            record=False,
            rank=self._ranks.rank,
            loss_per="token" if self._normalize == "window" else "micro-batch",
        )
        mean = WindowMean(
            normalize=self._normalize,
            accumulation=self._accumulation,
            guard=core.config,
            ranks=self._ranks,
            divisor=_FIXED_DIVISOR,
        )
        return Gate(core, model=self._model, optimizer=self._optimizer, ranks=self._ranks), mean

    def _counts(self) -> bool:
        """Whether anything in the window takes part in the update; without a guard it may wait for the device."""
        if self._gate.core.guard is None:
            return bool(self._mean.num_tokens > 0)
        return bool(self._gate.core.window.may_step)

    def _begin_micro_batch(self) -> None:
        if self._gate.core.window.num_micros == 0:
            self._gate.release_step()  # one that was dropped and never taken
            self._ranks.refuse_change(self._process_group, made=type(self).__name__)

    def _refuse_open_window(self, call: str) -> None:
        num_micros = self._gate.core.window.num_micros
        if num_micros:
            raise UsageError(
                f"{call} came after micro-batch {num_micros} of the window of step {self._gate.core.step}: call it "
                "between two windows, after finish_window, or after discard_window, which gives the open one up."
            )

    def _unaccumulated(self, call: str) -> UsageError:
        core = self._gate.core
        return UsageError(
            f"{call} came while micro-batch {core.window.num_micros} of the window of step {core.step} was judged and "
            "not accumulated: after guard_loss accumulate and call backward on what it gives, also where guard_loss "
            "said False. A backward that is left out on one rank leaves the ranks with different weights. To give the "
            "window up, as after an error that was caught, call discard_window on every rank, and zero_grad."
        )


def _checked_count(loss: object, num_tokens: object, *, where: str) -> torch.Tensor | int:
    check_loss(loss, where=where, instead="backward needs its graph")
    return given_count(num_tokens)


def _refuse_other_count(num_tokens: torch.Tensor | int, judged: torch.Tensor | int, *, where: str) -> None:
    """Refuses counts that differ, where that is known without a look at a device."""
    found, expected = known_count(num_tokens), known_count(judged)
    if found is not None and expected is not None and found != expected:
        raise UsageError(
            f"{where} was given num_tokens={found}, and guard_loss num_tokens={expected} of the same micro-batch: "
            "pass both the same, the supervised tokens of this rank."
        )
