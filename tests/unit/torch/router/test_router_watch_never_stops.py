"""Nothing that a watch does stops, slows or falsifies a training: what routers, forwards and machines may do to it."""

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from trimtab.errors import UsageError
from trimtab.moe import RouterWatch, audit_aux_weights, router_z_loss
from trimtab.rules.router import RouterRules
from trimtab.rules.watch_config import WatchConfig
from trimtab.torch.router import layers as router_layers
from trimtab.torch.router.sums import LayerSums
from trimtab.torch.router.tap import unheard


class Choosing(nn.Module):
    """A router whose logits are its input."""

    def __init__(self) -> None:
        super().__init__()
        self.top_k = 2

    def forward(self, x: torch.Tensor) -> Any:
        return x, x.topk(self.top_k, -1).indices


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Choosing()
        self.error: BaseException | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.gate(x)
        if self.error is not None:
            raise self.error
        return x * 1.0


class Moe(nn.Module):
    """Two blocks with a router each; what goes in is (B, T, E) logits, times a weight of 1."""

    def __init__(self, *, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.is_checkpointed = is_checkpointed

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        x = hidden * self.weight
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return x.sum()


def gates_of(model: nn.Module) -> list[nn.Module]:
    return [block.gate for block in model.blocks]


def logits_of(num_tokens: int, *, num_experts: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, num_tokens, num_experts, generator=torch.Generator().manual_seed(seed))


def findings_of(report: Any) -> list[str]:
    return [finding.kind for finding in RouterRules(WatchConfig()).judge(report)]


@pytest.mark.parametrize("most_held", [1, 2**18], ids=["summed in each forward", "summed at the report"])
def test_a_top_k_that_is_annealed_is_counted_as_it_is(most_held: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(router_layers, "_MOST_HELD", most_held)
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)

    for top_k in (4, 4, 2):
        for block in model.blocks:
            block.gate.top_k = top_k
        model(logits_of(10)).backward()
    mixed = watch.report(1)
    model(logits_of(10))
    after = watch.report(2)

    [layer, _] = mixed.layers
    assert sum(layer.counts or ()) == 10 * (4 + 4 + 2)
    assert layer.top_k is None
    assert mixed.expected_tokens == 30
    assert 1.0 <= (layer.load_balance or 0.0) < 2.0
    assert "counts_mismatch" not in findings_of(mixed)
    assert (after.layers[0].top_k, sum(after.layers[0].counts or ())) == (2, 20)


def test_a_router_with_fewer_experts_than_its_top_k_raises_nothing_and_is_said():
    class Logits(Choosing):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    model = Moe()
    for block in model.blocks:
        block.gate = Logits()
        block.gate.top_k = 9
    watch = RouterWatch(model, routers=gates_of)

    model(logits_of(300_000)).backward()  # so much that the sums are made in the forward
    report = watch.report(1)

    assert [layer.counts for layer in report.layers] == [None, None]
    assert "fewer than its top_k" in report.notes[0]


def test_a_top_k_above_the_experts_of_a_linear_is_refused_when_the_watch_is_made():
    with pytest.raises(UsageError, match="top_k is 9"):
        RouterWatch(nn.Sequential(nn.Linear(4, 8)), routers=lambda model: [model[0]], top_k=9)


def test_a_layer_that_comes_with_another_number_of_experts_is_left_out_there_and_said():
    watch = RouterWatch(Moe(), routers=(), top_k=2)

    watch.tap(logits_of(5, num_experts=4), layer="a")
    watch.tap(logits_of(7, num_experts=6), layer="a")
    report = watch.report(1)

    assert (report.layers[0].num_experts, report.layers[0].num_tokens) == (4, 5)
    assert "a: calls of another number of experts than 4: not counted" in report.notes


def test_sums_that_cannot_be_made_cost_one_report_and_no_forward(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(router_layers, "_MOST_HELD", 1)
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)

    def out_of_memory(*given: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")

    with monkeypatch.context() as patched:
        patched.setattr(LayerSums, "add", out_of_memory)
        model(logits_of(5)).backward()
    model(logits_of(6)).backward()
    broken = watch.report(1)
    model(logits_of(7)).backward()
    sound = watch.report(2)

    assert model.weight.grad is not None
    assert broken.layers[0].num_tokens == 6
    assert broken.expected_tokens is None
    assert "OutOfMemoryError: CUDA out of memory" in broken.notes[0]
    assert (sound.layers[0].num_tokens, sound.expected_tokens, sound.notes) == (7, 7, ())


def test_a_hook_that_raises_is_said_and_the_forward_goes_on(monkeypatch: pytest.MonkeyPatch):
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)

    def broken(*given: Any, **named: Any) -> None:
        raise ZeroDivisionError("as if")

    with monkeypatch.context() as patched:
        patched.setattr(router_layers.RouterLayers, "hold", broken)
        model(logits_of(5)).backward()
    report = watch.report(1)

    assert report.layers == ()
    assert "ZeroDivisionError: as if" in report.notes[0]


@pytest.mark.parametrize("transform", ["grad", "vmap"])
def test_a_model_within_a_transform_of_torch_func_trains_on_and_is_said_not_to_be_counted(transform: str):
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, weights, (x,))

    if transform == "grad":
        grad(loss)(weights, logits_of(5))
    else:
        vmap(grad(loss), in_dims=(None, 0))(weights, torch.stack([logits_of(5), logits_of(5)]))
    within = watch.report(1)
    model(logits_of(5)).backward()
    after = watch.report(2)

    assert within.layers == ()
    assert "within a transform of torch.func" in within.notes[0]
    assert (after.layers[0].num_tokens, after.expected_tokens, after.notes) == (5, 5, ())


def raising(model: Moe, error: BaseException, *, num_tokens: int = 9) -> None:
    model.blocks[1].error = error
    with pytest.raises(type(error)):
        model(logits_of(num_tokens))
    model.blocks[1].error = None


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize(
    "error", [RuntimeError("out of memory"), KeyboardInterrupt()], ids=["an error", "an interrupt"]
)
def test_a_forward_that_raised_is_in_no_figure_of_the_report_that_follows(is_checkpointed: bool, error: BaseException):
    model = Moe(is_checkpointed=is_checkpointed)
    watch = RouterWatch(model, routers=gates_of)

    loss = model(logits_of(64))
    raising(model, error)
    if isinstance(error, Exception):
        loss.backward()  # which computes a checkpointed forward again
    report = watch.report(1)
    model(logits_of(5)).backward()
    after = watch.report(2)

    assert [layer.num_tokens for layer in report.layers] == [64, 64]
    assert report.expected_tokens == (64 if isinstance(error, Exception) else None)
    assert "counts_mismatch" not in findings_of(report)
    assert (after.layers[0].num_tokens, after.expected_tokens) == (5, 5)


def test_a_forward_that_raised_after_a_part_of_it_was_summed_leaves_the_tokens_unknown(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(router_layers, "_MOST_SUMMED", 1)
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)

    model(logits_of(64))
    raising(model, RuntimeError("out of memory"))
    report = watch.report(1)

    assert report.expected_tokens is None
    assert "counts_mismatch" not in findings_of(report)


def test_an_evaluation_that_raised_leaves_the_training_that_follows_counted():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)

    model.eval()
    with torch.no_grad():
        raising(model, RuntimeError("out of memory"))
    model.train()
    for block in model.blocks:
        block(logits_of(5) * model.weight)
    report = watch.report(1)

    assert [layer.num_tokens for layer in report.layers] == [5, 5]


def test_a_forward_that_gives_nothing_while_an_error_is_handled_is_counted():
    class Silent(Moe):
        def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None) -> None:
            super().forward(hidden)

    model = Silent()
    watch = RouterWatch(model, routers=gates_of)

    try:
        raise RuntimeError
    except RuntimeError:
        model(logits_of(5))

    assert watch.report(1).expected_tokens == 5


def test_a_model_that_calls_itself_without_gradients_keeps_the_forward_around_it():
    class Teaching(Moe):
        def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
            if torch.is_grad_enabled():
                with torch.no_grad():
                    self(hidden)
            return super().forward(hidden)

    model = Teaching()
    watch = RouterWatch(model, routers=gates_of)

    model(logits_of(5)).backward()
    report = watch.report(1)

    assert [layer.num_tokens for layer in report.layers] == [5, 5]
    assert (report.expected_tokens, report.notes) == (5, ())


def num_storages_of(size_bytes: int) -> int:
    """How many tensors' memories of just this size are alive: other tests of the process have left others behind."""
    gc.collect()
    tensors = [found for found in gc.get_objects() if type(found) is torch.Tensor and found.layout is torch.strided]
    return len({t.untyped_storage().data_ptr() for t in tensors if t.untyped_storage().nbytes() == size_bytes})


def test_logits_that_are_a_view_do_not_keep_what_they_are_a_view_of():
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Linear(4, 2_008)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.both(x)[..., -8:]

    model = nn.Sequential(Fused())
    watch = RouterWatch(model, routers=lambda model: [model[0]], top_k=2)

    for _ in range(5):
        model(torch.zeros(10, 4)).sum().backward()

    assert num_storages_of(10 * 2_008 * 4) == 0
    assert watch.report(1).layers[0].num_tokens == 50


def test_an_audit_of_the_loss_is_in_no_report():
    class Loop(Moe):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(8, 8)

        def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
            return self.gate(hidden)

    model = Loop()
    watch = RouterWatch(model, routers=lambda model: [model.gate], top_k=2)

    def losses(batch: torch.Tensor, accumulation: int) -> dict[str, torch.Tensor]:
        logits = model(batch)
        ce = logits.square().mean()
        return {"total": (ce + 0.5 * router_z_loss(logits)) / accumulation, "ce": ce}

    audit_aux_weights(
        model,
        losses=losses,
        micro_batches=[logits_of(6)],
        weights={"z": 0.5},
        top_k=2,
        routers=lambda model: [model.gate],
    )
    model(logits_of(5))
    report = watch.report(1)

    assert (report.layers[0].num_tokens, report.expected_tokens) == (5, 5)


def test_what_is_called_unheard_counts_for_nobody_even_by_hand():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of, top_k=2)

    with unheard():
        model(logits_of(5))
        model.blocks[0](logits_of(5))
        watch.tap(logits_of(5), layer="by hand")
    model(logits_of(6))

    assert [layer.num_tokens for layer in watch.report(1).layers] == [6, 6]


def test_threads_that_call_one_model_at_once_are_counted_and_said():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)
    both_in = threading.Barrier(2)

    def meet(*given: Any) -> None:
        both_in.wait(10)

    wait = model.blocks[0].register_forward_pre_hook(meet)
    threads = [threading.Thread(target=model, args=(logits_of(5),)) for _ in range(2)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report = watch.report(1)
    wait.remove()
    model(logits_of(7))

    assert report.layers[0].num_tokens == 10
    assert report.expected_tokens is None
    assert "several threads called the model at once" in report.notes[0]
    assert watch.report(2).expected_tokens == 7


def test_padding_of_a_part_that_is_called_by_itself_is_said_to_be_counted():
    class Wrapper(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: Any, **named: Any) -> Any:
            return self.model(*given, **named)

    model = Moe()
    watch = RouterWatch(Wrapper(model), routers=gates_of(model))

    model(logits_of(5), attention_mask=torch.tensor([[1, 1, 1, 0, 0]]))
    report = watch.report(1)

    assert report.layers[0].num_tokens == 5
    assert "nobody says which tokens are padding" in report.notes[0]


def test_a_tap_after_the_watch_was_removed_counts_nothing():
    watch = RouterWatch(Moe(), routers=(), top_k=1)
    watch.remove()

    watch.tap(logits_of(3), layer="a")

    assert watch.report(1).layers == ()


@pytest.mark.parametrize("step", ["x", 2.5, -1, 0, True], ids=["a text", "a fraction", "below 0", "0", "a truth"])
@pytest.mark.parametrize("verb", [RouterWatch.report, RouterWatch.collect], ids=["report", "collect"])
def test_a_step_that_is_none_is_refused(verb: Callable[..., Any], step: Any):
    with pytest.raises(UsageError, match="expected the optimizer step"):
        verb(RouterWatch(Moe(), routers=gates_of), step)


def test_small_calls_are_summed_before_they_are_many():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)
    x = logits_of(1)
    gc.collect()
    before = sum(type(one) is torch.Tensor for one in gc.get_objects())

    for _ in range(3000):
        model(x)

    after = sum(type(one) is torch.Tensor for one in gc.get_objects())
    assert after - before < 5000  # logits and indices of at most 1,024 calls
    assert watch.report(1).layers[0].num_tokens == 3000
