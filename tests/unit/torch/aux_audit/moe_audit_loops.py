"""A mixture of experts of three routers, and the losses of loops around it, sound and broken.

The terms are written out here once more, so that nothing of Trimtab's says what Trimtab measures.
"""

import torch
import torch.nn.functional as F
from torch import nn

NUM_LAYERS, NUM_EXPERTS, TOP_K, NUM_TOKENS, WIDTH = 3, 4, 2, 11, 8
WEIGHTS = {"z": 1e-3, "load_balance": 1e-2}


class Net(nn.Module):
    """Tokens (B, T) in, (B, T, V) and the logits (B, T, E) of each router out; a counter in a buffer."""

    def __init__(self, *, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(NUM_TOKENS, WIDTH)
        self.gates = nn.ModuleList(nn.Linear(WIDTH, NUM_EXPERTS) for _ in range(NUM_LAYERS))
        self.experts = nn.ModuleList(
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_EXPERTS)) for _ in range(NUM_LAYERS)
        )
        self.head = nn.Linear(WIDTH, NUM_TOKENS)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens):
        self.num_calls += 1
        hidden, logits = self.embed(tokens), []
        for gate, experts in zip(self.gates, self.experts, strict=True):
            logits.append(gate(self.dropout(hidden)))
            share = logits[-1].softmax(-1)
            best = share.topk(TOP_K, dim=-1)
            kept = torch.zeros_like(share).scatter(-1, best.indices, best.values)
            hidden = hidden + sum(kept[..., i : i + 1] * torch.tanh(expert(hidden)) for i, expert in enumerate(experts))
        return self.head(hidden), logits


def net(**settings):
    torch.manual_seed(0)
    return Net(**settings)


def batches(num=2):
    dice = torch.Generator().manual_seed(1)
    return [torch.randint(NUM_TOKENS, (4, 12), generator=dice) for _ in range(num)]


def z_of(logits):
    return torch.stack([layer.logsumexp(-1).square().mean() for layer in logits])


def balance_of(logits, *, full=True):
    """(L,); P of the chosen experts alone where not full."""
    values = []
    for layer in logits:
        share = layer.flatten(0, -2).softmax(-1)
        chosen = torch.zeros_like(share).scatter(-1, share.topk(TOP_K, dim=-1).indices, 1.0)
        mean = (share if full else share * chosen).mean(0)
        values.append(NUM_EXPERTS * (chosen.mean(0) * mean).sum() / TOP_K)
    return torch.stack(values)


def pooled_of(logits):
    return balance_of([torch.cat([layer.flatten(0, -2) for layer in logits])])[0] * TOP_K


def divided(ce, aux, accumulation):
    return (ce + aux) / accumulation


def sound(logits):
    return WEIGHTS["z"] * z_of(logits).mean() + WEIGHTS["load_balance"] * balance_of(logits).mean()


def loss_of(model, aux=sound, *, put_together=divided, logged=None):
    """The loop's loss: `aux` makes what is added to ce, of the routers' logits."""

    def losses(batch, accumulation):
        out, logits = model(batch[:, :-1])
        ce = F.cross_entropy(out.flatten(0, 1), batch[:, 1:].flatten())
        return {
            "total": put_together(ce, aux(logits), accumulation),
            "ce": ce,
            **(logged(logits) if logged is not None else {}),
        }

    return losses
