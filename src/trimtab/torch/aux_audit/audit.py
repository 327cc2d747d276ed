"""`audit_aux_weights`: what each auxiliary term of a loss really weighs, measured in the loop's own gradient.

    losses(micro_batch, 1), losses(micro_batch, N)     the loop's code, forward only, the same random numbers
         -> gradients of total, of ce, and of each term as it is defined, by the routers' parameters
         -> dot products, micro-batch by micro-batch -> rules/aux/projection -> rules/aux/weights: findings

Enters: a model, the loop's loss, some micro-batches, and the weights that are meant. Leaves: an `AuxAudit`. Invariant:
nothing of the model, of its gradients, buffers and modes, of the optimizer and of the random numbers is changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from trimtab.errors import UsageError
from trimtab.rules.aux.factors import Sizes
from trimtab.rules.aux.values import AuxAudit, TermWeight
from trimtab.rules.aux.weights import Rest, constant_terms, judge_weights
from trimtab.text import plain
from trimtab.torch.aux_audit.arguments import refuse_odd, top_k_of, trained_parameters
from trimtab.torch.aux_audit.calls import Reading
from trimtab.torch.aux_audit.choice import best_form, best_reading, of_logits
from trimtab.torch.aux_audit.fitted import HARDLY, Fitted
from trimtab.torch.aux_audit.forms import LOAD_BALANCE, Definitions, OverLayers, Z
from trimtab.torch.aux_audit.measure import Losses, Made, Measuring, Seen
from trimtab.torch.aux_audit.model import unchanged
from trimtab.torch.aux_audit.notes import notes_of, stands_otherwise
from trimtab.torch.router.families import Router, Routers, find_routers, named_routers
from trimtab.torch.router.losses import Convention

Term = Callable[[Any], torch.Tensor]
"""A term as it is defined: takes a micro-batch, and is called after the loss of the same one."""

_CE_ALONE: Final = 1e-5
"""Share of a gradient beside ce that is rounding in float32."""


def audit_aux_weights(
    model: nn.Module,
    *,
    losses: Losses,
    micro_batches: Sequence[Any],
    weights: Mapping[str, float],
    top_k: int | None = None,
    convention: Convention = "switch",
    over_layers: OverLayers = "mean",
    accumulation: int = 4,
    mask: Callable[[Any], torch.Tensor | None] | None = None,
    routers: Callable[[nn.Module], Routers] | Routers | None = None,
    terms: Mapping[str, Term] | None = None,
    parameters: Sequence[nn.Parameter] | None = None,
    logged: Mapping[str, float] | None = None,
) -> AuxAudit:
    """Measures what the auxiliary terms of a loop's loss weigh in its gradient, and judges it by what is stated.

    The gradient of the loss is a sum: c x gradient of ce + weight x gradient of each term + a rest. The terms'
    gradients are those of Trimtab's own definitions on the routers' logits, so a factor anywhere in the loop's code
    shows in the weight. Weights are fitted by least squares over the routers' parameters, with c free in each
    micro-batch: once for the loss at accumulation 1, and once for the same rows at `accumulation`. A weight is known
    where the part of the gradient that nothing explains leaves at most a tenth of it open.

    A factor on the whole loss (loss scaling, a sum over tokens) is in no weight; a term that ce holds is counted with
    what is beside it; and of routers that are called more than once in a loss those calls are taken that explain its
    gradient. Each is said in the notes.

    No step is made and nothing is changed: gradients, buffers, modes and random numbers are as before, bit for bit, and
    no `RouterWatch` counts what is called; code in `losses` that counts or logs by itself goes on counting. It waits
    for the device. Memory: the graph of one forward of a micro-batch, and a gradient of the routers' parameters and of
    their logits for each term.

    Args:
        model: The model. Of DDP the wrapper or what is in it; gradients are not reduced, and a wrapper's forward is
            called equally often on every rank. Neither compiled nor sharded.
        losses: The loop's own loss, `losses(micro_batch, accumulation)`: forward, and no backward. It gives a mapping
            with "total", the tensor that backward is called on in a window of `accumulation` micro-batches, and "ce",
            the loss without any auxiliary term, undivided. Further numbers are what the loop logs of the term of that
            name, raw or times its weight. "router_logits", a list of (..., E), goes in place of listening to routers.
        micro_batches: Some, as the loop has them; a few hundred tokens tell terms apart.
        weights: What each term is meant to weigh: "z" (`router_z_loss`), "load_balance" (`load_balancing_loss`), and
            further terms by names of your own.
        top_k: k of the load balance; None: what the routers say.
        convention: The definition of load balance that its weight is meant for.
        over_layers: Whether "z" and "load_balance" are the mean over layers or their sum (Switch, ST-MoE, Megatron-LM),
            which makes weights L times smaller. Without effect on the convention "hf", which pools.
        accumulation: Micro-batches of the window that the loss is asked for beside 1.
        mask: Takes a micro-batch, gives which tokens are real, as for `router_z_loss`; None: all are.
        routers: As for `RouterWatch`; None: found by themselves.
        terms: Further terms as they are defined, by name. Without an entry, the tensor that `losses` gives by a name
            is the term.
        parameters: By which gradients are taken; None: the routers' own.
        logged: What the loop logs for a window of all `micro_batches`, by the term's name.

    Returns:
        The weights as found, findings, and notes: what could not be known, and what the weights go by.

    Raises:
        UsageError: An argument makes no sense; the loss gives something else, calls backward, is not finite or has no
            gradient; no router is heard; a parameter is sharded.

    Example:
        audit = moe.audit_aux_weights(model, losses=losses, micro_batches=batches, weights={"z": 1e-4})
        assert audit.is_sound, audit.findings or audit.notes
    """
    refuse_odd(
        micro_batches=micro_batches,
        weights=weights,
        accumulation=accumulation,
        convention=convention,
        over_layers=over_layers,
        named=[*(terms or ()), *(logged or ())],
    )
    heard = find_routers(model) if routers is None else named_routers(model, routers, top_k=top_k)
    own = [name for name in weights if name in (Z, LOAD_BALANCE) and name not in (terms or {})]
    is_k_known = top_k is not None or LOAD_BALANCE in own
    definitions = Definitions(
        top_k=top_k_of(heard, top_k) if is_k_known else None, convention=convention, over_layers=over_layers
    )
    made = {name: of_logits(definitions.stated(name)) if name in own else _of_loop(name, terms) for name in weights}
    with unchanged(model) as drawn:
        measuring = Measuring(
            losses=losses,
            accumulation=accumulation,
            mask=mask,
            routers=heard,
            needs_logits=bool(own),
            parameters=trained_parameters(model, parameters, routers=heard),
            all_parameters=list(model.parameters()),
            top_k=definitions.top_k if definitions.top_k is not None else _one_top_k(heard),
            drawn=drawn,
        )
        fitted, measuring = best_reading(measuring, micro_batches, made, weights=weights)
        if own:
            fitted = best_form(
                fitted, measuring, micro_batches, made, weights=weights, own=own, definitions=definitions
            )
    return _judged(
        fitted,
        weights=weights,
        sizes=_sizes(fitted, weights, own=own, accumulation=accumulation, definitions=definitions),
        logged=logged or {},
        is_logged={*own, *(terms or ())},
        reading=measuring.reading,
    )


def _judged(
    fitted: Fitted,
    *,
    weights: Mapping[str, float],
    sizes: Mapping[str, Sizes],
    logged: Mapping[str, float],
    is_logged: set[str],
    reading: Reading,
) -> AuxAudit:
    once, window = fitted.once, fitted.window
    terms = []
    for place, name in enumerate(weights):
        given = [one.given[name] for one in fitted.measured if name in one.given] if name in is_logged else []
        terms.append(
            TermWeight(
                name=name,
                stated=float(weights[name]),
                found=once.weights[place],
                bound=fitted.bound(once, place),
                noticed=once.noticed[place],
                accumulated=window.weights[place],
                accumulated_bound=fitted.bound(window, place),
                value=fitted.mean(fitted.terms[place]),
                logged=math.fsum(given) / len(given) if given else None,
                logged_window=logged.get(name),
                other_form=fitted.other.get(name, ""),
                in_ce=fitted.held.get(place, (0.0, 0.0))[0],
                sizes=sizes[name],
            )
        )
    constant = _constant(fitted, terms)
    rest: Rest = "" if not fitted.has_rest else "precision" if fitted.is_rough else "form"
    return judge_weights(
        [replace(term, is_constant=term.name in constant) for term in terms],
        ce=_mean(once.ce),
        ce_accumulated=_mean(window.ce),
        total_equals_ce=once.beside_ce <= _CE_ALONE * once.size,
        rest=rest,
        rest_share=once.rest_share,
        is_ce_in=(fitted.ce is None or abs(fitted.ce) > HARDLY) and not stands_otherwise(fitted),
        notes=notes_of(fitted, terms, reading=reading),
    )


def _constant(fitted: Fitted, terms: Sequence[TermWeight]) -> frozenset[str]:
    """The terms that are in the loss's value and not in its gradient."""
    if any(of_ce is None for of_ce in fitted.once.ce):
        return frozenset()
    absent = {
        term.name: term.stated * (term.value or 0.0)
        for place, term in enumerate(terms)
        if term.is_absent or fitted.has_no_gradient(place)
    }
    rest = fitted.rest_of_value()
    # Where ce alone has a factor, what is left of the value was divided by it and should not have been.
    return constant_terms(rest, absent) or constant_terms(rest * _mean_of(fitted.factors), absent)


def _sizes(
    fitted: Fitted, names: Iterable[str], *, own: Sequence[str], accumulation: int, definitions: Definitions
) -> dict[str, Sizes]:
    """Of each term: what factors between conventions could be made of."""
    first, is_hf = fitted.measured[0], definitions.convention == "hf"
    sizes = {}
    for name in names:
        of_term = Sizes(accumulation=accumulation, over_layers=definitions.over_layers, top_k=definitions.top_k)
        if name in own:
            is_pooled = name == LOAD_BALANCE and is_hf
            of_term = replace(
                of_term,
                num_layers=None if is_pooled else first.num_layers,
                num_experts=first.num_experts,
                is_divided=not is_hf if name == LOAD_BALANCE else None,
            )
        sizes[name] = of_term
    return sizes


def _of_loop(name: str, terms: Mapping[str, Term] | None) -> Made:
    """A term that the loop's code makes, or the user beside it."""
    term = (terms or {}).get(name)
    if term is not None:
        return lambda seen: term(seen.batch)

    def made(seen: Seen) -> Any:
        if name not in seen.given:
            raise UsageError(
                f"Nobody says what {plain(name)} is: have losses give its tensor by that name, undivided and without "
                f'its weight, or pass terms={{"{plain(name)}": ...}}, which takes a micro-batch and gives it.'
            )
        return seen.given[name]

    return made


def _one_top_k(routers: Sequence[Router]) -> int | None:
    found = {router.top_k for router in routers}
    return found.pop() if len(found) == 1 else None


def _mean_of(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _mean_of(known) if known else None
