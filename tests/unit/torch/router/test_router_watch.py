"""`RouterWatch` on models of one's own: what counts, what does not, what a router may give back, what is refused."""

import copy
import gc
import io
import math
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trimtab.errors import UsageError
from trimtab.moe import RouterWatch
from trimtab.rules.router import RouterRules
from trimtab.rules.watch_config import WatchConfig
from trimtab.torch.router import layers as router_layers


class Choosing(nn.Module):
    """A router whose logits are its input: what enters is what is measured."""

    top_k = 1

    def forward(self, x: torch.Tensor) -> Any:
        return x, x.softmax(-1), x.topk(self.top_k, -1).indices


class Moe(nn.Module):
    """Two routers; what goes in is (B, T, E) logits, times a weight of 1."""

    def __init__(self, router: Callable[[], nn.Module] = Choosing, *, again: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.gates = nn.ModuleList([router(), router()])
        self.again = again

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        scaled = hidden * self.weight
        for gate in self.gates:
            gate(scaled)
            if self.again:
                gate(scaled)
        return scaled.sum()


def gates_of(model: nn.Module) -> list[nn.Module]:
    return list(model.gates)


def one_hot_logits(experts: list[int], *, num_experts: int = 4) -> torch.Tensor:
    """(1, T, E): 8 at each token's expert, 0 else."""
    return 8.0 * nn.functional.one_hot(torch.tensor([experts]), num_experts).float()


def test_figures_of_one_layer_are_those_worked_by_hand():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)

    model(torch.tensor([[[1.0, 1.0], [3.0, 3.0]]]) - math.log(2.0))
    report = watch.report(5)

    [first, second] = report.layers
    assert first.name == "gates.0"
    assert second.name == "gates.1"
    assert first.z == pytest.approx(5.0)  # of lse 1 and 3: (1 + 9) / 2, and not 2 squared
    assert first.lse == pytest.approx(2.0)
    assert first.token_entropy == pytest.approx(math.log(2.0))
    assert first.spread == 0.0
    assert first.counts == (2, 0)
    assert first.load_balance == pytest.approx(1.0)
    assert (report.step, report.first_step, report.expected_tokens, report.num_ranks) == (5, 1, 2, 1)


def test_two_layers_that_collapsed_onto_different_experts_are_2_each():
    class Turned(Choosing):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x.flip(-1))

    model = Moe()
    model.gates[1] = Turned()
    watch = RouterWatch(model, routers=gates_of)

    model(torch.tensor([[[20.0, -20.0]] * 8]))

    first, second = watch.report(1).layers
    assert (first.counts, second.counts) == ((8, 0), (0, 8))
    assert (first.load_balance, second.load_balance) == (pytest.approx(2.0), pytest.approx(2.0))


def test_a_padded_token_is_in_no_figure_not_even_one_that_is_nan():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)
    p = torch.cat([torch.full((4, 4), 0.1) + 0.6 * torch.eye(4), torch.tensor([[0.7, 0.1, 0.1, 0.1]] * 12)])
    logits = p.log()[None]
    logits[0, 9] = math.nan
    mask = torch.tensor([[1] * 4 + [0] * 12])

    model(logits, mask)  # by place: the forward's own names say what it is
    report = watch.report(1)

    [layer, _] = report.layers
    assert layer.load_balance == pytest.approx(1.0)
    assert layer.counts == (1, 1, 1, 1)
    assert layer.num_tokens == report.expected_tokens == 4
    assert math.isfinite(layer.z or math.nan)


def test_every_micro_batch_since_the_last_report_is_in_it_and_none_of_the_one_before():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)
    for experts in ([0, 1], [2], [0, 0, 3], [1]):
        model(one_hot_logits(experts)).backward()

    first = watch.report(4)
    model(one_hot_logits([3]))
    second = watch.report(6)

    assert first.layers[0].counts == (3, 2, 1, 1)
    assert first.expected_tokens == 7
    assert (second.first_step, second.step) == (5, 6)
    assert second.layers[0].counts == (0, 0, 0, 1)


def test_a_report_begins_after_the_steps_that_were_done_before_the_watch():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)
    watch.begin(3000)

    model(one_hot_logits([0]))

    assert watch.report(3050).first_step == 3001


@pytest.mark.parametrize("most_held", [1, 30, 2**18])
@pytest.mark.parametrize("most_summed", [1, 2**22])
def test_when_the_sums_are_made_changes_no_figure(most_held: int, most_summed: int, monkeypatch: pytest.MonkeyPatch):
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(2, T, 5, generator=generator) for T in (3, 4, 3)]
    masks = [None, torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1]]), torch.ones(2, 3, dtype=torch.int64)]

    def trained() -> Any:
        model = Moe()
        watch = RouterWatch(model, routers=gates_of)
        for batch, mask in zip(batches, masks, strict=True):
            model(batch, attention_mask=mask)
        return watch.report(1)

    expected = trained()
    monkeypatch.setattr(router_layers, "_MOST_HELD", most_held)
    monkeypatch.setattr(router_layers, "_MOST_SUMMED", most_summed)
    found = trained()

    assert expected.layers[0].num_tokens == expected.expected_tokens == 18
    for one, other in zip(found.layers, expected.layers, strict=True):
        assert one.counts == other.counts
        for name in ("z", "lse", "load_balance", "token_entropy", "spread"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6)


def test_a_router_that_is_called_twice_in_a_forward_is_found_by_a_whole_factor():
    model = Moe(again=True)
    watch = RouterWatch(model, routers=gates_of)
    for _ in range(20):
        model(one_hot_logits([0, 1, 2, 3] * 16))

    report = watch.report(50)
    findings = RouterRules(WatchConfig()).judge(report)

    assert [sum(layer.counts or ()) for layer in report.layers] == [2 * 1280] * 2
    assert report.expected_tokens == 1280
    assert [finding.kind for finding in findings] == ["counts_mismatch"]


@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("outside", [True, False], ids=["parts called one by one", "the model called"])
def test_the_recompute_of_a_checkpoint_is_not_counted(use_reentrant: bool, outside: bool):
    class Checkpointed(Moe):
        def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
            return checkpoint(super().forward, hidden * self.weight, use_reentrant=use_reentrant)

    model = Checkpointed()
    calls: list[int] = []
    model.gates[0].register_forward_hook(lambda *given: calls.append(1))
    watch = RouterWatch(model, routers=gates_of)

    (model.forward if outside else model)(one_hot_logits([0, 1, 1])).backward()
    report = watch.report(1)

    assert len(calls) == 2
    if outside and use_reentrant:
        # Its first forward has no gradients and its second is a backward's: neither tells it from an evaluation.
        assert report.layers == ()
        assert report.notes == ("gates.0 and gates.1: no token was seen so far",)
        return
    assert report.layers[0].counts == (1, 2, 0, 0)
    assert report.expected_tokens == (None if outside else 3)


def test_a_model_whose_parts_are_called_one_by_one_is_counted_without_an_entrance():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)

    for experts in ([0, 1], [2, 3]):
        for gate in model.gates:
            gate(one_hot_logits(experts) * model.weight)
    with torch.no_grad():
        model.gates[0](one_hot_logits([0]))
    report = watch.report(1)

    assert [layer.counts for layer in report.layers] == [(1, 1, 1, 1)] * 2
    assert report.expected_tokens is None


def test_a_forward_that_raises_leaves_nothing_behind():
    class Raising(Choosing):
        def forward(self, x: torch.Tensor) -> Any:
            if x.shape[1] == 3:
                raise MemoryError
            return super().forward(x)

    model = Moe()
    model.gates[1] = Raising()
    watch = RouterWatch(model, routers=gates_of)

    model(one_hot_logits([0]))
    with pytest.raises(MemoryError):
        model(one_hot_logits([1, 1, 1]))
    model(one_hot_logits([2]))

    assert [layer.counts for layer in watch.report(1).layers] == [(1, 0, 1, 0)] * 2


class Only(nn.Module):
    """A router that gives whatever a test wants it to."""

    def __init__(self, given: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.given = given

    def forward(self, x: torch.Tensor) -> Any:
        return self.given(x)


@pytest.mark.parametrize(
    "given",
    [
        lambda x: x,
        lambda x: (x, x.softmax(-1)),
        lambda x: (x.flatten(0, 1), x.topk(2, -1).indices.flatten(0, 1)),
        lambda x: [x, None, x.topk(2, -1).indices.int()],
        lambda x: (x.to(torch.float64), x.topk(2, -1).indices, 1.0),
    ],
    ids=["logits", "logits and weights", "flat, with indices", "a list, int32", "float64"],
)
def test_a_router_may_give_logits_alone_or_before_others(given: Callable[[torch.Tensor], Any]):
    model = Moe(lambda: Only(given))
    watch = RouterWatch(model, routers=gates_of, top_k=2)
    logits = torch.tensor([[[4.0, 3.0, 0.0], [0.0, 1.0, 2.0]]])

    model(logits)
    report = watch.report(1)

    assert [layer.counts for layer in report.layers] == [(1, 2, 1)] * 2
    assert report.layers[0].top_k == 2
    assert report.notes == ()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda x: {"logits": x}, "it gave a dict"),
        (lambda x: x.argmax(-1), r"it gave a tensor of torch\.int64"),
        (lambda x: x[0, 0], r"it gave a tensor of shape \(4,\)"),
        (lambda x: (x, torch.zeros(7, dtype=torch.int64)), "it gave 7 chosen experts for 3 tokens"),
    ],
    ids=["a dict", "integers", "one row", "indices of other tokens"],
)
def test_what_cannot_be_read_is_left_out_and_said_and_training_goes_on(given: Any, told: str):
    model = Moe()
    model.gates[1] = Only(given)
    watch = RouterWatch(model, routers=gates_of, top_k=1)

    model(one_hot_logits([0, 1, 2]))
    model(one_hot_logits([0, 1, 2]))
    report = watch.report(1)

    assert [layer.name for layer in report.layers] == ["gates.0"]
    assert report.layers[0].num_tokens == 6
    [note] = report.notes
    assert note.startswith("gates.1: not read, for it gave ")
    assert re.search(told, note)


def test_nobody_saying_how_many_experts_a_token_is_sent_to_costs_the_counts_and_is_told_of_all_layers_at_once():
    model = Moe(lambda: Only(lambda x: x))
    watch = RouterWatch(model, routers=gates_of)

    model(one_hot_logits([0, 1]))
    report = watch.report(1)

    assert report.layers[0].counts is None
    assert report.layers[0].load_balance is None
    assert report.layers[0].spread == 8.0
    [note] = report.notes
    assert note.startswith("gates.0 and gates.1: nobody says how many experts it sends a token to")
    assert "no collapse" in note
    assert "pass top_k=" in note


@pytest.mark.parametrize(
    "spoil",
    [
        lambda model, n: model(one_hot_logits([0] * n), attention_mask=torch.zeros(1, 1, n, n)),
        lambda model, n: model(one_hot_logits([0] * n), attention_mask=torch.ones(1, n + 1, dtype=torch.int64)),
        lambda model, n: model(one_hot_logits([0] * n)),
    ],
    ids=["another mask", "a mask of other tokens", "no k"],
)
def test_a_cause_that_lasts_is_the_same_note_in_each_report(spoil: Any):
    model = Moe(lambda: Only(lambda x: x))
    watch = RouterWatch(model, routers=gates_of)
    notes = []

    for step, num_tokens in enumerate([3, 7], 1):
        spoil(model, num_tokens)
        notes.append(watch.report(step).notes)

    assert notes[0] == notes[1] != ()


def test_a_layer_that_cannot_be_read_is_told_in_each_report():
    model = Moe(lambda: Only(lambda x: {"logits": x}))
    watch = RouterWatch(model, routers=gates_of, top_k=1)

    model(one_hot_logits([0]))

    assert watch.report(1).notes == watch.report(2).notes != ()


def test_numbers_of_numpy_are_numbers():
    model = Moe(lambda: Only(lambda x: x))
    watch = RouterWatch(model, routers=gates_of, top_k=np.int64(1), num_populations=np.int64(2))

    model(one_hot_logits([0, 1]))

    assert watch.report(1).layers[0].counts == (1, 1, 0, 0)
    assert type(watch.num_populations) is int


def test_a_k_that_no_router_of_so_few_experts_can_have_costs_the_counts_and_ends_no_training():
    model = Moe(lambda: Only(lambda x: x))
    watch = RouterWatch(model, routers=gates_of, top_k=5)

    model(one_hot_logits([0, 1]))

    report = watch.report(1)
    assert [layer.counts for layer in report.layers] == [None, None]
    assert "it has 4 experts, fewer than its top_k" in report.notes[0]


def test_nan_logits_make_figures_nan_and_leave_counts_whole_until_the_next_report():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)
    logits = one_hot_logits([0, 1, 2])
    logits[0, 1] = math.nan

    model(logits)
    broken = watch.report(1).layers[0]
    model(one_hot_logits([0, 1, 2]))
    sound = watch.report(2).layers[0]

    assert all(math.isnan(getattr(broken, name)) for name in ("z", "lse", "load_balance", "token_entropy"))
    assert sum(broken.counts or ()) == broken.num_tokens == 3
    assert sound.z == pytest.approx(math.log(math.exp(8) + 3) ** 2)


def test_an_expert_that_is_forbidden_by_minus_infinity_leaves_every_figure_finite():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)

    model(torch.tensor([[[0.0, 0.0, -math.inf], [-math.inf, 3.0, 1.0]]]))

    layer = watch.report(1).layers[0]
    lse = [math.log(2), math.log(math.exp(3) + math.exp(1))]
    assert layer.spread == pytest.approx((0.0 + 2.0) / 2)  # of what is allowed
    assert layer.z == pytest.approx((lse[0] ** 2 + lse[1] ** 2) / 2)
    assert math.isfinite(layer.token_entropy or math.nan)


def test_an_index_that_is_no_expert_is_told_and_ends_nothing():
    model = Moe(lambda: Only(lambda x: (x, torch.tensor([[-1], [4], [7], [2]]))))
    watch = RouterWatch(model, routers=gates_of)

    model(one_hot_logits([0, 0, 0, 0]))
    report = watch.report(1)

    assert report.layers[0].counts == (0, 0, 1, 0)
    assert report.notes == ("gates.0 and gates.1: it chose experts that are none of its 4: not counted",)


def test_logits_that_are_changed_in_place_afterwards_are_told():
    class Spoiling(Moe):
        def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
            scaled = hidden * self.weight
            self.gates[0](scaled)
            scaled += 1.0
            self.gates[1](scaled)
            return scaled.sum()

    model = Spoiling()
    watch = RouterWatch(model, routers=gates_of)

    model(one_hot_logits([0]))

    [note] = watch.report(1).notes
    assert note.startswith("gates.0: its logits were changed in place")


def test_a_mask_that_does_not_fit_is_told_and_padding_counted():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)

    model(one_hot_logits([0, 1]), attention_mask=torch.zeros(1, 1, 2, 2))
    report = watch.report(1)

    assert report.layers[0].num_tokens == 2
    assert report.expected_tokens is None
    assert report.notes[0].startswith("the attention mask is a tensor of 4 dimensions and torch.float32")


class Tapping(nn.Module):
    """A router that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.watch: RouterWatch | None = None

    def forward(self, hidden: torch.Tensor, *, own_mask: torch.Tensor | None = None) -> torch.Tensor:
        logits = hidden * self.weight
        if self.watch is not None:
            self.watch.tap(logits, layer="first", mask=own_mask)
            self.watch.tap(logits, layer="second", indices=logits.argmin(-1, keepdim=True))
        return logits.sum()


def test_routers_that_are_no_modules_are_tapped_with_masks_of_their_own():
    model = Tapping()
    model.watch = RouterWatch(model, routers=(), top_k=1)

    model(one_hot_logits([1, 2, 3]), own_mask=torch.tensor([True, True, False]))
    model.eval()
    model(one_hot_logits([1, 2, 3]))
    report = model.watch.report(1)

    assert [(layer.name, layer.counts) for layer in report.layers] == [
        ("first", (0, 1, 1, 0)),
        ("second", (3, 0, 0, 0)),
    ]
    assert report.expected_tokens == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "no indices and RouterWatch no top_k"),
        ({"indices": torch.zeros(3)}, r"tensor of torch\.float32 as chosen experts"),
        ({"indices": torch.zeros(3, 5, dtype=torch.int64)}, "15 chosen experts for 3 tokens, .*from 1 to 4"),
        ({"indices": torch.zeros(3, dtype=torch.int64), "mask": torch.ones(2, dtype=torch.bool)}, "mask has shape"),
    ],
    ids=["nobody says k", "float indices", "more than there are", "another mask"],
)
def test_a_tap_that_makes_no_sense_is_refused(given: dict[str, Any], told: str):
    watch = RouterWatch(Moe(), routers=())

    with pytest.raises(UsageError, match=told):
        watch.tap(torch.zeros(3, 4), layer="first", **given)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "No router was found in Moe. Pass routers="),
        ({"routers": gates_of, "num_populations": 0}, "num_populations is 0"),
        ({"routers": gates_of, "top_k": 0}, "top_k is 0"),
        ({"routers": lambda model: 3}, "routers gave int"),
        ({"routers": lambda model: ["gates.0"]}, "routers names str at place 0"),
        ({"routers": lambda model: [model.gates[0]] * 2}, "'gates.0' twice"),
        ({"routers": [nn.Sequential(nn.Tanh(), nn.Linear(3, 4))]}, "gives logits alone.*pass top_k="),
        ({"routers": [nn.Linear(3, 4)], "top_k": 5}, "from 1 to the 4 experts"),
        ({"routers": [nn.Linear(3, 4)]}, "gives logits alone.*pass top_k="),
        ({"routers": [nn.Linear(3, 4)], "top_k": 1, "num_populations": 3}, "divides the 4 experts of"),
        ({"routers": gates_of, "num_populations": 2, "experts": lambda model: []}, "of 0 layers"),
    ],
    ids=[
        "none found",
        "no population",
        "top_k 0",
        "a number",
        "a name",
        "one twice",
        "a Linear at the end",
        "a k beyond",
        "a Linear",
        "a population too many",
        "experts missing",
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], told: str):
    with pytest.raises(UsageError, match=told):
        RouterWatch(Moe(), **settings)


@pytest.mark.parametrize(
    "routers",
    [
        lambda model: {"a": model.gates[0], "b": model.gates[1]},
        lambda model: nn.ModuleDict({"a": model.gates[0], "b": model.gates[1]}),
    ],
    ids=["a mapping", "a ModuleDict"],
)
def test_routers_may_have_names_of_their_own(routers: Any):
    model = Moe()
    watch = RouterWatch(model, routers=routers)

    model(one_hot_logits([0]))

    assert [layer.name for layer in watch.report(1).layers] == ["a", "b"]


def test_the_cosine_of_populations_is_that_of_the_experts_one_hands_over():
    model = Moe()
    weights = [torch.tensor([[1.0], [0.0], [0.0], [1.0]]), torch.tensor([[1.0], [0.0], [1.0], [0.0]])]
    watch = RouterWatch(model, routers=gates_of, num_populations=2, experts=lambda model: weights)

    model(one_hot_logits([0]))

    assert [layer.population_cosine for layer in watch.report(1).layers] == [0.0, pytest.approx(1.0)]


def test_a_copy_and_a_pickle_of_a_watched_model_count_for_nobody():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)

    copy.deepcopy(model)(one_hot_logits([0]))
    torch.load(saved, weights_only=False)(one_hot_logits([0]))

    assert watch.report(1).layers == ()


def test_hooks_keep_no_watch_alive_and_go_with_it():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)
    model(one_hot_logits([0]))
    gone = weakref.ref(watch)

    del watch
    gc.collect()

    assert gone() is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_watch_that_was_removed_hears_nothing_more_and_reports_what_it_heard():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)
    model(one_hot_logits([0]))

    watch.remove()
    model(one_hot_logits([1]))

    assert watch.report(1).layers[0].counts == (1, 0, 0, 0)


def test_a_layer_that_saw_nothing_since_the_last_report_is_named():
    model = Moe()
    watch = RouterWatch(model, routers=gates_of)
    model(one_hot_logits([0]))
    watch.report(1)

    report = watch.report(2)

    assert report.layers == ()
    assert report.notes == ("gates.0 and gates.1: no token was seen in these steps",)
