"""The load of the whole batch: on two ranks and over a window the loss and its gradient are those of one big batch."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from trimtab import UsageError, moe

WORKER = Path(__file__).with_name("moe_of_a_rank.py")
CONVENTIONS = ["switch", "hf"]


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(WORKER)


@pytest.fixture(scope="module")
def worker():
    spec = importlib.util.spec_from_file_location("moe_of_a_rank", WORKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one_batch(worker, convention):
    """Value and gradient of the definition, of all tokens at once; by torch, for the gradient, and none of our code."""
    model = worker.Routers()
    layers, mask = model(worker.tokens()), worker.real()
    layers = [torch.cat([layer[mask] for layer in layers])] if convention == "hf" else [layer[mask] for layer in layers]
    values = []
    for logits in layers:
        chosen = [set(row.argsort()[-worker.TOP_K :].tolist()) for row in logits]
        counts = torch.tensor([sum(e in row for row in chosen) for e in range(worker.EXPERTS)]).double()
        mean = torch.softmax(logits, -1).mean(0)
        values.append(
            worker.EXPERTS * (counts / len(chosen) * mean).sum() / (1 if convention == "hf" else worker.TOP_K)
        )
    torch.stack(values).sum().backward()
    found = [value.item() for value in values]
    return found, torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).tolist()


def exactly(values):
    return pytest.approx(values, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(
    "cut", [[0, 10, 20], [0, 3, 20], [0, 13, 16]], ids=["halves", "3 and 17 tokens", "one rank padded whole"]
)
def test_two_ranks_have_the_loss_and_the_gradient_of_one_batch(pair, worker, convention, cut):
    # when
    ranks = pair.call("gradient", cuts=[cut], convention=convention, ahead=False, windows=False)
    # then
    if cut[-1] == worker.NUM_TOKENS:
        values, gradient = one_batch(worker, convention)
    else:  # rank 1 has pads alone: the batch is what rank 0 has, in one process
        alone = worker.gradient([[0, 13]], convention=convention, ahead=False, windows=False)
        values, gradient = alone["values"][0], alone["gradient"]
    for rank in ranks:
        assert rank["values"][0] == exactly(values)
        assert rank["gradient"] == exactly(gradient)
    assert ranks[0] == ranks[1]  # the same bits


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_counted_ahead_a_window_has_the_loss_and_the_gradient_of_one_batch(pair, worker, convention, num_ranks):
    # given: three micro-batches of different sizes, the middle one of padding on one of the ranks
    cuts = [[0, 2, 6], [6, 13, 16], [16, 19, 20]] if num_ranks == 2 else [[0, 6], [6, 16], [16, 20]]
    arguments = dict(cuts=cuts, convention=convention, ahead=True, windows=True)
    # when
    ranks = pair.call("gradient", **arguments) if num_ranks == 2 else [worker.gradient(**arguments)]
    # then
    values, gradient = one_batch(worker, convention)
    for rank in ranks:
        mean = [sum(layer) / len(cuts) for layer in zip(*rank["values"], strict=True)]
        assert mean == exactly(values)
        assert rank["gradient"] == exactly(gradient)


def test_without_global_batch_micro_batches_have_another_gradient(worker):
    # given: what the two tests above would not tell from an average of local losses, if the tokens were alike
    _, gradient = one_batch(worker, "switch")
    apart = worker.gradient([[0, 6], [6, 16], [16, 20]], convention="switch", ahead=False, windows=False)["gradient"]
    assert max(abs(a - b) for a, b in zip(apart, gradient, strict=True)) > 1e-3


def test_so_far_each_micro_batch_takes_the_load_up_to_itself(worker):
    # given
    model, cuts = worker.Routers(), [(0, 6), (6, 16), (16, 20)]
    window = moe.WindowLoad()
    for number, (begin, end) in enumerate(cuts, start=1):
        # when
        mask = worker.real()[begin:end]
        logits = model(worker.tokens()[begin:end])[0]
        loss = moe.load_balancing_loss(logits, top_k=2, mask=mask, global_batch=True, window=window)
        # then: f is that of all tokens so far, P that of its own
        so_far = model(worker.tokens()[:end])[0][worker.real()[:end]]
        f = [sum(e in row.argsort()[-2:].tolist() for row in so_far) / len(so_far) for e in range(4)]
        mean = torch.softmax(logits[mask], -1).mean(0).tolist()
        assert loss.item() == pytest.approx(4 / 2 * sum(a * b for a, b in zip(f, mean, strict=True)), rel=1e-12)
        assert window.num_micros == number
    window.end()
    assert window.num_micros == 0


def test_a_nan_of_one_rank_is_every_ranks(pair):
    assert [math.isnan(value) for value in pair.call("nan_on_one_rank")] == [True, True]


def test_the_batch_is_that_of_the_group(pair):
    alone, together = pair.call("within_a_group", is_alone=True), pair.call("within_a_group", is_alone=False)
    e = math.e
    assert alone[0] == alone[1] == pytest.approx([2 * e / (1 + e)])
    assert together[0] == together[1] == pytest.approx([1.0])


@pytest.mark.parametrize("is_reentrant", [False, True], ids=["recomputed", "reentrant"])
@pytest.mark.parametrize("is_ahead", [False, True], ids=["so far", "ahead"])
def test_what_a_checkpoint_computes_again_is_not_counted_again(worker, is_reentrant, is_ahead):
    def train(is_checkpointed):
        model, window = worker.Routers(), moe.WindowLoad()
        parts = [worker.tokens()[:8].requires_grad_(), worker.tokens()[8:].requires_grad_()]
        for part in parts if is_ahead else ():
            window.count_ahead(model(part), top_k=2)

        def terms(x):
            return moe.load_balancing_loss(model(x), top_k=2, global_batch=True, window=window).sum()

        for number, part in enumerate(parts, start=1):
            loss = checkpoint(terms, part, use_reentrant=is_reentrant) if is_checkpointed else terms(part)
            loss.backward()
            assert window.num_micros == (2 if is_ahead else number)
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    assert torch.equal(train(is_checkpointed=True), train(is_checkpointed=False))


def test_a_window_holds_nothing_of_a_graph():
    window = moe.WindowLoad()
    logits = torch.randn(5, 4, requires_grad=True)
    moe.load_balancing_loss(logits, top_k=1, global_batch=True, window=window).backward()
    moe.load_balancing_loss(logits, top_k=1, global_batch=True, window=window).backward()
    assert not any(sums.requires_grad for sums in window._sums)


LOGITS = torch.zeros(6, 4)


def taken(window, logits=LOGITS):
    return moe.load_balancing_loss(logits, top_k=1, global_batch=True, window=window)


def test_a_window_of_other_layers_is_refused():
    window = moe.WindowLoad()
    taken(window)
    with pytest.raises(UsageError, match=r"layers of \[8\] experts and the window so far of \[4\]"):
        taken(window, torch.zeros(6, 8))
    with pytest.raises(UsageError, match=r"layers of \[4, 4\] experts"):
        taken(window, [LOGITS, LOGITS])
    window.end()
    taken(window, torch.zeros(6, 8))  # a new window may be of other layers


def test_counting_ahead_comes_before_the_losses():
    window = moe.WindowLoad()
    taken(window)
    with pytest.raises(UsageError, match=r"count_ahead was called after 1 losses.*call end\(\)"):
        window.count_ahead(LOGITS, top_k=1)


def test_a_loss_that_was_not_counted_ahead_is_refused():
    window = moe.WindowLoad()
    window.count_ahead(LOGITS, top_k=1)
    taken(window)
    with pytest.raises(UsageError, match=r"2 losses were taken.*1 micro-batches were counted ahead"):
        taken(window)
    with pytest.raises(UsageError, match="top_k is"):
        moe.WindowLoad().count_ahead(LOGITS, top_k=9)


def test_a_window_of_another_top_k_is_refused():
    logits, window = torch.zeros(6, 4), moe.WindowLoad()
    moe.load_balancing_loss(logits, top_k=2, global_batch=True, window=window)
    with pytest.raises(UsageError, match="top_k=1 and the window so far 2"):
        taken(window)

    window.end()
    taken(window)


@pytest.mark.parametrize("is_ahead", [False, True], ids=["so far", "ahead"])
def test_an_evaluation_in_a_window_leaves_it_as_it_is(is_ahead):
    def losses(is_evaluated):
        generator, window = torch.Generator().manual_seed(3), moe.WindowLoad()
        parts = [torch.randn(5, 4, generator=generator) for _ in range(3)]
        for part in parts if is_ahead else ():
            window.count_ahead(part, top_k=1)
        given = []
        for part in parts:
            given.append(taken(window, part).item())
            if is_evaluated:
                with torch.no_grad():
                    taken(window, torch.randn(7, 4, generator=torch.Generator().manual_seed(4)))
        return given, window.num_micros

    assert losses(is_evaluated=True) == losses(is_evaluated=False)


def test_an_evaluation_before_a_checkpointed_micro_batch_does_not_have_it_counted_twice():
    window = moe.WindowLoad()
    logits = torch.randn(6, 4, requires_grad=True)
    with torch.no_grad():
        taken(window)

    checkpoint(lambda x: taken(window, x * 1.0), logits, use_reentrant=False).backward()

    assert window.num_micros == 1


def test_a_window_that_is_none_is_refused():
    with pytest.raises(UsageError, match=r"window is a str: expected a trimtab\.moe\.WindowLoad"):
        taken("x")
