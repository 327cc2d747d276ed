"""What a guard does inside a `Trainer`, beyond leaving out one micro-batch: whole windows, norms, tokens, words."""

import math

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainerCallback

import trimtab
from trimtab import GuardConfig, GuardLockupError, TrimtabWarning
from trimtab.values import STEP_REASONS

GUARD = GuardConfig(multiplier=3.0)
DECIDERS = ["host", "device"]
ACCUMULATED = dict(args=dict(gradient_accumulation_steps=2, num_train_epochs=2))


class Snapshots(TrainerCallback):
    """Weights and optimizer state before and after each step."""

    def __init__(self):
        self.before, self.after = {}, {}

    def _take(self, model, optimizer):
        moments = optimizer.state_dict()["state"].items()
        state = {f"{i}.{name}": torch.as_tensor(value).clone() for i, held in moments for name, value in held.items()}
        return state | {name: value.clone() for name, value in model.state_dict().items()}

    def on_step_begin(self, args, state, control, model, optimizer, **_):
        self.before[state.global_step + 1] = self._take(model, optimizer)

    def on_step_end(self, args, state, control, model, optimizer, **_):
        self.after[state.global_step] = self._take(model, optimizer)


def same(found, expected):
    """Whether every number is the same; NaN is so only where both are."""
    return found.keys() == expected.keys() and all(same_numbers(found[name], expected[name]) for name in expected)


def same_numbers(one, other):
    is_number = ~one.isnan()
    is_alike = one.dtype == other.dtype and torch.equal(is_number, ~other.isnan())
    return is_alike and torch.equal(one[is_number], other[is_number])


def reasons(trained):
    return [STEP_REASONS[code] for code in trained.log.step_columns().reason]


@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused", "sgd", "adafactor"])
def test_a_window_wholly_skipped_leaves_weights_moments_and_step_counts_alone(bench, optim, decide):
    # given both micro-batches of the third step bad
    setting = dict(args=dict(gradient_accumulation_steps=2, optim=optim, weight_decay=0.1))
    window = bench.train(setting).probe.rows[3]
    bad = [micro[0] for micro in window]
    # when
    snapshots = Snapshots()
    guard = GuardConfig(multiplier=3.0, decide=decide)
    trained = bench.train(setting, attach=dict(guard=guard), faults=dict(costly=bad), callbacks=[snapshots])
    # then nothing moved in that step, and everything in the others
    assert same(snapshots.after[3], snapshots.before[3])
    for step in (1, 2, 4):
        assert not same(snapshots.after[step], snapshots.before[step])
    # and the step is counted, the schedule has gone on
    assert [step for step, _ in trained.probe.clock] == [1, 2, 3, 4]
    rates = [rate for _, rate in trained.probe.clock]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 4
    # and the log tells
    steps = trained.log.step_columns()
    assert reasons(trained) == ["stepped", "stepped", "all_skipped", "stepped"]
    assert steps.num_skipped_micros.tolist() == [0, 0, 2, 0]
    assert math.isnan(steps.loss[2])
    assert not steps.has_grad_norm[2]


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_robust_guard_catches_a_spike_as_well(bench, decide):
    bad = bench.train().probe.rows[6][0][0]
    guard = GuardConfig(rule="robust", min_history=3, decide=decide)
    oracle = bench.train(left_out=[bad], faults=dict(costly=[bad]))
    trained = bench.train(attach=dict(guard=guard), faults=dict(costly=[bad]))
    assert same(trained.weights, oracle.weights)
    assert reasons(trained)[5] == "all_skipped"


def test_without_a_guard_nothing_is_ever_dropped(bench):
    # given a row that turns the loss into NaN
    bad = bench.train().probe.rows[4][0][0]
    plain = bench.train(faults=dict(nan=[bad]))
    # when it is recorded only
    trained = bench.train(attach={}, faults=dict(nan=[bad]))
    # then the weights die as they do without Trimtab
    assert same(trained.weights, plain.weights)
    assert not torch.stack([w.isfinite().all() for w in trained.weights.values()]).all()
    assert set(reasons(trained)) == {"stepped"}


class InfiniteDerivative(nn.Module):
    """Its loss is finite at every row, its derivative is not where a row holds token 126."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.head = nn.Linear(16, 128)
        self.quiet = nn.Linear(1, 1)

    def forward(self, input_ids, labels, attention_mask=None):
        logits = self.head(self.embedding(input_ids))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        zero = torch.where((input_ids == 126).any(), 0.0, 1.0) * self.quiet(torch.ones(1)).square().sum()
        return {"loss": loss + 0.0 * torch.sqrt(zero)}


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_step_with_a_nonfinite_gradient_norm_is_dropped_and_the_parameter_named(bench, said, decide):
    # given
    def module():
        torch.manual_seed(0)
        return InfiniteDerivative()

    bad = bench.train(model=module()).probe.rows[5][0][0]
    # when
    faults, snapshots = dict(nan=[bad]), Snapshots()
    guard = GuardConfig(multiplier=3.0, decide=decide)
    trained = bench.train(attach=dict(guard=guard), model=module(), faults=faults, callbacks=[snapshots])
    plain = bench.train(model=module(), faults=faults)
    # then only that step did not happen
    assert not all(value.isfinite().all() for value in plain.weights.values())
    assert all(value.isfinite().all() for value in trained.weights.values())
    assert same(snapshots.after[5], snapshots.before[5])
    assert reasons(trained) == ["stepped"] * 4 + ["nonfinite_norm"] + ["stepped"] * 2
    assert trained.trainer.state.global_step == 7
    # and it is said why
    [line] = [line for line in said() if "gradient norm" in line]
    assert "quiet.weight" in line
    [event] = [event for event in trained.log.event_list() if event.kind == "nonfinite_norm"]
    assert event.facts["parameter"] == "quiet.weight"
    assert math.isnan(trained.log.step_columns().grad_norm[4])


@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("model", ["llama", "mixtral", "plain"])
def test_a_micro_batch_without_supervised_tokens_is_kept_and_harmless(bench, model, decide):
    # given a micro-batch in which every label is ignored, the other of its window is not
    setting = dict(
        model=model,
        collator="pad_without_mask" if model == "plain" else "pad",
        args=dict(gradient_accumulation_steps=2),
    )
    empty = bench.train(setting).probe.rows[2][1]
    plain = bench.train(setting, faults=dict(unsupervised=empty))
    # when
    guard = GuardConfig(multiplier=3.0, decide=decide)
    trained = bench.train(setting, attach=dict(guard=guard), faults=dict(unsupervised=empty))
    # then nobody is blamed, and the weights stay finite
    assert reasons(trained) == ["stepped"] * 4
    assert all(keep for *_, keep in trained.records())
    assert all(math.isfinite(loss) for loss in trained.log.step_columns().loss)
    assert [(loss, num) for *_, row, loss, num, _ in trained.records() if row in empty] == [(0.0, 0)] * 2
    assert all(value.isfinite().all() for value in trained.weights.values())
    # and where the trainer itself survives it, they are the trainer's own
    if model != "plain":  # its mean over no tokens is 0/0
        assert same(trained.weights, plain.weights)


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_window_without_supervised_tokens_is_no_step(bench, said, decide):
    # given
    empty = bench.train().probe.rows[3][0]
    snapshots = Snapshots()
    # when
    guard = GuardConfig(multiplier=3.0, decide=decide)
    trained = bench.train(attach=dict(guard=guard), faults=dict(unsupervised=empty), callbacks=[snapshots])
    # then
    assert reasons(trained)[2] == "no_tokens"
    assert same(snapshots.after[3], snapshots.before[3])
    assert all(value.isfinite().all() for value in trained.weights.values())
    assert len([line for line in said() if "no supervised token" in line]) == 1


@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("model", ["llama", "plain"])
def test_removed_tokens_leave_the_divisor(bench, model, decide):
    # given a trainer that never sees the bad micro-batch at all, so that neither does its divisor
    setting = dict(
        model=model,
        collator="pad_without_mask" if model == "plain" else "pad",
        args=dict(gradient_accumulation_steps=2, optim="sgd", learning_rate=0.1, max_grad_norm=0.0),
    )
    bad = bench.train(setting).probe.rows[3][0][0]

    class NeverSees(Trainer):
        def get_batch_samples(self, *args, **kwargs):
            batches, _ = super().get_batch_samples(*args, **kwargs)
            kept = [batch for batch in batches if not (batch["input_ids"] == 1 + bad).any()]
            self.num_kept = len(kept)
            return batches, self._get_num_items_in_batch(kept, self.args.device)

        def training_step(self, model, inputs, num_items_in_batch=None):
            self.current_gradient_accumulation_steps = self.num_kept
            return super().training_step(model, inputs, num_items_in_batch)

    oracle = bench.train(setting, cls=NeverSees, left_out=[bad], faults=dict(costly=[bad]))
    # when
    guard = GuardConfig(multiplier=3.0, skipped_tokens="removed", decide=decide)
    trained = bench.train(setting, attach=dict(guard=guard), faults=dict(costly=[bad]))
    # then, to rounding
    for name, value in oracle.weights.items():
        torch.testing.assert_close(trained.weights[name], value, rtol=1e-5, atol=1e-6)
    # and so does the loss that is recorded, and the one that the trainer logs
    expected = pytest.approx([entry["loss"] for entry in oracle.logged], rel=1e-5)
    assert trained.log.step_columns().loss.tolist() == expected
    assert [entry["loss"] for entry in trained.logged] == expected


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_skip_is_said_with_what_was_expected(bench, said, decide):
    bad = bench.train().probe.rows[5][0][0]
    bench.train(attach=dict(guard=GuardConfig(multiplier=3.0, decide=decide)), faults=dict(costly=[bad]))
    [line] = [line for line in said() if "skipped micro-batch" in line]
    assert line.startswith("Guard skipped micro-batch 0 of step 5: spike, loss ")
    assert "expected" in line


def test_many_losses_that_are_not_finite_name_the_first_row(bench, said):
    # given the rows of six steps, one after another
    bad = [micros[0][0] for step, micros in bench.train().probe.rows.items() if step > 1]
    # when all of them are bad
    guard = GuardConfig(multiplier=3.0, max_consecutive_skips=4)
    bench.train(attach=dict(guard=guard), faults=dict(nan=bad))
    # then
    [line] = [line for line in said() if "losses in a row were not finite" in line]
    assert f"first in row {bad[0]} of step 2" in line


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_guard_that_is_told_to_raise_raises(bench, decide):
    guard = GuardConfig(multiplier=3.0, max_consecutive_skips=1, on_lockup="raise", decide=decide)
    with pytest.raises(GuardLockupError):
        bench.train(
            attach=dict(guard=guard),
            faults=dict(costly=range(13), num_rows=13),
            callbacks=[CheapFirst()],
        )


class CheapFirst(TrainerCallback):
    """Lets the costly label be cheap for three steps."""

    def on_train_begin(self, args, state, control, model, **_):
        self.bias = model.lm_head.bias.data[-1].clone()
        model.lm_head.bias.data[-1] = 0.0

    def on_step_end(self, args, state, control, model, **_):
        if state.global_step == 3:
            model.lm_head.bias.data[-1] = self.bias


def test_a_guard_that_is_off_warns_once_and_trains_on(bench):
    plain = bench.train()
    with pytest.warns(TrimtabWarning, match="off"):
        trained = bench.train(attach=dict(guard=GuardConfig()))
    assert same(trained.weights, plain.weights)


class Normed(nn.Module):
    """Takes in the statistics of every batch during its forward."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.norm = nn.BatchNorm1d(16, momentum=0.5)
        self.head = nn.Linear(16, 128)
        with torch.no_grad():
            self.head.bias[-1] = -100.0

    def forward(self, input_ids, labels):
        hidden = self.norm(self.embedding(input_ids).transpose(1, 2)).transpose(1, 2)
        return {"loss": nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())}


@pytest.mark.parametrize("decide", DECIDERS)
def test_running_statistics_have_not_taken_in_what_was_left_out(bench, decide):
    # given a trainer that puts them back itself
    def model():
        torch.manual_seed(0)
        return Normed()

    setting = dict(collator="pad_without_mask")
    bad = bench.train(setting, model=model()).probe.rows[5][0][0]

    class PutsBack(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            before = {name: value.clone() for name, value in model.norm.named_buffers()}
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            if (inputs["input_ids"] == 1 + bad).any():
                for name, value in model.norm.named_buffers():
                    value.copy_(before[name])
                return torch.zeros((), requires_grad=True)
            return loss

    oracle = bench.train(setting, model=model(), cls=PutsBack, faults=dict(costly=[bad]))
    # when
    guard = GuardConfig(multiplier=3.0, decide=decide)
    trained = bench.train(setting, model=model(), attach=dict(guard=guard), faults=dict(costly=[bad]))
    # then
    assert reasons(trained)[4] == "all_skipped"
    assert same(trained.weights, oracle.weights)


def test_a_parameter_that_no_loss_reaches_is_not_decayed_by_a_skip(bench):
    # given a parameter without a gradient, which weight decay therefore leaves alone
    def model():
        made = bench.make_model("llama")
        made.unused = nn.Parameter(torch.ones(3))
        return made

    setting = dict(args=dict(gradient_accumulation_steps=2, weight_decay=0.5))
    bad = bench.train(setting).probe.rows[3][0][0]
    oracle = bench.train(setting, model=model(), left_out=[bad], faults=dict(costly=[bad]))
    assert oracle.weights["unused"].tolist() == [1.0, 1.0, 1.0]
    # when a micro-batch is left out, but not its window
    trained = bench.train(setting, model=model(), attach=dict(guard=GUARD), faults=dict(costly=[bad]))
    # then
    assert reasons(trained)[2] == "stepped"
    assert same(trained.weights, oracle.weights)


def scaled(trainer):
    """Gives a trainer the gradient scaler that it would have on a GPU under fp16."""
    accelerator = trainer.accelerator
    accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu", init_scale=64.0)
    accelerator.state._mixed_precision = "fp16"
    return trainer


@pytest.fixture
def one_precision_a_test():
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


@pytest.mark.usefixtures("one_precision_a_test")
@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_with_a_gradient_scaler_a_skip_is_exact_and_an_overflow_is_the_scalers(bench, optim, max_grad_norm, decide):
    # given one window wholly bad, and one whose gradients overflow though every loss is finite
    def model():
        torch.manual_seed(0)
        return InfiniteDerivative()

    args = dict(gradient_accumulation_steps=2, num_train_epochs=2, max_grad_norm=max_grad_norm, optim=optim)
    setting = dict(args=args)
    plan = bench.train(setting, model=model()).probe.rows
    overflows = plan[2][0][0]
    snapshots, bad = Snapshots(), SpikesIn(step=3)
    trainer = scaled(bench.trainer(setting, model=model(), faults=dict(nan=[overflows]), callbacks=[snapshots, bad]))
    run = trimtab.attach(trainer, guard=GuardConfig(multiplier=3.0, decide=decide))
    # when
    trainer.train()
    # then
    steps = trimtab.open_log(run.folder).step_columns()
    told = [STEP_REASONS[code] for code in steps.reason]
    again = next(step for step in plan if step > 4 and overflows in [row for micro in plan[step] for row in micro])
    for step, reason in enumerate(told, start=1):
        expected = {2: "scaler_overflow", again: "scaler_overflow", 3: "all_skipped"}.get(step, "stepped")
        assert reason == expected
        assert same(snapshots.after[step], snapshots.before[step]) == (expected != "stepped")
    # and the scale went down for what the scaler saw itself
    assert steps.loss_scale[:4].tolist() == [64.0, 64.0, 32.0, 32.0]
    assert trainer.state.global_step == 8


class SpikesIn(TrainerCallback):
    """Makes the whole model bad for one step, and as it was afterwards."""

    def __init__(self, *, step):
        self.step = step

    def on_step_begin(self, args, state, control, model, **_):
        if state.global_step + 1 == self.step:
            self.bias = model.head.bias.data.clone()
            model.head.bias.data[64:120] -= 100.0

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        if state.global_step + 1 == self.step:
            model.head.bias.data.copy_(self.bias)
