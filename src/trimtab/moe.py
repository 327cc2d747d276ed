"""Mixture of experts: the terms of a router's loss as they are defined, and a watch over routers while they train.

    z = moe.router_z_loss(logits, mask=mask)                         # (L,) of a list of layers
    balance = moe.load_balancing_loss(logits, top_k=2, mask=mask)    # 1 at balance
    counts = moe.expert_counts(logits, top_k=2, mask=mask)
    watch = moe.RouterWatch(model)                                   # hand it to Run(watch=), or ask it for a .report()

A facade of `trimtab.torch`; importing it loads torch.
"""

from trimtab.rules.aux.values import AuxAudit, TermWeight
from trimtab.torch.aux_audit.audit import audit_aux_weights
from trimtab.torch.router.expert_load import expert_counts, load_entropy, max_vio, token_entropy
from trimtab.torch.router.families import Router, find_routers
from trimtab.torch.router.losses import balanced_value, load_balancing_loss, router_z_loss
from trimtab.torch.router.populations import population_cosine, population_shares
from trimtab.torch.router.watch import RouterWatch
from trimtab.torch.router.window_load import WindowLoad
from trimtab.watched import LayerFigures, RouterReport

__all__ = [
    "AuxAudit",
    "LayerFigures",
    "Router",
    "RouterReport",
    "RouterWatch",
    "TermWeight",
    "WindowLoad",
    "audit_aux_weights",
    "balanced_value",
    "expert_counts",
    "find_routers",
    "load_balancing_loss",
    "load_entropy",
    "max_vio",
    "population_cosine",
    "population_shares",
    "router_z_loss",
    "token_entropy",
]
