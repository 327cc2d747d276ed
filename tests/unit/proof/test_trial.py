"""One training of a loop: what a trial plants, what it leaves alone, and what it refuses."""

import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import optimizer as optim_hooks

from trimtab import UsageError
from trimtab.proof import Loop
from trimtab.proof.faults import Plant
from trimtab.proof.trial import Trial, run_trial

LR = 0.1


def batches():
    dice = torch.Generator().manual_seed(1)
    return [
        [(torch.randn(4, 3, generator=dice), torch.randn(4, 1, generator=dice)) for _ in range(3)] for _ in range(6)
    ]


def build(guard=None, *, forwards=1, losses=None, **parts):
    """Plain SGD on a line."""
    model = nn.Linear(3, 1, dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def train(windows):
        for window in windows:
            for x, y in window:
                for _ in range(forwards):
                    loss = F.mse_loss(model(x), y) / len(window)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return losses

    return Loop(**{"model": model, "optimizer": optimizer, "train": train, "windows": batches(), **parts})


def by_hand(left_out=(), *, dropped=()):
    """The same in numpy, float64, without some micro-batches."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    w, b = model.weight.detach().numpy()[0].astype(float), float(model.bias.detach())
    for window, micros in enumerate(batches()):
        gw, gb = np.zeros(3), 0.0
        for micro, (x, y) in enumerate(micros):
            if (window, micro) in left_out:
                continue
            x, y = x.numpy().astype(float), y.numpy()[:, 0].astype(float)
            error = 2.0 * (x @ w + b - y) / len(y) / len(micros)
            gw, gb = gw + error @ x, gb + error.sum()
        if window not in dropped:
            w, b = w - LR * gw, b - LR * gb
    return np.array([*w, b])


PLANT = dict(window=2, ranks=(0,))


@pytest.mark.parametrize(("place", "micros"), [("first", [0]), ("middle", [1]), ("last", [2])])
def test_an_oracle_is_the_training_without_the_micro_batch_worked_out_by_hand(place, micros):
    outcome = run_trial(build, Trial(guard="none", plants=(Plant(**PLANT, place=place, left_out=True),)))
    expected = by_hand({(2, micro) for micro in micros})
    np.testing.assert_allclose(outcome.end.parameters, expected, atol=1e-6)
    assert np.abs(outcome.end.parameters - by_hand()).max() > 1e-4


def test_a_dropped_step_moves_nothing():
    outcome = run_trial(build, Trial(guard="none", plants=(Plant(**PLANT, place="all", dropped=True),)))
    np.testing.assert_allclose(outcome.end.parameters, by_hand(dropped={2}), atol=1e-6)
    assert outcome.snapshots[3].digest == outcome.snapshots[2].digest != outcome.snapshots[4].digest


def test_nothing_is_changed_where_nothing_is_planted():
    torch.manual_seed(0)
    loop = build()
    loop.train(loop.windows)
    outcome = run_trial(build, Trial(guard="none"))
    found = np.concatenate([p.detach().numpy().ravel() for p in loop.model.parameters()])
    assert (outcome.end.parameters == found).all()
    assert len(outcome.snapshots) == 7
    assert outcome.end.lrs == (LR,)


def test_a_fault_is_planted_where_it_was_asked_for():
    outcome = run_trial(build, Trial(guard="none", plants=(Plant(**PLANT, place="last", fault="NaN"),)))
    assert [snapshot.is_finite for snapshot in outcome.snapshots] == [True, True, True, False, False, False, False]
    assert outcome.terms == ("output",)


def test_what_backward_is_called_on_is_seen_without_a_guard_and_left_as_it_was():
    backward = torch.autograd.backward
    outcome = run_trial(build, Trial(guard="none", plants=(Plant(**PLANT, place="last", left_out=True),)))
    torch.manual_seed(0)
    model, (x, y) = nn.Linear(3, 1), batches()[0][0]
    assert outcome.backed[0][0] == float(F.mse_loss(model(x), y).detach() / 3)
    assert torch.autograd.backward is backward
    assert np.isnan(run_trial(build, Trial(guard="off")).backed).all()


def test_every_optimizer_of_the_model_has_its_step_dropped_and_no_other():
    def factory(guard):
        loop = build()
        own, [bias] = [loop.model.weight], [loop.model.bias]
        elsewhere = nn.Parameter(torch.zeros(1))
        loop.optimizer = torch.optim.SGD(own, lr=LR)
        others = [torch.optim.SGD([bias], lr=LR), torch.optim.SGD([elsewhere], lr=LR)]
        steps = []

        def train(windows):
            for window in windows:
                for x, y in window:
                    (F.mse_loss(loop.model(x), y) / len(window)).backward()
                elsewhere.grad = torch.ones(1)
                for optimizer in (loop.optimizer, *others):
                    optimizer.step()
                    optimizer.zero_grad()
                steps.append(float(elsewhere.detach()))
            return steps

        loop.train = train
        return loop

    outcome = run_trial(factory, Trial(guard="none", plants=(Plant(**PLANT, place="all", dropped=True),)))
    assert (outcome.snapshots[3].parameters == outcome.snapshots[2].parameters).all()
    assert np.diff(outcome.losses) == pytest.approx(-LR)


def test_the_same_trial_gives_the_same_outcome_and_leaves_the_random_state_alone():
    trial = Trial(guard="none", plants=(Plant(**PLANT, place="all", fault="finite spike"),))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    digests = {run_trial(build, trial).end.digest for _ in range(2)}
    assert len(digests) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_a_spike_is_as_large_as_its_size_says():
    def trial(size):
        return run_trial(
            build, Trial(guard="none", plants=(Plant(**PLANT, place="last", fault="finite spike", size=size),))
        )

    once, tenfold = (np.abs(trial(size).gradients).max() for size in (1.0, 10.0))
    assert tenfold == pytest.approx(10.0 * once, rel=1e-2)


def test_another_rank_has_its_faults_alone():
    elsewhere = Plant(window=2, place="last", ranks=(1,), fault="NaN")
    outcome = run_trial(build, Trial(guard="none", plants=(elsewhere,)))
    assert outcome.end.digest == run_trial(build, Trial(guard="none")).end.digest


@pytest.mark.parametrize("left_out", [(), (2, 1), (3, 1)])
def test_whether_a_backward_came_to_every_planted_micro_batch_is_seen(left_out):
    def factory(guard):
        loop = build()

        def train(windows):
            for window, micros in enumerate(windows):
                for micro, (x, y) in enumerate(micros):
                    loss = F.mse_loss(loop.model(x), y)
                    if (window, micro) != left_out:
                        loss.backward()
                loop.optimizer.step()
                loop.optimizer.zero_grad()

        loop.train = train
        return loop

    outcome = run_trial(factory, Trial(guard="none", plants=(Plant(**PLANT, place="middle", fault="finite spike"),)))
    assert outcome.is_reached == (left_out != (2, 1))


def test_an_outcome_goes_from_process_to_process():
    outcome = run_trial(build, Trial(guard="none"))
    again = pickle.loads(pickle.dumps(outcome))
    assert again.end.digest == outcome.end.digest
    assert (again.end.parameters == outcome.end.parameters).all()


def test_batches_that_name_no_tokens_make_a_trial_without_them_not_applicable():
    outcome = run_trial(build, Trial(guard="none", plants=(Plant(**PLANT, place="first", fault="no tokens"),)))
    assert "no labels, targets or mask" in outcome.not_applicable


@pytest.mark.parametrize("guard", ["none", "off", "on", "lenient"])
def test_the_factory_is_handed_the_setting(guard):
    seen = []

    def factory(config):
        seen.append(config)
        return build()

    run_trial(factory, Trial(guard=guard))
    [config] = seen
    assert (config is None, config is not None and config.enabled) == (guard == "none", guard in ("on", "lenient"))


# Refusals.


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (dict(forwards=2), "more often in training mode while 18 micro-batches"),
        (dict(model=nn.Linear(1, 1)), "0 times in training mode while 18 micro-batches"),
        (dict(model=print), "expected the torch.nn.Module"),
        (dict(windows=batches()[:5]), "5 windows, expected at least 6"),
        (dict(windows=[*batches(), batches()[0][:2]]), r"windows\[6\] has 2 micro-batches, expected 3 to 7"),
        (dict(windows=[batches()[0] * 3] * 6), r"windows\[0\] has 9 micro-batches, expected 3 to 7"),
        (dict(losses=[1.0]), "1 losses for 6 windows"),
        (dict(optimizer=object()), "no step hooks"),
    ],
)
def test_a_loop_that_cannot_be_proven_is_refused_with_what_to_do(parts, said):
    with pytest.raises(UsageError, match=said):
        run_trial(lambda guard: build(**parts), Trial(guard="none"))


def test_a_factory_that_gives_no_loop_is_refused():
    with pytest.raises(UsageError, match=r"type int, expected a trimtab\.proof\.Loop"):
        run_trial(lambda guard: 3, Trial(guard="none"))


def test_the_hooks_are_gone_after_a_trial_that_failed():
    loop = build(forwards=2)
    with pytest.raises(UsageError):
        run_trial(lambda guard: loop, Trial(guard="none"))
    assert not loop.model._forward_hooks
    assert not loop.model._forward_pre_hooks
    assert not loop.optimizer._optimizer_step_pre_hooks
    assert not optim_hooks._global_optimizer_pre_hooks
