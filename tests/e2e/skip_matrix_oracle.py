"""Two oracles of the matrix of skips; neither shares a line with Trimtab or ever sees a faulty loss.

`Twin` trains under the same host, and where the run under test has a faulty micro-batch, it puts a clean one times 0:
what it comes to is expected to the last bit. `ByHand` is one process in float64 without autograd's accumulation,
without a wrapper and without an optimizer: gradients of what was kept, summed by hand, and the update written out.
"""

import torch
import torch.nn.functional as F
from skip_matrix_hosts import (
    ACCUMULATION,
    LR,
    MAX_GRAD_NORM,
    NUM_TOKENS,
    OPTIMIZERS,
    Batch,
    Case,
    Host,
    clean_batch,
    rank_and_world,
    schedule,
    token_losses,
)


class Twin:
    """The same training, whose faulty micro-batches are clean ones that count nothing."""

    def __init__(self, host: Host, optimizer: str) -> None:
        self.host = host
        self.rank, self.world_size = rank_and_world(host)
        self.model = host.wrapped(host.net())
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = schedule(self.optimizer)

    def train(self, window: int, case: Case | None) -> list[float]:
        """Trains one window; gives the loss that each micro-batch added."""
        added = []
        for micro in range(ACCUMULATION):
            batch = clean_batch(window, micro, self.rank, self.host.dtype)
            with self.host.around(self.model, micro):
                loss = token_losses(self.model(batch.x, batch.branch), batch).sum() / NUM_TOKENS / ACCUMULATION
                if case is not None and case.is_left_out(micro, self.rank):
                    loss = loss * 0.0
                loss.backward()
            added.append(float(loss.detach()))
        if case is None or case.reason(self.world_size) == "stepped":
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
            self.optimizer.step()
        for parameter in self.model.parameters():
            parameter.grad = None
        self.scheduler.step()
        return added


class ByHand:
    """The same arithmetic in one process, float64, for parameters, moments and step counts of all ranks."""

    def __init__(self, host: Host, optimizer: str) -> None:
        self.is_adam = "AdamW" in optimizer
        self.rank, self.world_size = rank_and_world(host)
        self.sees = range(self.world_size) if self.world_size > 1 else (self.rank,)
        self.parameters = {name: p.detach().clone().double() for name, p in host.net().named_parameters()}
        self.moments: dict[str, list[torch.Tensor]] = {}
        self.num_steps = 0

    def train(self, window: int, case: Case | None) -> None:
        if case is not None and case.reason(self.world_size) != "stepped":
            return
        total = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        for rank in self.sees:
            for micro in range(ACCUMULATION):
                if case is None or not case.is_left_out(micro, rank):
                    self._add_gradient(total, clean_batch(window, micro, rank, torch.float64))
        share = 1.0 / (ACCUMULATION * self.world_size)
        norm = sum(float((share * g).square().sum()) for g in total.values()) ** 0.5
        share *= min(1.0, MAX_GRAD_NORM / (norm + 1e-6))
        self.num_steps += 1
        lr = LR / (1.0 + 0.01 * window)
        for name, gradient in total.items():
            self._update(name, share * gradient, lr)

    def state(self, like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """This rank's part of everything, by the names of `state_of`; a shard is a chunk of the first dimension."""
        found = dict(self.parameters)
        for name, moments in self.moments.items():
            keys = ("exp_avg", "exp_avg_sq") if self.is_adam else ("momentum_buffer",)
            found |= {f"{name} {key}": moment for key, moment in zip(keys, moments, strict=True)}
            if self.is_adam:
                found[f"{name} step"] = torch.tensor(float(self.num_steps))
        return {name: self._part(value, like[name].shape) for name, value in found.items()}

    def _part(self, value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        if value.shape == shape:
            return value
        chunks = value.chunk(self.world_size)
        return chunks[self.rank] if self.rank < len(chunks) else value[:0]

    def _add_gradient(self, total: dict[str, torch.Tensor], batch: Batch) -> None:
        leaves = {name: value.clone().requires_grad_() for name, value in self.parameters.items()}
        mean = token_losses(_forward(leaves, batch), batch).mean()
        gradients = torch.autograd.grad(mean, list(leaves.values()), allow_unused=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:
                total[name] += gradient

    def _update(self, name: str, gradient: torch.Tensor, lr: float) -> None:
        value, decay = self.parameters[name], 0.1
        if self.is_adam:
            first, second = self.moments.get(name, [torch.zeros_like(value), torch.zeros_like(value)])
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            root = (second / (1.0 - 0.999**self.num_steps)).sqrt() + 1e-8
            value = value - lr * decay * value - lr * (first / (1.0 - 0.9**self.num_steps)) / root
            self.moments[name] = [first, second]
        else:
            gradient = gradient + decay * value
            momentum = 0.9 * self.moments[name][0] + gradient if name in self.moments else gradient
            value = value - lr * momentum
            self.moments[name] = [momentum]
        self.parameters[name] = value


def _forward(values: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
    """`Net.forward`, written out."""

    def linear(h: torch.Tensor, name: str) -> torch.Tensor:
        return h @ values[f"{name}.weight"].T + values[f"{name}.bias"]

    h = torch.tanh(linear(batch.x, "entry"))
    for block in ("blocks.0", "blocks.1"):
        normed = F.layer_norm(h, (6,), values[f"{block}.norm.weight"], values[f"{block}.norm.bias"])
        h = h + linear(torch.tanh(linear(normed, f"{block}.inner")), f"{block}.outer")
    if "branches.0.weight" in values:
        h = h + linear(h, f"branches.{batch.branch}")
    return linear(h, "head").sum(-1)
