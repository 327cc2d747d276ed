"""`Run` in a loop of one's own: exact against loops that never heard of Trimtab."""

import copy
import logging
import math

import numpy as np
import pytest
import torch
from torch import nn

import trimtab
from trimtab import GuardConfig, Run, UsageError

ACCUMULATION = 3
NUM_STEPS = 4


def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 32)).double()


def make_optimizer(model, kind):
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, fused=kind == "fused_adamw")


def make_batches(num, seed=1, tokens=6):
    generator = torch.Generator().manual_seed(seed)
    return [
        dict(
            input_ids=torch.randint(0, 32, (2, tokens), generator=generator),
            labels=torch.randint(0, 32, (2, tokens), generator=generator),
            row_id=torch.tensor([2 * i, 2 * i + 1]),
        )
        for i in range(num)
    ]


def token_losses(model, batch, fault=None):
    logits = model(batch["input_ids"])
    if fault == "nan_activation":
        logits = logits * torch.where(torch.arange(32) == 3, math.nan, 1.0)
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    if fault == "spike":
        losses = losses * 50
    if fault == "nan":
        losses = losses * math.nan
    if fault == "inf":
        losses = losses + math.inf
    if fault == "spike_inf_derivative":
        # finite, far above the others, and its derivative at zero is infinite
        losses = losses.detach() * 50 + torch.sqrt(losses * 0.0)
    return losses.view_as(batch["labels"])


def snapshot(model, optimizer):
    moments = {
        f"{i}.{key}": value.clone()
        for i, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    return {**{name: value.clone() for name, value in model.state_dict().items()}, **moments}


def assert_bit_equal(a, b):
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key], b[key]), key


def plain_loop(batches, *, left_out=(), optimizer="adamw", accumulation=ACCUMULATION, clip=1.0):
    """A loop without Trimtab that simply never sees the micro-batches in `left_out`."""
    model = make_model()
    optim = make_optimizer(model, optimizer)
    for start in range(0, len(batches), accumulation):
        window = range(start, min(start + accumulation, len(batches)))
        kept = [i for i in window if i not in left_out]
        for i in kept:
            losses = token_losses(model, batches[i])
            (losses.sum() / losses.numel() / len(window)).backward()
        if kept:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optim.step()
        optim.zero_grad(set_to_none=True)
    return snapshot(model, optim)


def trimtab_loop(batches, out, *, faults=None, optimizer="adamw", accumulation=ACCUMULATION, clip=1.0, **settings):
    model = make_model()
    optim = make_optimizer(model, optimizer)
    outcomes = []
    with Run(out, model=model, optimizer=optim, accumulation=accumulation, max_grad_norm=clip, **settings) as run:
        for i, batch in enumerate(batches):
            loss = run.micro_batch(token_losses(model, batch, (faults or {}).get(i)), rows=batch["row_id"])
            loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is None or parameter.grad.isfinite().all() or "guard" not in settings
            if run.window_complete:
                outcomes.append(run.step())
        if run.window_open:
            outcomes.append(run.step())
    return snapshot(model, optim), outcomes, run


GUARDS = {
    "recording only": dict(),
    "nothing at all": dict(record=False),
    "guard mean": dict(guard=GuardConfig(multiplier=3.0)),
    "guard robust": dict(guard=GuardConfig(rule="robust")),
}


@pytest.mark.parametrize("settings", GUARDS.values(), ids=GUARDS)
@pytest.mark.parametrize("optimizer", ["adamw", "fused_adamw", "sgd"])
def test_without_a_fault_weights_and_moments_are_bit_identical(tmp_path, settings, optimizer):
    batches = make_batches(NUM_STEPS * ACCUMULATION)

    ours, outcomes, _ = trimtab_loop(batches, tmp_path, optimizer=optimizer, **settings)

    assert [outcome.reason for outcome in outcomes] == ["stepped"] * NUM_STEPS
    assert_bit_equal(ours, plain_loop(batches, optimizer=optimizer))


@pytest.mark.parametrize("fault", ["spike", "nan", "inf", "nan_activation", "spike_inf_derivative"])
@pytest.mark.parametrize("place", range(ACCUMULATION), ids=["first", "middle", "last"])
@pytest.mark.parametrize("optimizer", ["adamw", "fused_adamw", "sgd"])
def test_a_skipped_micro_batch_is_left_out_of_the_update_exactly(tmp_path, fault, place, optimizer):
    # given a fault in the third window, when the guard has its history
    batches = make_batches(NUM_STEPS * ACCUMULATION)
    bad = 2 * ACCUMULATION + place

    # when
    ours, outcomes, _ = trimtab_loop(
        batches, tmp_path, faults={bad: fault}, optimizer=optimizer, guard=GuardConfig(multiplier=3.0)
    )

    # then
    assert [outcome.num_skipped_micros for outcome in outcomes] == [0, 0, 1, 0]
    assert outcomes[2].num_skipped_tokens == 12
    assert_bit_equal(ours, plain_loop(batches, left_out={bad}, optimizer=optimizer))


@pytest.mark.parametrize("optimizer", ["adamw", "fused_adamw", "sgd"])
def test_a_window_wholly_skipped_moves_neither_weights_nor_moments_nor_step_counts(tmp_path, optimizer):
    batches = make_batches(NUM_STEPS * ACCUMULATION)
    bad = range(2 * ACCUMULATION, 3 * ACCUMULATION)

    ours, outcomes, _ = trimtab_loop(
        batches, tmp_path, faults=dict.fromkeys(bad, "nan"), optimizer=optimizer, guard=GuardConfig(multiplier=3.0)
    )

    assert [outcome.reason for outcome in outcomes] == ["stepped", "stepped", "all_skipped", "stepped"]
    assert math.isnan(outcomes[2].loss)
    assert_bit_equal(ours, plain_loop(batches, left_out=set(bad), optimizer=optimizer))


def test_a_skip_is_said_and_many_skips_are_said_a_few_times(tmp_path, caplog):
    batches = make_batches(60)

    with caplog.at_level(logging.INFO, logger="trimtab"):
        trimtab_loop(
            batches,
            tmp_path,
            faults=dict.fromkeys(range(7, 60), "nan"),
            guard=GuardConfig(rule="robust"),
            accumulation=2,
        )

    said = [record.message for record in caplog.records if record.message.startswith("Guard skipped")]
    assert (
        said[0]
        == "Guard skipped micro-batch 1 of step 4: nonfinite, loss nan; 2 of its rows are not finite, row 14 the first."
    )
    assert len(said) == 20
    assert said[-1].endswith("Further ones are not said; each is in the log.")


def test_the_first_row_that_is_not_finite_is_named_when_it_does_not_stop(tmp_path, caplog):
    # given a run in which nothing is finite any more, from row 6 on
    batches = make_batches(25)
    faults = dict.fromkeys(range(3, 25), "nan")

    with caplog.at_level(logging.WARNING, logger="trimtab"):
        trimtab_loop(batches, tmp_path, faults=faults, guard=GuardConfig(rule="robust"), accumulation=1)

    assert caplog.text.count("first in row 6 of step 4") == 1


def test_a_non_finite_gradient_norm_drops_the_step_and_names_the_parameter(tmp_path, caplog):
    # given a loss that is no spike, whose derivative is infinite
    model = make_model()
    optim = make_optimizer(model, "adamw")
    run = Run(tmp_path, model=model, optimizer=optim, max_grad_norm=1.0, guard=GuardConfig(rule="robust"))
    batch = make_batches(1)[0]
    before = snapshot(model, optim)

    # when
    losses = token_losses(model, batch)
    loss = run.micro_batch(losses.detach() + torch.sqrt(losses * 0.0), rows=batch["row_id"])
    loss.backward()
    with caplog.at_level(logging.WARNING, logger="trimtab"):
        outcome = run.step()
    run.close()

    # then
    assert outcome.reason == "nonfinite_norm"
    assert not outcome.stepped
    assert_bit_equal(snapshot(model, optim), before)
    assert "0.weight" in caplog.text


def test_an_infinite_norm_is_no_norm_to_step_with(tmp_path):
    model = make_model()
    optim = make_optimizer(model, "sgd")
    run = Run(tmp_path, model=model, optimizer=optim, guard=GuardConfig(rule="robust"))
    batch = make_batches(1)[0]
    before = snapshot(model, optim)

    run.micro_batch(token_losses(model, batch), rows=batch["row_id"]).backward()
    model[1].weight.grad[0, 0] = math.inf
    outcome = run.step()
    run.close()

    assert (outcome.reason, outcome.grad_norm) == ("nonfinite_norm", math.inf)
    assert_bit_equal(snapshot(model, optim), before)


def test_the_norm_that_is_told_and_recorded_is_that_before_clipping(tmp_path):
    model = make_model()
    batch = make_batches(1)[0]
    with Run(tmp_path, model=model, optimizer=make_optimizer(model, "sgd"), max_grad_norm=1e-3) as run:
        run.micro_batch(token_losses(model, batch), rows=batch["row_id"]).backward()
        before = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm().item()
        outcome = run.step()

    assert outcome.grad_norm == pytest.approx(before, rel=1e-12)
    steps = trimtab.open_log(run.folder).steps().numpy()
    assert steps["grad_norm"].tolist() == pytest.approx([before], rel=1e-6)
    assert steps["clipped"].tolist() == [True]


def test_a_parameter_that_only_the_skipped_micro_batch_reached_is_not_moved_by_weight_decay(tmp_path):
    # given two experts, of which the last micro-batch, or the whole window's first, uses the second alone
    for place in (0, 1):
        model = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]).double()
        optim = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        run = Run(
            tmp_path, model=model, optimizer=optim, accumulation=2, guard=GuardConfig(rule="robust"), record=False
        )
        before = model[1].weight.item()
        for micro in range(2):
            bad = micro == place
            losses = model[1 if bad else 0](torch.ones(1, 1).double()).flatten() ** 2
            run.micro_batch(losses * (math.nan if bad else 1.0), per="sample", rows=[micro]).backward()
        outcome = run.step()

        assert (outcome.reason, outcome.num_skipped_micros) == ("stepped", 1)
        assert model[1].weight.item() == before
        assert model[1].weight not in optim.state


def test_the_error_that_ended_a_run_is_in_its_log(tmp_path):
    model = make_model()
    batch = make_batches(1)[0]
    run = Run(tmp_path, model=model)

    def die():
        with run:
            run.micro_batch(token_losses(model, batch), rows=batch["row_id"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        die()

    [end] = [event for event in trimtab.open_log(run.folder).event_list() if event.kind == "end"]
    assert end.facts == {"reason": "ZeroDivisionError"}


@pytest.mark.parametrize("divisor", [math.nan, 0.0, -1.0, True, "x", [1], math.inf])
def test_a_damaged_divisor_is_refused_and_nothing_has_changed(tmp_path, divisor):
    model = make_model()
    settings = dict(model=model, optimizer=make_optimizer(model, "sgd"), normalize="window", record=False)
    state = {**Run(tmp_path, **settings).state_dict(), "step": 7, "divisor": divisor}
    run = Run(tmp_path, **settings)

    with pytest.raises(UsageError, match="divisor is"):
        run.load_state_dict(state)
    assert run.state_dict()["step"] == 1


def test_the_divisor_of_a_window_outlives_a_checkpoint(tmp_path):
    model = make_model()
    batch = make_batches(1)[0]
    settings = dict(model=model, optimizer=make_optimizer(model, "sgd"), normalize="window", record=False)
    first = Run(tmp_path, **settings)
    loss = first.micro_batch(token_losses(model, batch), rows=batch["row_id"]).item()
    second = Run(tmp_path, **settings)
    second.load_state_dict({**first.state_dict()})

    half = {name: value[:, :3] if name != "row_id" else value for name, value in batch.items()}
    again = second.micro_batch(token_losses(model, half), rows=half["row_id"]).item()

    # the sum over half the tokens, by the divisor of the whole
    expected = token_losses(model, half).sum().item() / (token_losses(model, batch).sum().item() / loss)
    assert again == pytest.approx(expected, rel=1e-12)


def test_without_a_guard_nothing_is_ever_dropped_not_even_a_nan(tmp_path):
    batches = make_batches(ACCUMULATION)

    ours, outcomes, _ = trimtab_loop(batches, tmp_path, faults={1: "nan"})

    assert outcomes[0].reason == "stepped"
    assert any(value.isnan().any() for value in ours.values())


def test_the_last_short_window_is_an_update_of_full_size(tmp_path):
    # given 125 micro-batches at accumulation 4: the last window holds one
    batches = make_batches(125, tokens=2)

    ours, outcomes, _ = trimtab_loop(batches, tmp_path, accumulation=4)

    # then it weighs as much as a mean over the one micro-batch that it holds; x4 is exact in binary
    assert len(outcomes) == 32
    assert_bit_equal(ours, plain_loop(batches, accumulation=4))


def test_the_host_may_do_the_division_itself(tmp_path):
    batches = make_batches(4)

    ours, _, _ = trimtab_loop(batches, tmp_path, accumulation=1)

    assert_bit_equal(ours, plain_loop(batches, accumulation=1))


def window_gradient(tmp_path, token_counts, spikes, *, skipped_tokens="counted", warm=3):
    """Gradient of the window after `warm` equal windows, under normalize="window"."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard = GuardConfig(multiplier=3.0, skipped_tokens=skipped_tokens)
    run = Run(
        tmp_path, model=model, optimizer=optimizer, accumulation=len(token_counts), normalize="window", guard=guard
    )
    data = [torch.randn(1, n, 3, dtype=torch.float64) for n in token_counts]
    gradients = []

    def look(*_):
        if model.weight.grad is not None:  # a dropped step finds none
            gradients.append(model.weight.grad.clone())

    optimizer.register_step_pre_hook(look)
    for window in range(warm + 1):
        for i, x in enumerate(data):
            losses = model(x).squeeze(-1) ** 2 * 0.0 + model(x).squeeze(-1) + 10.0
            if window == warm and i in spikes:
                losses = losses * 100
            run.micro_batch(losses, rows=[i]).backward()
        outcome = run.step()
    run.close()
    return gradients, data, outcome


def test_under_window_normalisation_every_token_counts_alike(tmp_path):
    gradients, data, outcome = window_gradient(tmp_path, [10, 10, 80], spikes=())

    everything = torch.cat(data, dim=1).mean(dim=(0, 1))
    assert torch.allclose(gradients[-1][0], everything, rtol=0, atol=1e-12)
    assert outcome.num_tokens == 100


@pytest.mark.parametrize(("mode", "divisor"), [("counted", 100), ("removed", 20)])
def test_skipped_tokens_stay_in_the_divisor_or_leave_it(tmp_path, mode, divisor):
    # tokens [10, 10, 80], the 80 skipped: 0.2 x under counted, 1.0 x under removed
    gradients, data, outcome = window_gradient(tmp_path, [10, 10, 80], spikes={2}, skipped_tokens=mode)

    kept = torch.cat(data[:2], dim=1).sum(dim=(0, 1)) / divisor
    assert torch.allclose(gradients[-1][0], kept, rtol=0, atol=1e-12)
    assert outcome.num_skipped_tokens == 80


def test_a_window_whose_tokens_are_all_removed_is_no_step(tmp_path):
    gradients, _, outcome = window_gradient(tmp_path, [10, 10], spikes={0, 1}, skipped_tokens="removed")

    assert outcome.reason == "all_skipped"
    assert len(gradients) == 3


def test_removed_micro_batches_leave_the_mean_over_micro_batches(tmp_path):
    batches = make_batches(2 * ACCUMULATION, tokens=6)
    bad = 2 * ACCUMULATION - 1
    ours, _, _ = trimtab_loop(
        batches, tmp_path, faults={bad: "nan"}, guard=GuardConfig(multiplier=3.0, skipped_tokens="removed"), clip=1e9
    )

    # an oracle whose last window only ever had two micro-batches
    model = make_model()
    optim = make_optimizer(model, "adamw")
    for window in ([0, 1, 2], [3, 4]):
        for i in window:
            losses = token_losses(model, batches[i])
            (losses.mean() / len(window)).backward()
        optim.step()
        optim.zero_grad()
    for key, value in snapshot(model, optim).items():
        assert torch.allclose(ours[key], value, rtol=0, atol=1e-12), key


def test_aux_is_divided_by_the_accumulation_and_left_out_with_its_micro_batch(tmp_path):
    model = nn.Linear(1, 1, bias=False).double()
    router = nn.Parameter(torch.ones((), dtype=torch.float64))
    model.router = router
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = Run(tmp_path, model=model, optimizer=optimizer, accumulation=2, guard=GuardConfig(multiplier=3.0))
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(float(router.grad)))
    for step in range(3):
        for micro in range(2):
            bad = step == 2 and micro == 1
            losses = torch.full((1,), 100.0 if bad else 1.0, dtype=torch.float64) + 0.0 * model.weight.sum()
            run.micro_batch(losses, per="sample", rows=[0], aux=router * 6.0).backward()
        run.step()
    run.close()

    assert seen == [6.0, 6.0, 3.0]


def test_a_non_finite_aux_term_skips_its_micro_batch(tmp_path):
    model = make_model()
    run = Run(tmp_path, model=model, optimizer=make_optimizer(model, "sgd"), guard=GuardConfig(rule="robust"))
    batch = make_batches(1)[0]

    loss = run.micro_batch(token_losses(model, batch), rows=batch["row_id"], aux=torch.tensor(math.inf))
    loss.backward()
    outcome = run.step()
    run.close()

    assert loss.item() == 0.0
    assert outcome.reason == "all_skipped"


def test_aux_under_window_normalisation_needs_the_windows_tokens_first(tmp_path):
    model = make_model()
    run = Run(tmp_path, model=model, optimizer=make_optimizer(model, "sgd"), normalize="window")
    batch = make_batches(1)[0]
    aux = torch.tensor(1.0)

    with pytest.raises(UsageError, match="begin_window"):
        run.micro_batch(token_losses(model, batch), rows=batch["row_id"], aux=aux)
    run.begin_window(12)
    losses = token_losses(model, batch)
    loss = run.micro_batch(losses, rows=batch["row_id"], aux=aux)
    assert loss.item() == pytest.approx(losses.mean().item() + 1.0)
    run.close()


def test_a_window_without_a_supervised_token_is_no_step_with_a_guard(tmp_path, caplog):
    model = make_model()
    optim = make_optimizer(model, "adamw")
    run = Run(tmp_path, model=model, optimizer=optim, guard=GuardConfig(rule="robust"))
    batch = make_batches(1)[0]
    before = snapshot(model, optim)

    nothing = torch.zeros_like(batch["labels"], dtype=torch.bool)
    with caplog.at_level(logging.WARNING, logger="trimtab"):
        for _ in range(2):
            loss = run.micro_batch(token_losses(model, batch), rows=batch["row_id"], mask=nothing)
            loss.backward()
            outcome = run.step()
    run.close()

    assert loss.item() == 0.0
    assert outcome.reason == "no_tokens"
    assert_bit_equal(snapshot(model, optim), before)
    assert caplog.text.count("no supervised token") == 1


# A gradient scaler.


def scaled_steps(tmp_path, faults, *, guard):
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(0.5)
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run = Run(tmp_path, model=model, optimizer=optim, max_grad_norm=1.0, guard=guard)
    outcomes = []
    for fault in faults:
        losses = model(torch.ones(2, 4)).squeeze(1) ** 2
        if fault == "nan":
            losses = losses * math.nan
        loss = run.micro_batch(losses, per="sample", rows=[0, 1])
        scaler.scale(loss).backward()
        if fault == "overflow":
            model.weight.grad.fill_(math.inf)
        outcomes.append(run.step(scaler))
    run.close()
    return outcomes, scaler, model


def test_a_skipped_window_keeps_the_scalers_scale(tmp_path):
    outcomes, scaler, model = scaled_steps(tmp_path, [None, "nan", None], guard=GuardConfig(rule="robust"))

    assert [outcome.reason for outcome in outcomes] == ["stepped", "all_skipped", "stepped"]
    assert scaler.get_scale() == 1024.0
    assert model.weight.isfinite().all()


@pytest.mark.parametrize("guard", [None, GuardConfig(rule="robust")], ids=["no guard", "guard"])
def test_an_overflow_is_the_scalers_own_affair(tmp_path, guard):
    outcomes, scaler, _ = scaled_steps(tmp_path, [None, "overflow"], guard=guard)

    assert [outcome.reason for outcome in outcomes] == ["stepped", "scaler_overflow"]
    assert scaler.get_scale() == 512.0


# The log.


def test_what_is_recorded_is_what_happened(tmp_path):
    # given
    batches = make_batches(NUM_STEPS * ACCUMULATION)
    bad = 2 * ACCUMULATION + 1
    _, outcomes, run = trimtab_loop(batches, tmp_path, faults={bad: "spike"}, guard=GuardConfig(multiplier=3.0))

    # when
    log = trimtab.open_log(run.folder)
    rows, steps = log.rows().numpy(), log.steps().numpy()

    # then every micro-batch stands there with its rows, the skipped one too
    assert rows["row"].tolist() == list(range(2 * len(batches)))
    assert rows["step"].tolist() == [1 + i // ACCUMULATION for i in range(len(batches)) for _ in range(2)]
    assert rows["micro"].tolist() == [i % ACCUMULATION for i in range(len(batches)) for _ in range(2)]
    assert rows["num_tokens"].tolist() == [6] * (2 * len(batches))
    assert [str(v) for v in rows["verdict"]][2 * bad : 2 * bad + 2] == ["spike", "spike"]
    assert steps["step"].tolist() == [1, 2, 3, 4]
    assert steps["grad_norm"].tolist() == pytest.approx([outcome.grad_norm for outcome in outcomes], rel=1e-6)
    assert steps["lr"].tolist() == [0.01] * NUM_STEPS

    # and the log alone names the spike and its rows
    findings = trimtab.rewind(run.folder, rule="median", step=3)
    assert {row.row for row in findings.rows[:2]} == {2 * bad, 2 * bad + 1}


def test_packed_rows_and_evaluations_reach_the_log(tmp_path):
    model = make_model()
    run = Run(tmp_path, model=model, optimizer=make_optimizer(model, "sgd"), dataset=[[1], [2], [3]])
    batch = make_batches(1)[0]
    rows = torch.tensor([[0, 0, 0, 1, 1, 1], [2, 2, 2, 2, 2, 2]])
    losses = token_losses(model, batch)

    run.micro_batch(losses, rows=rows).backward()
    run.step()
    run.evaluation(2.5, accuracy=0.5)
    run.event("note", text="hello")
    run.close()

    log = trimtab.open_log(run.folder)
    recorded = log.rows().numpy()
    expected = {0: losses[0, :3].sum(), 1: losses[0, 3:].sum(), 2: losses[1].sum()}
    assert dict(zip(recorded["row"].tolist(), recorded["num_tokens"].tolist(), strict=True)) == {0: 3, 1: 3, 2: 6}
    for row, loss_sum in zip(recorded["row"].tolist(), recorded["loss_sum"].tolist(), strict=True):
        assert loss_sum == pytest.approx(expected[row].item(), rel=1e-6)
    assert log.header.num_rows == 3
    kinds = {event.kind: event.facts for event in log.event_list()}
    assert kinds["evaluation"] == {"loss": 2.5, "accuracy": 0.5}
    assert kinds["note"] == {"text": "hello"}


def test_a_recorder_that_fails_says_one_line_and_the_run_carries_on(tmp_path, caplog):
    # given an output folder that cannot be made, because a file stands in its place
    (tmp_path / "file").write_text("in the way")
    batches = make_batches(NUM_STEPS * ACCUMULATION)

    with caplog.at_level(logging.WARNING, logger="trimtab"):
        ours, _, run = trimtab_loop(batches, tmp_path / "file" / "out")

    assert [r.message for r in caplog.records if "recorder off" in r.message] == [
        m for m in [r.message for r in caplog.records] if m.startswith("Trimtab recorder off: ")
    ]
    assert caplog.text.count("Trimtab recorder off: ") == 1
    assert run.folder is None
    assert_bit_equal(ours, plain_loop(batches))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_buffer_that_the_loop_fills_anew_does_not_change_what_was_recorded(tmp_path, kind):
    rows = np.zeros(2, np.int64) if kind == "numpy" else torch.zeros(2, dtype=torch.int64)
    losses = torch.zeros(2)
    facts = {"list": [1]}
    with Run(tmp_path) as run:
        for i in range(20):
            rows[0], rows[1] = i, 1000 + i
            losses.fill_(float(i))
            run.micro_batch(losses, per="sample", rows=rows)
            run._core.end_step()
        run.event("note", **facts)
        facts["list"].append(2)
        losses.fill_(-1.0)

    log = trimtab.open_log(run.folder)
    recorded = log.rows().numpy()
    assert recorded["row"].tolist() == [row for i in range(20) for row in (i, 1000 + i)]
    assert recorded["loss_sum"].tolist() == [float(i) for i in range(20) for _ in range(2)]
    assert next(event for event in log.event_list() if event.kind == "note").facts == {"list": [1]}


def test_a_learning_rate_that_is_a_tensor_is_recorded_as_it_was(tmp_path):
    model = make_model()
    optim = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    outcomes = []
    with Run(tmp_path, model=model, optimizer=optim) as run:
        for batch in make_batches(3):
            run.micro_batch(token_losses(model, batch), rows=batch["row_id"]).backward()
            outcomes.append(run.step())
            optim.param_groups[0]["lr"].mul_(0.5)

    expected = pytest.approx([0.1, 0.05, 0.025], rel=1e-6)
    assert [outcome.lr for outcome in outcomes] == expected
    assert trimtab.open_log(run.folder).steps().numpy()["lr"].tolist() == expected


def test_a_short_window_may_say_so_and_its_aux_terms_are_weighed_by_it(tmp_path):
    model = make_model()
    router = nn.Parameter(torch.ones((), dtype=torch.float64))
    optim = torch.optim.SGD([*model.parameters(), router], lr=0.0)
    run = Run(tmp_path, model=model, optimizer=optim, accumulation=4, normalize="window")
    seen = []
    optim.register_step_pre_hook(lambda *_: seen.append(router.grad.item()))
    batch = make_batches(1)[0]

    run.begin_window(12, num_micros=1)
    run.micro_batch(token_losses(model, batch), rows=batch["row_id"], aux=router * 3.0).backward()
    run.step()
    run.close()

    assert seen == [3.0]


def test_parameters_that_only_the_optimizer_knows_are_scaled_and_dropped_too(tmp_path):
    model = make_model()
    loose = nn.Parameter(torch.ones((), dtype=torch.float64))
    optim = torch.optim.SGD([*model.parameters(), loose], lr=1.0)
    run = Run(tmp_path, model=model, optimizer=optim, accumulation=4, guard=GuardConfig(rule="robust"))
    batch = make_batches(1)[0]

    # a short window is an update of full size
    (run.micro_batch(token_losses(model, batch), rows=batch["row_id"]) + loose * 0.5 / 4).backward()
    run.step()
    assert loose.item() == 0.5
    # and a dropped one moves nothing
    (run.micro_batch(token_losses(model, batch, "nan"), rows=batch["row_id"]) + loose * 0.5 / 4).backward()
    run.step()
    run.close()
    assert loose.item() == 0.5


@pytest.mark.parametrize("clip", [None, 1e-3])
def test_sparse_gradients_are_skipped_measured_and_clipped(tmp_path, clip):
    def loop(run=None, left_out=()):
        torch.manual_seed(0)
        model = nn.Embedding(8, 4, sparse=True).double()
        optim = torch.optim.SGD(model.parameters(), lr=0.1)
        if run is not None:
            run = Run(tmp_path, model=model, optimizer=optim, accumulation=2, max_grad_norm=clip,
                      guard=GuardConfig(rule="robust"))  # fmt: skip
        outcomes = []
        for i in range(6):
            losses = (model(torch.tensor([i, i + 1])) ** 2).sum(1)
            if run is not None:
                bad = math.nan if i in left_out else 1.0
                run.micro_batch(losses * bad, per="sample", rows=[i, i + 1]).backward()
                if run.window_complete:
                    outcomes.append(run.step())
                continue
            if i not in left_out:
                (losses.mean() / 2).backward()
            if i % 2:
                grad = model.weight.grad.to_dense()
                coefficient = 1.0 if clip is None else min(1.0, clip / (grad.norm().item() + 1e-6))
                model.weight.data -= 0.1 * coefficient * grad
                model.weight.grad = None
        if run is not None:
            run.close()
        return model.weight.detach(), outcomes

    ours, outcomes = loop(run=True, left_out={3})
    oracle, _ = loop(left_out={3})

    assert [outcome.num_skipped_micros for outcome in outcomes] == [0, 1, 0]
    assert torch.allclose(ours, oracle, rtol=0, atol=1e-12)


def test_what_was_recorded_before_a_flush_is_in_the_log_while_the_run_goes_on(tmp_path):
    model = make_model()
    run = Run(tmp_path, model=model, optimizer=make_optimizer(model, "sgd"))
    for batch in make_batches(5):
        run.micro_batch(token_losses(model, batch), rows=batch["row_id"]).backward()
        run.step()
    assert run.flush()
    assert trimtab.open_log(run.folder).step_columns().step.tolist() == [1, 2, 3, 4, 5]
    run.close()


def test_a_flush_never_raises_whatever_became_of_the_log(tmp_path):
    unrecorded = Run(None, record=False)
    run = Run(tmp_path, model=make_model())
    assert (unrecorded.flush(), run.flush()) == (True, True)
    run.event("begun")
    assert run.flush()
    run.close()
    assert run.flush()


def test_record_false_leaves_no_folder_and_no_thread(tmp_path):
    import threading

    before = threading.active_count()
    _, _, run = trimtab_loop(make_batches(3), tmp_path, record=False)

    assert list(tmp_path.iterdir()) == []
    assert run.folder is None
    assert threading.active_count() == before


def test_trimtab_off_in_the_environment_does_nothing_and_says_so_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TRIMTAB", "off")
    batches = make_batches(NUM_STEPS * ACCUMULATION)

    with caplog.at_level(logging.INFO, logger="trimtab"):
        for _ in range(2):
            ours, _, _ = trimtab_loop(
                batches, tmp_path / "out", faults={}, guard=GuardConfig(multiplier=1.0001), clip=1.0
            )

    assert_bit_equal(ours, plain_loop(batches))
    assert not (tmp_path / "out").exists()
    assert caplog.text.count("TRIMTAB=off") == 1


# State.


def test_a_resumed_run_decides_as_the_uninterrupted_one_and_is_its_next_attempt(tmp_path):
    batches = make_batches(6 * ACCUMULATION)
    faults = {4 * ACCUMULATION: "spike", 5 * ACCUMULATION + 1: "spike"}
    guard = GuardConfig(multiplier=3.0, window_size=16)
    whole, _, _ = trimtab_loop(batches, tmp_path / "whole", faults=faults, guard=guard)

    model = make_model()
    optim = make_optimizer(model, "adamw")
    saved = None
    for part in (range(3 * ACCUMULATION), range(3 * ACCUMULATION, 6 * ACCUMULATION)):
        run = Run(tmp_path / "parts", model=model, optimizer=optim, accumulation=ACCUMULATION, max_grad_norm=1.0,
                  guard=guard)  # fmt: skip
        if saved is not None:
            run.load_state_dict(copy.deepcopy(saved))
        for i in part:
            run.micro_batch(token_losses(model, batches[i], faults.get(i)), rows=batches[i]["row_id"]).backward()
            if run.window_complete:
                run.step()
        saved = run.state_dict()
        run.close()

    assert_bit_equal(snapshot(model, optim), whole)
    assert len(list((tmp_path / "parts" / "trimtab").iterdir())) == 1
    steps = trimtab.open_log(run.folder).steps().numpy()
    assert steps["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert steps["attempt"].tolist() == [1, 1, 1, 2, 2, 2]


def test_state_that_comes_too_late_or_from_elsewhere_is_refused(tmp_path):
    model = make_model()
    run = Run(tmp_path, model=model, optimizer=make_optimizer(model, "sgd"))
    batch = make_batches(1)[0]
    run.micro_batch(token_losses(model, batch), rows=batch["row_id"]).backward()

    with pytest.raises(UsageError, match="right after the run is made"):
        run.load_state_dict(run.state_dict())
    with pytest.raises(UsageError, match="version 99"):
        Run(tmp_path, record=False).load_state_dict({"version": 99})
    run.close()


# Calls that make no sense.


def test_wrong_calls_are_refused_with_what_to_do(tmp_path):
    model = make_model()
    optim = make_optimizer(model, "sgd")
    batch = make_batches(1)[0]
    losses = token_losses(model, batch)

    with pytest.raises(UsageError, match="parameter weight is on the meta device"):
        trimtab.Run(tmp_path, model=nn.Linear(2, 1, device="meta"), guard=trimtab.GuardConfig(rule="robust"))
    with pytest.raises(UsageError, match="model="):
        Run(tmp_path, guard=GuardConfig(rule="robust"))
    for wrong in (0, 1.5, "2", True):
        with pytest.raises(
            UsageError, match=r"^accumulation is .*: expected a whole number of micro-batches, at least 1"
        ):
            Run(tmp_path, accumulation=wrong)
    for wrong in ("robust", {"rule": "robust"}, trimtab.LossGuard(rule="robust")):
        with pytest.raises(UsageError, match=r"guard must be a trimtab\.GuardConfig"):
            Run(tmp_path, model=model, guard=wrong)
    for wrong in (3.5, True, math.nan, "3", 0):
        with pytest.raises(
            UsageError, match=r"^num_tokens is .*: expected a whole number of supervised tokens, at least 1"
        ):
            Run(tmp_path).begin_window(wrong)
    with pytest.raises(UsageError, match="aux must be a 0-d tensor, found float"):
        Run(tmp_path).micro_batch(losses, rows=batch["row_id"], aux=0.5)
    with pytest.raises(UsageError, match=r"model must be a torch.nn.Module, found SGD"):
        Run(tmp_path, model=optim, optimizer=model)
    with pytest.raises(UsageError, match="optimizer must be a torch optimizer, found float"):
        Run(tmp_path, model=model, optimizer=0.1)
    with pytest.raises(UsageError, match="run_id must be text"):
        Run(tmp_path, run_id=5)
    for wrong in (0.0, -1, math.nan, "1", True):
        with pytest.raises(UsageError, match="max_grad_norm must be a positive number"):
            Run(tmp_path, max_grad_norm=wrong)
    with pytest.raises(UsageError, match="normalize must be"):
        Run(tmp_path, normalize="batch")
    with pytest.raises(UsageError, match="run_id"):
        Run(tmp_path, run_id="../elsewhere")
    run = Run(tmp_path, model=model, optimizer=optim, record=False)
    with pytest.raises(UsageError, match="without any micro_batch"):
        run.step()
    run.micro_batch(losses, rows=batch["row_id"])
    with pytest.raises(UsageError, match="is complete"):
        run.micro_batch(losses, rows=batch["row_id"])
    with pytest.raises(UsageError, match="needs the optimizer"):
        Run(tmp_path, record=False).step()


def test_a_guard_that_is_off_is_said(tmp_path):
    with pytest.warns(trimtab.TrimtabWarning, match="is off") as warned:
        Run(tmp_path, model=make_model(), guard=GuardConfig())

    assert warned[0].filename == __file__
