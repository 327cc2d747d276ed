"""An audit is never wrong with confidence: what it cannot tell is not sound, and what is sound under a factor is."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from trimtab import UsageError, moe

spec = importlib.util.spec_from_file_location("moe_audit_loops", Path(__file__).with_name("moe_audit_loops.py"))
loops = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = loops
spec.loader.exec_module(loops)

Z, LBL = loops.WEIGHTS["z"], loops.WEIGHTS["load_balance"]


def audit(model, losses, **settings):
    settings = {"weights": loops.WEIGHTS, "top_k": loops.TOP_K, "micro_batches": loops.batches(), **settings}
    settings.setdefault("routers", lambda inside: inside.gates)
    return moe.audit_aux_weights(model, losses=losses, **settings)


def of(aux, **settings):
    model = loops.net()
    put_together = settings.pop("put_together", loops.divided)
    return audit(model, loops.loss_of(model, aux, put_together=put_together), **settings)


def kinds(result):
    return [(finding.kind, finding.figures["term"]) for finding in result.findings]


# What cannot be told is not sound.


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("way", ["model", "autocast"])
def test_in_bfloat16_a_weight_is_not_known_and_what_to_do_is_said(way, factor):
    model = loops.net()
    if way == "model":
        model.bfloat16()
    right = loops.loss_of(
        model,
        lambda logits: (
            loops.sound([x.float() for x in logits]) + (factor - 1.0) * LBL * loops.balance_of(logits).mean()
        ),
    )

    def losses(batch, accumulation):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way == "autocast"):
            return right(batch, accumulation)

    result = audit(model, losses)

    assert not result.is_sound
    assert any("audit a float32 copy" in text for text in [*result.notes, *(one.text for one in result.findings)])


def weighed_by_layer(logits):
    return Z * loops.z_of(logits).mean() + LBL * (loops.balance_of(logits) * torch.tensor([1.5, 1.0, 0.5])).mean()


UNTOLD = {
    "weights of each layer": weighed_by_layer,
    "z of one layer once more": lambda logits: loops.sound(logits) + 0.5 * Z * loops.z_of(logits[:1]).mean() / 3,
    "noise behind the router": lambda logits: loops.sound([x + 0.3 * torch.randn_like(x) for x in logits]),
    "another term": lambda logits: loops.sound(logits) + 1e-3 * logits[0].square().mean(),
}


@pytest.mark.parametrize("aux", UNTOLD.values(), ids=UNTOLD)
def test_what_no_term_explains_is_not_sound_and_the_notes_say_that_another_form_is_there(aux):
    result = of(aux)

    assert not result.is_sound
    said = [*result.notes, *(finding.text for finding in result.findings)]
    assert any("another form of" in text for text in said), said


def sigmoids(logits):
    return [torch.log(x.sigmoid() / x.sigmoid().sum(-1, keepdim=True)) for x in logits]  # softmax of it is P


def balance_with(logits, share_of):
    values = []
    for layer, share in zip(logits, share_of, strict=True):
        chosen = torch.zeros_like(layer).scatter(-1, layer.topk(loops.TOP_K, dim=-1).indices, 1.0)
        values.append(loops.NUM_EXPERTS / loops.TOP_K * (chosen.mean((0, 1)) * share.mean((0, 1))).sum())
    return torch.stack(values).mean()


FORMS = {
    "P of sigmoids": (
        lambda x: Z * loops.z_of(x).mean() + LBL * balance_with(x, [s.softmax(-1) for s in sigmoids(x)]),
        ("load_balance", "P is made of sigmoids"),
    ),
    "f of the softmax": (
        lambda x: (
            Z * loops.z_of(x).mean()
            + LBL * torch.stack([4 * s.softmax(-1).mean((0, 1)).square().sum() for s in x]).mean()
        ),
        ("load_balance", "f is the softmax's mean"),
    ),
    "of each sequence": (
        lambda x: (
            Z * loops.z_of(x).mean()
            + LBL * torch.stack([loops.balance_of([s[i] for s in x]).mean() for i in range(4)]).mean()
        ),
        ("load_balance", "a load balance of each sequence"),
    ),
    "z of probabilities": (
        lambda x: Z * loops.z_of([s.softmax(-1) for s in x]).mean() + LBL * loops.balance_of(x).mean(),
        ("z", "z of probabilities, where it is of logits"),
    ),
}


@pytest.mark.parametrize(("aux", "expected"), FORMS.values(), ids=FORMS)
def test_a_known_other_form_is_named_and_nobody_is_told_to_add_the_term(aux, expected):
    name, words = expected
    [finding] = of(aux).findings

    assert (finding.kind, finding.figures["term"]) == ("weight_differs", name)
    assert words in finding.text


NAMELESS = {
    "logits of half the size": lambda x: loops.sound([layer / 2 for layer in x]),
    "logsumexp to the 4th": lambda x: (
        Z * torch.stack([s.logsumexp(-1).pow(4).mean() for s in x]).mean() + LBL * loops.balance_of(x).mean()
    ),
    "the size of logsumexp": lambda x: (
        Z * torch.stack([s.logsumexp(-1).abs().mean() for s in x]).mean() + LBL * loops.balance_of(x).mean()
    ),
}


@pytest.mark.parametrize("aux", NAMELESS.values(), ids=NAMELESS)
def test_no_factor_is_named_where_the_form_does_not_fit_and_the_bound_is_in_the_text(aux):
    result = of(aux)

    assert not result.is_sound
    for finding in result.findings:
        if finding.figures["bound"] > 0.1 * abs(finding.figures["found"]):
            assert "to within" in finding.text
            assert "another form of it" in finding.text
            assert "times as much" not in finding.text
    assert not any("add weight x term" in finding.text for finding in result.findings)
    assert not any("is in the gradient as" in finding.text for finding in result.findings)


def test_a_form_that_is_only_nearer_than_the_stated_one_is_not_named():
    # given: routers whose logsumexp is nearly the same in each layer, so that its size is nearly the square of its mean
    model = loops.net()
    for gate in model.gates:
        gate.weight.data.mul_(0.2)
        gate.bias.data.zero_()

    result = audit(model, loops.loss_of(model, NAMELESS["the size of logsumexp"]))

    assert not result.is_sound
    assert not any("is in the gradient as" in finding.text for finding in result.findings)


def test_swapped_weights_are_named_as_swapped():
    result = of(lambda logits: LBL * loops.z_of(logits).mean() + Z * loops.balance_of(logits).mean())

    assert kinds(result) == [("weight_differs", "z"), ("weight_differs", "load_balance")]
    assert "z weighs 0.01 in the gradient, stated 0.001, and load_balance 0.001, stated 0.01" in result.findings[0].text
    assert all("the two weights are swapped" in finding.text for finding in result.findings)


# What is sound stays sound, whatever the routers are like.


def zero(gate):
    gate.weight.data.zero_()


def collapsed(gate):
    gate.weight.data.zero_()
    gate.bias.data.copy_(torch.tensor([9.0, 0.0, 0.0, 0.0]))


def sharp(gate):
    gate.weight.data.mul_(20.0)


@pytest.mark.parametrize("make", [zero, collapsed, sharp, lambda gate: None], ids=["zero", "collapsed", "sharp", "new"])
def test_a_sound_loop_is_sound_with_any_routers(make):
    for seed in range(8):
        torch.manual_seed(seed)
        model = loops.Net()
        for gate in model.gates:
            make(gate)
        result = audit(model, loops.loss_of(model))
        assert result.is_sound, (seed, result)
        assert result.notes == ()


# A ce that holds a term.


def holding(model, *, add):
    """A loss whose ce is that of a model which adds its balance to it, as Hugging Face's are."""

    def losses(batch, accumulation):
        out, logits = model(batch[:, :-1])
        ce = F.cross_entropy(out.flatten(0, 1), batch[:, 1:].flatten())
        ce = ce + LBL * loops.balance_of(logits).mean()
        aux = Z * loops.z_of(logits).mean() + add * loops.balance_of(logits).mean()
        return {"total": (ce + aux) / accumulation, "ce": ce}

    return losses


def test_a_term_that_ce_holds_and_the_loop_adds_is_applied_twice():
    model = loops.net()
    result = audit(model, holding(model, add=LBL))

    [finding] = result.findings
    assert (finding.kind, finding.figures["term"]) == ("weight_applied_twice", "load_balance")
    assert finding.figures["found"] == pytest.approx(2 * LBL, rel=1e-3)
    assert "ce holds it with 0.01, and the loss adds 0.01 once more" in finding.text


def test_a_term_that_ce_holds_and_nobody_adds_has_its_weight_and_is_said_to_be_in_ce():
    model = loops.net()
    result = audit(model, holding(model, add=0.0))

    assert result.findings == ()
    assert result.weights[1].found == pytest.approx(LBL, rel=1e-3)
    [note] = result.notes
    assert "ce holds load_balance with 0.01" in note
    assert "output_router_logits=False" in note


# A factor on the whole loss.


def by_tokens(ce, aux, accumulation):
    return (ce + aux) * 44 / accumulation


SCALED = {
    "scaled for float16": (lambda ce, aux, n: 65536.0 * (ce + aux) / n, "6.554e+04"),
    "a thousand": (lambda ce, aux, n: 1000.0 * (ce + aux) / n, "1000"),
    "summed over tokens": (by_tokens, "44"),
    "divided by 8 ranks": (lambda ce, aux, n: (ce + aux) / 8 / n, "0.125"),
}


@pytest.mark.parametrize(("put_together", "words"), SCALED.values(), ids=SCALED)
def test_a_factor_on_the_whole_loss_is_in_no_weight_and_one_note_names_it(put_together, words):
    result = of(loops.sound, put_together=put_together)

    assert result.is_sound
    [note] = result.notes
    assert f"a factor of {words} is on ce and on the whole loss" in note

    wrong = of(lambda x: loops.sound(x) + Z * loops.z_of(x).mean(), put_together=put_together)
    assert kinds(wrong) == [("weight_differs", "z")]
    assert wrong.weights[0].found == pytest.approx(2 * Z, rel=1e-3)


def test_a_loss_summed_over_tokens_has_a_factor_of_each_micro_batch_and_is_sound():
    model = loops.net()
    right = loops.loss_of(model)

    def losses(batch, accumulation):
        given = right(batch, accumulation)
        return {**given, "total": given["total"] * batch.shape[0]}

    assert audit(model, losses, micro_batches=[loops.batches()[0][:1], loops.batches()[1]]).is_sound


def test_a_factor_on_ce_alone_leaves_weights_as_they_are_and_is_not_sound():
    result = of(loops.sound, put_together=lambda ce, aux, n: (128.0 * ce + aux) / n)

    assert not result.is_sound
    assert not result.findings
    [note] = result.notes
    assert "ce weighs 128 in the gradient, and terms do not have that factor" in note


def test_a_loss_without_the_gradient_of_ce_is_not_sound():
    result = of(loops.sound, put_together=lambda ce, aux, n: (ce.detach() + aux) / n)

    assert not result.is_sound
    assert "ce is not in the gradient of total" in result.notes[0]


# Routers that are called more than once.


def shared(model, batch):
    """One router for all layers."""
    hidden, logits = model.embed(batch), []
    for experts in model.experts:
        logits.append(model.gates[0](hidden))
        hidden = hidden + logits[-1].softmax(-1)[..., :1] * torch.tanh(experts[0](hidden))
    return model.head(hidden), logits


def in_chunks(model, batch):
    parts = [model(rows) for rows in batch.chunk(2)]
    return torch.cat([out for out, _ in parts]), [
        torch.cat(layer) for layer in zip(*(x for _, x in parts), strict=True)
    ]


def after_an_evaluation(model, batch):
    with torch.no_grad():
        model(batch.flip(0))
    return model(batch)


def after_others(model, batch):
    model((batch + 3) % loops.NUM_TOKENS)
    return model(batch)


CALLS = {
    "one router for all layers": (
        shared,
        "called 3 times within losses: the terms are those of all calls, each a layer",
    ),
    "in chunks": (in_chunks, "called 2 times within losses: the terms are those of all calls of each, put together"),
    "after other tokens": (after_others, "called 2 times within losses: the terms are those of the last call"),
    "after an evaluation": (after_an_evaluation, None),
}


@pytest.mark.parametrize(("forward", "words"), CALLS.values(), ids=CALLS)
def test_a_router_that_is_called_more_than_once_is_read_as_the_loss_reads_it(forward, words):
    def audited(factor):
        model = loops.net()

        def losses(batch, accumulation):
            out, logits = forward(model, batch[:, :-1])
            ce = F.cross_entropy(out.flatten(0, 1), batch[:, 1:].flatten())
            aux = factor * Z * loops.z_of(logits).mean() + LBL * loops.balance_of(logits).mean()
            return {"total": (ce + aux) / accumulation, "ce": ce}

        routers = {"gate": model.gates[0]} if forward is shared else model.gates
        return audit(model, losses, routers=routers)

    result = audited(1.0)
    assert result.is_sound, (result.findings, result.notes)
    if words is None:
        assert result.notes == ()
    else:
        assert words in result.notes[0]
    assert audited(2.0).weights[0].found == pytest.approx(2 * Z, rel=1e-3)


def test_calls_that_no_reading_explains_are_a_note_that_asks_for_the_logits():
    model = loops.net()

    def losses(batch, accumulation):
        parts = [model(rows[:, :-1]) for rows in batch.split([1, 1, 2])]
        ce = F.cross_entropy(parts[1][0].flatten(0, 1), batch[1, 1:])
        return {"total": (ce + loops.sound(parts[1][1])) / accumulation, "ce": ce}

    result = audit(model, losses)

    assert result.findings == ()
    assert not result.is_sound
    assert "called 3 times within losses, and no reading of these calls" in result.notes[0]


# What the loop's code does meanwhile.


def test_a_loss_that_calls_backward_is_refused_and_gradients_are_as_before():
    model = loops.net()
    right = loops.loss_of(model)
    right(loops.batches()[0], 1)["total"].backward()
    model.head.weight.grad = None
    before = [None if p.grad is None else (id(p.grad), p.grad.clone()) for p in model.parameters()]

    def losses(batch, accumulation):
        given = right(batch, accumulation)
        given["total"].backward(retain_graph=True)
        return given

    with pytest.raises(UsageError, match=r"losses called backward"):
        audit(model, losses)
    for parameter, kept in zip(model.parameters(), before, strict=True):
        if kept is None:
            assert parameter.grad is None
        else:
            assert id(parameter.grad) == kept[0]
            assert torch.equal(parameter.grad, kept[1])


def test_an_audit_is_not_counted_by_a_watch_on_the_same_model():
    model = loops.net()
    watch = moe.RouterWatch(model, routers=lambda inside: inside.gates, top_k=loops.TOP_K)
    batch = loops.batches()[0][:, :-1]
    model(batch)

    audit(model, loops.loss_of(model))

    assert {layer.num_tokens for layer in watch.report(1).layers} == {batch.numel()}
