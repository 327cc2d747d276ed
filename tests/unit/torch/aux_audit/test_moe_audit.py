"""The audit of a loop's own loss: sound loops are found sound, and each broken one by what is broken in it."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from trimtab import UsageError, moe

spec = importlib.util.spec_from_file_location("moe_audit_loops", Path(__file__).with_name("moe_audit_loops.py"))
loops = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = loops
spec.loader.exec_module(loops)

Z, LBL = loops.WEIGHTS["z"], loops.WEIGHTS["load_balance"]


def audit(model=None, losses=None, **settings):
    model = loops.net() if model is None else model
    settings = {"weights": loops.WEIGHTS, "top_k": loops.TOP_K, "micro_batches": loops.batches(), **settings}
    settings.setdefault("routers", lambda inside: inside.gates)
    return moe.audit_aux_weights(model, losses=losses or loops.loss_of(model), **settings)


def of(aux, **settings):
    model = loops.net()
    gain = settings.pop("gain", 1.0)
    model.gates.load_state_dict({name: gain * value for name, value in model.gates.state_dict().items()})
    put_together = settings.pop("put_together", loops.divided)
    logged = settings.pop("logged", None)
    return audit(model, loops.loss_of(model, aux, put_together=put_together, logged=logged), **settings)


def found(result):
    return [(finding.kind, finding.figures["term"]) for finding in result.findings]


# Sound loops.

SOUND = {
    "mean over layers": (loops.sound, {}),
    "sum over layers": (
        lambda logits: Z * loops.z_of(logits).sum() + LBL * loops.balance_of(logits).sum(),
        {"over_layers": "sum"},
    ),
    "pooled": (
        lambda logits: Z * loops.z_of(logits).mean() + LBL * loops.pooled_of(logits),
        {"convention": "hf"},
    ),
    "z alone": (lambda logits: Z * loops.z_of(logits).mean(), {"weights": {"z": Z}}),
    "load balance off": (lambda logits: Z * loops.z_of(logits).mean(), {"weights": {"z": Z, "load_balance": 0.0}}),
    "nothing": (lambda logits: 0.0 * logits[0].sum(), {"weights": {"z": 0.0, "load_balance": 0.0}}),
    "tiny": (lambda logits: 1e-5 * loops.z_of(logits).mean(), {"weights": {"z": 1e-5}}),
    "logits handed over": (
        loops.sound,
        {"routers": ()},
    ),
}


@pytest.mark.parametrize(("aux", "settings"), SOUND.values(), ids=SOUND)
def test_a_sound_loop_has_the_weights_that_are_stated(aux, settings):
    # given: a loop that divides what backward is called on, and logs each term as it is
    def logged(logits):
        is_sum, is_hf = settings.get("over_layers") == "sum", settings.get("convention") == "hf"
        z, balance = loops.z_of(logits), loops.balance_of(logits)
        return {
            "z": z.sum() if is_sum else z.mean(),
            "load_balance": (loops.pooled_of(logits) if is_hf else balance.sum() if is_sum else balance.mean()).item(),
            "router_logits": logits if settings.get("routers") == () else None,
        }

    # when
    result = of(aux, logged=logged, **settings)

    # then
    assert result.findings == ()
    assert result.notes == ()
    assert result.is_sound
    for weight in result.weights:
        assert weight.found == pytest.approx(weight.stated, rel=1e-3, abs=1e-6)
        assert weight.accumulated == pytest.approx(weight.stated, rel=1e-3, abs=1e-6)


def test_a_loop_that_divides_ce_by_the_tokens_of_its_window_is_sound():
    rows = [loops.batches()[0][:1], loops.batches()[1]]  # 11 tokens, and 44

    def put_together(ce, aux, accumulation):
        return ce * (0.4 if accumulation > 1 else 1.0) / accumulation + aux / accumulation

    assert of(loops.sound, put_together=put_together, micro_batches=rows).findings == ()


# Broken ones.

UNDIVIDED = {"put_together": lambda ce, aux, accumulation: ce / accumulation + aux}
BROKEN = {
    "a factor inside and outside": (
        lambda logits: Z * 0.01 * loops.z_of(logits).mean() + LBL * loops.balance_of(logits).mean(),
        {},
        [("weight_applied_twice", "z")],
        "z weighs 1e-05 in the gradient, stated 0.001: a factor of 0.01 stands inside",
    ),
    "the coefficient squared": (
        lambda logits: Z * loops.z_of(logits).mean() + LBL * LBL * loops.balance_of(logits).mean(),
        {},
        [("weight_applied_twice", "load_balance")],
        "load_balance weighs 0.0001 in the gradient, stated 0.01: it is the weight squared",
    ),
    "one ignored": (
        lambda logits: LBL * loops.balance_of(logits).mean(),
        {},
        [("weight_not_applied", "z")],
        "the loss does not hold it",
    ),
    "total is ce": (
        lambda logits: 0.0 * loops.z_of(logits).mean(),
        {},
        [("weight_not_applied", "z"), ("weight_not_applied", "load_balance")],
        "the loss is ce alone",
    ),
    "detached": (
        lambda logits: Z * loops.z_of(logits).mean().detach() + LBL * loops.balance_of(logits).mean(),
        {},
        [("constant_aux", "z")],
        "its gradient is 0: it is detached",
    ),
    "both detached": (
        lambda logits: loops.sound(logits).detach(),
        {"gain": 4.0},
        [("constant_aux", "z"), ("constant_aux", "load_balance")],
        "its gradient is 0: it is detached",
    ),
    "not divided by the accumulation": (
        loops.sound,
        UNDIVIDED,
        [("accumulation_dependent", "z"), ("accumulation_dependent", "load_balance")],
        "z weighs 0.004 in a window of 4 micro-batches and 0.001 in one of 1",
    ),
    "divided by a number of its own": (
        loops.sound,
        {"put_together": lambda ce, aux, accumulation: ce / accumulation + aux / 2},
        [
            ("weight_differs", "z"),
            ("accumulation_dependent", "z"),
            ("weight_differs", "load_balance"),
            ("accumulation_dependent", "load_balance"),
        ],
        "z weighs 0.0005 in the gradient, stated 0.001",
    ),
    "nothing divided": (
        loops.sound,
        {"put_together": lambda ce, aux, accumulation: ce + aux},
        [
            ("accumulation_dependent", "z"),
            ("accumulation_dependent", "load_balance"),
            ("accumulation_dependent", "ce"),
        ],
        "ce weighs 4 in a window of 4 micro-batches",
    ),
    "not divided by k": (
        lambda logits: Z * loops.z_of(logits).mean() + LBL * 2 * loops.balance_of(logits).mean(),
        {},
        [("weight_differs", "load_balance")],
        "a factor of k = 2: it is not divided by k",
    ),
    "summed over layers": (
        lambda logits: Z * loops.z_of(logits).sum() + LBL * loops.balance_of(logits).mean(),
        {},
        [("weight_differs", "z")],
        "a factor of L = 3: it is the sum over layers",
    ),
    "pooled over layers": (
        lambda logits: Z * loops.z_of(logits).mean() + LBL * loops.pooled_of(logits),
        {},
        [("weight_differs", "load_balance")],
        'pooled over layers (convention="hf"), and weighs 0.01',
    ),
    "P of the chosen experts": (
        lambda logits: Z * loops.z_of(logits).mean() + LBL * loops.balance_of(logits, full=False).mean(),
        {},
        [("weight_differs", "load_balance")],
        "P is made of the chosen experts alone",
    ),
    "later layers left out": (
        lambda logits: Z * loops.z_of(logits[:1]).mean() + LBL * loops.balance_of(logits).mean(),
        {},
        [("weight_differs", "z")],
        "that of the first layer alone",
    ),
    "the square of the mean": (
        lambda logits: (
            Z * torch.stack([layer.logsumexp(-1).mean().square() for layer in logits]).mean()
            + LBL * loops.balance_of(logits).mean()
        ),
        {"gain": 4.0},  # as training makes routers; at the start all logsumexp are nearly the same
        [("weight_differs", "z")],
        "(mean of logsumexp)^2",
    ),
    "another factor": (
        lambda logits: 3.3 * Z * loops.z_of(logits).mean() + LBL * loops.balance_of(logits).mean(),
        {},
        [("weight_differs", "z")],
        "3.3 times as much",
    ),
}


@pytest.mark.parametrize(("aux", "settings", "kinds", "words"), BROKEN.values(), ids=BROKEN)
def test_a_broken_loop_is_found_by_what_is_broken_in_it(aux, settings, kinds, words):
    result = of(aux, **settings)

    assert found(result) == kinds
    assert any(words in finding.text for finding in result.findings), result.findings


def test_a_value_that_is_logged_with_a_hidden_factor_or_summed_over_the_window_is_found():
    # given: z logged at a hundredth, and the window's load balance as the sum of its two micro-batches
    model = loops.net()
    window = sum(loops.balance_of(model(batch[:, :-1])[1]).mean().item() for batch in loops.batches())
    losses = loops.loss_of(model, logged=lambda logits: {"z": 0.01 * loops.z_of(logits).mean()})

    # when
    result = audit(model, losses, logged={"load_balance": window}, accumulation=2)

    # then
    assert found(result) == [("logged_differs", "z"), ("logged_differs", "load_balance")]
    assert "logged / real = 0.01" in result.findings[0].text
    assert "it is the sum over 2 micro-batches" in result.findings[1].text


# Padding, further terms, and what cannot be known.


def with_padding(batch):
    mask = torch.ones(batch.shape[0], batch.shape[1] - 1, dtype=torch.bool)
    mask[:, 6:] = False
    return mask


def test_padding_that_the_loss_leaves_in_is_found_and_padding_that_it_leaves_out_is_sound():
    def masked(logits):
        return Z * torch.stack([layer[:, :6].logsumexp(-1).square().mean() for layer in logits]).mean()

    settings = {"weights": {"z": Z}, "mask": with_padding}
    assert of(masked, **settings).is_sound
    [finding] = of(lambda logits: Z * loops.z_of(logits).mean(), **settings).findings
    assert "its value with padding in it" in finding.text


def test_a_mask_that_nobody_has_named_is_a_note_and_no_finding():
    result = of(
        lambda logits: LBL * loops.balance_of([layer[:, :2] for layer in logits]).mean(), weights={"load_balance": LBL}
    )

    assert result.findings == ()
    assert not result.is_sound
    assert "pass mask=" in result.notes[0]


@pytest.mark.parametrize("seed", range(8))
def test_what_the_audit_is_not_told_of_makes_weights_rough_and_no_finding(seed):
    # given: a loop that masks all but two tokens, and one with a term that nobody names
    torch.manual_seed(seed)
    model = loops.Net()
    masked = loops.loss_of(model, lambda logits: loops.sound([layer[:, :2] for layer in logits]))
    more = loops.loss_of(model, lambda logits: loops.sound(logits) + 0.01 * logits[0].square().mean())
    batch = torch.randint(loops.NUM_TOKENS, (4, 12))

    for losses in (masked, more):
        result = audit(model, losses, micro_batches=[batch])

        assert result.findings == ()
        assert not result.is_sound


def test_a_term_of_the_users_own_that_is_a_constant_in_the_loss_is_found():
    def penalty(logits):
        return logits[0].detach().square().mean()

    result = of(
        lambda logits: loops.sound(logits) + 0.1 * penalty(logits),
        weights={**loops.WEIGHTS, "penalty": 0.1},
        logged=lambda logits: {"penalty": penalty(logits)},
    )

    assert found(result) == [("constant_aux", "penalty")]


@pytest.mark.parametrize("way", ["terms", "losses"])
def test_a_term_of_the_users_own_is_measured_like_the_others(way):
    # given: a penalty on router weights, stated 0.4, added with 0.25
    model = loops.net()

    def penalty(batch=None):
        return sum(gate.weight.square().sum() for gate in model.gates)

    losses = loops.loss_of(
        model,
        lambda logits: loops.sound(logits) + 0.25 * penalty(),
        logged=lambda logits: {"penalty": penalty()} if way == "losses" else {},
    )

    # when
    result = audit(
        model,
        losses,
        weights={**loops.WEIGHTS, "penalty": 0.4},
        terms={"penalty": penalty} if way == "terms" else None,
    )

    # then
    assert found(result) == [("weight_differs", "penalty")]
    assert result.weights[2].found == pytest.approx(0.25, rel=1e-3)


def test_a_term_twice_is_said_to_be_unknown_and_nothing_is_guessed():
    result = of(loops.sound, weights={**loops.WEIGHTS, "again": Z}, logged=lambda x: {"again": loops.z_of(x).mean()})

    assert result.findings == ()
    assert [weight.found is None for weight in result.weights] == [True, False, True]
    assert len(result.notes) == 3  # the load balance is rough, for what z adds to the gradient is not known


# How a loop may be built.


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
def test_a_model_of_another_precision_is_found_sound_to_its_rounding(dtype):
    model = loops.net().to(dtype)
    strong = {"z": 0.1, "load_balance": 1.0}
    losses = loops.loss_of(
        model,
        lambda logits: (
            0.1 * loops.z_of([x.float() for x in logits]).mean() + loops.balance_of([x.float() for x in logits]).mean()
        ),
    )

    result = audit(model, losses, weights=strong)

    assert result.findings == ()
    assert result.weights[0].found == pytest.approx(0.1, rel=1e-6 if dtype is torch.float64 else 0.05)


def test_dropout_draws_the_same_numbers_each_time():
    model = loops.net(dropout=0.5).train()
    right, drawn = loops.loss_of(model), []

    def losses(batch, accumulation):
        given = right(batch, accumulation)
        drawn.append(torch.rand(()).item())
        return given

    result = audit(model, losses)

    assert (len(drawn), len(set(drawn))) == (4, 1)
    assert result.is_sound
    assert result.weights[0].found == pytest.approx(Z, rel=1e-3)


def recomputing(model, *, reentrant):
    """The model with its routers and experts under activation checkpointing."""

    def losses(batch, accumulation):
        def part(hidden, gate):
            logits = gate(hidden)
            return torch.tanh(hidden) * logits.softmax(-1).amax(-1, keepdim=True)

        hidden = model.embed(batch[:, :-1])
        for gate in model.gates:
            hidden = checkpoint(part, hidden, gate, use_reentrant=reentrant)
        ce = torch.nn.functional.cross_entropy(model.head(hidden).flatten(0, 1), batch[:, 1:].flatten())
        return {"total": ce / accumulation, "ce": ce}

    return losses


def test_activation_checkpointing_works_where_it_is_not_reentrant_and_is_refused_where_it_is():
    model = loops.net()

    result = audit(model, recomputing(model, reentrant=False), weights={"z": 0.0})
    assert result.is_sound

    with pytest.raises(UsageError, match=r"use_reentrant=False"):
        audit(model, recomputing(model, reentrant=True), weights={"z": 0.0})
    own = {"weights": {"mine": 0.0}, "terms": {"mine": lambda batch: model.gates[0].weight.sum()}}
    with pytest.raises(UsageError, match=r"use_reentrant=False"):
        audit(model, recomputing(model, reentrant=True), **own)


# What is refused.


def giving(**changed):
    def make(model):
        right = loops.loss_of(model)
        return lambda batch, accumulation: {**right(batch, accumulation), **changed}

    return make


REFUSED = {
    "no micro-batches": ({"micro_batches": []}, None, "micro_batches is empty"),
    "no weights": ({"weights": {}}, None, "weights is empty"),
    "a weight that is no number": ({"weights": {"z": math.nan}}, None, "weights has nan for z"),
    "an odd convention": ({"convention": "switsch"}, None, "convention is 'switsch'"),
    "odd layers": ({"over_layers": "max"}, None, "over_layers is 'max'"),
    "an odd accumulation": ({"accumulation": 0}, None, "accumulation is 0"),
    "a term without a weight": ({"terms": {"mine": None}}, None, "weights does not name mine"),
    "a term that nobody makes": ({"weights": {"mine": 1.0}}, None, "Nobody says what mine is"),
    "no router": ({"routers": ()}, None, "No router gave logits"),
    "no k": ({"top_k": None, "routers": ()}, None, "pass top_k="),
    "no mapping": ({}, lambda model: lambda batch, n: 3.0, "expected a mapping with"),
    "a loss that is a number": ({}, giving(total=1.0), "total is of type float"),
    "a loss of shape (2,)": ({}, giving(total=torch.ones(2)), "total is of shape (2,)"),
    "a loss without a gradient": ({}, giving(total=torch.ones(())), 'gave a "total" without a gradient'),
    "a loss that is NaN": ({}, giving(ce=torch.tensor(math.nan)), "ce is nan"),
}


@pytest.mark.parametrize(("settings", "make", "words"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused_in_a_sentence(settings, make, words):
    model = loops.net()
    with pytest.raises(UsageError) as error:
        audit(model, make(model) if make is not None else None, **settings)
    assert words in str(error.value)


@pytest.mark.parametrize("given", [lambda x: (x,), lambda x: ()], ids=["one value", "no value"])
def test_a_router_whose_logits_are_not_where_they_should_be_is_refused_after_the_forward(given):
    class Llama4Router(torch.nn.Linear):
        top_k = loops.TOP_K

        def forward(self, x):
            self.logits = super().forward(x)
            return given(self.logits)

    class Gate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.router = Llama4Router(loops.WIDTH, loops.NUM_EXPERTS)

        def forward(self, x):
            self.router(x)
            return self.router.logits

    model = loops.net()
    model.gates[1] = Gate()

    with pytest.raises(UsageError, match=r"The router gates\.1\.router cannot be read: it gave . values, expected 2"):
        audit(model, routers=None)


def test_a_loss_that_has_called_backward_is_refused():
    model = loops.net()
    right = loops.loss_of(model)

    def losses(batch, accumulation):
        given = right(batch, accumulation)
        given["total"].backward()
        return given

    with pytest.raises(UsageError, match=r"before any backward"):
        audit(model, losses)


def test_frozen_routers_and_a_loss_of_another_model_are_refused():
    frozen = loops.net()
    frozen.gates.requires_grad_(False)
    with pytest.raises(UsageError, match=r"unfreeze the routers"):
        audit(frozen)
    with pytest.raises(UsageError, match=r"of another model"):
        audit(
            loops.net(),
            recomputing(loops.net(), reentrant=False),
            weights={"mine": 1.0},
            terms={"mine": lambda b: b.sum() * torch.ones((), requires_grad=True)},
        )
