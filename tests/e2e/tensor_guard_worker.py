"""What `test_tensor_guard_two_processes.py` runs on both ranks: `loss = guard(loss)`, and the same without a guard."""

import contextlib
import math
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trimtab import GuardConfig, LossGuard, PerTokenLossGuard, Run, UsageError

ACCUMULATION = 3
BAD_WINDOW, NUM_WINDOWS = 2, 4
PLACES = {"first": {0}, "middle": {1}, "last": {2}, "all": {0, 1, 2}}
OPTIMIZERS = {
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "foreach AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "SGD momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=0.1),
}


def make_model(host):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    if host.startswith("DDP"):
        return DistributedDataParallel(model)
    fully_shard(model[2])
    return fully_shard(model)


@contextlib.contextmanager
def reduced_when_due(model, host, *, is_last):
    """Gradients are reduced at the window's last micro-batch, or at each."""
    if is_last or host.endswith("each"):
        yield
    elif host.startswith("DDP"):
        with model.no_sync():
            yield
    else:
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)


def loss_of(model, window, micro, fault=None):
    dice = torch.Generator().manual_seed(100 * window + 10 * micro + dist.get_rank())
    x = torch.randn(16, 4, generator=dice)
    if fault == "NaN activation":
        x = torch.where(torch.arange(16)[:, None] == 3, math.nan, x)
    y = model(x)
    loss = ((y - 1) ** 2).mean()
    if fault == "finite spike":
        return loss * 100
    if fault == "spike with inf derivative":
        return loss * 100 + (y - y.detach()).abs().sum().sqrt()
    return loss * math.nan if fault == "NaN loss" else loss


def train(host, fault, place, optimizer_name, *, guarded):
    model = make_model(host)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    guard = LossGuard(multiplier=4.0, model=model) if guarded else None
    for window in range(NUM_WINDOWS):
        bad = PLACES[place] if window == BAD_WINDOW and fault else set()
        for micro in range(ACCUMULATION):
            # The fault is one rank's, the skip everybody's.
            hit = fault if micro in bad and dist.get_rank() == 1 and guarded else None
            with reduced_when_due(model, host, is_last=micro == ACCUMULATION - 1):
                loss = loss_of(model, window, micro, hit)
                if guard is not None:
                    loss = guard(loss)
                elif micro in bad:
                    loss = loss * 0
                (loss / ACCUMULATION).backward()
        if guarded or len(bad) < ACCUMULATION:
            optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, guard


def tensors_of(model, optimizer):
    moments = [value for state in optimizer.state.values() for value in state.values() if value is not None]
    tensors = [*model.state_dict().values(), *map(torch.as_tensor, moments)]
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def compare(host, fault, place, optimizer):
    """Whether a guarded training is, bit for bit, the one in plain torch; and what the guard says of it."""
    found = train(host, fault, place, optimizer, guarded=True)
    expected = train(host, fault, place, optimizer, guarded=False)
    state = found[2].state_dict()
    pairs = list(zip(tensors_of(*found[:2]), tensors_of(*expected[:2]), strict=True))
    return {
        "equal": all(torch.equal(one, other) for one, other in pairs),
        "num_judged": state["num_judged"],
        "num_skipped": state["num_skipped"],
        "window": state["rule"]["window"],
    }


def verdicts(losses):
    """Verdicts on one loss a rank, alike on both if all is well, and how many collectives that took."""
    parameter = nn.Linear(1, 1, bias=False)
    guard = LossGuard(multiplier=2.0, model=parameter)
    num_calls, all_reduce = 0, dist.all_reduce

    def counted(*args, **kwargs):
        nonlocal num_calls
        num_calls += 1
        return all_reduce(*args, **kwargs)

    dist.all_reduce = counted
    try:
        return kept(guard, parameter, losses), num_calls
    finally:
        dist.all_reduce = all_reduce


def kept(guard, parameter, losses):
    """Of each micro-batch, one loss a rank, whether it left a gradient."""
    nn.init.zeros_(parameter.weight)
    found = []
    for of_rank in losses:
        parameter.zero_grad()
        guard(parameter.weight.sum() + float(of_rank[dist.get_rank()])).backward()
        found.append(bool(parameter.weight.grad.any()))
    return found


def made_early(losses, meeting):
    """What a guard decides that was there before its process group, which begins anew here."""
    rank = dist.get_rank()
    dist.destroy_process_group()
    parameter = nn.Linear(1, 1, bias=False)
    guard = LossGuard(multiplier=2.0, model=parameter)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    return kept(guard, parameter, losses)


def groups_of_one(losses, num_more):
    """What a guard keeps whose process group is this rank alone; rank 1 makes some harmless calls more."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    parameter = nn.Linear(1, 1, bias=False)
    guard = LossGuard(multiplier=2.0, model=parameter, process_group=groups[dist.get_rank()])
    return kept(guard, parameter, losses + [(1, 1)] * num_more * dist.get_rank())


def unlike(multipliers):
    """How a call is refused to a guard that is set differently on each rank."""
    parameter = nn.Linear(1, 1, bias=False)
    guard = LossGuard(multiplier=multipliers[dist.get_rank()], model=parameter)
    try:
        guard(parameter.weight.sum())
    except UsageError as error:
        return str(error)
    return "not refused"


def loaded_on(ranks):
    """How a call is answered where a saved history was loaded on some ranks only."""
    parameter = nn.Linear(1, 1, bias=False)
    saved = LossGuard(multiplier=2.0)
    for loss in (1.0, 2.0, 3.0):
        saved.check(loss)
    guard = LossGuard(multiplier=2.0, model=parameter)
    if dist.get_rank() in ranks:
        guard.load_state_dict(saved.state_dict())
    try:
        guard(parameter.weight.sum())
    except UsageError as error:
        return str(error)
    return "not refused"


def compiled_verdicts(losses):
    """The same inside one graph."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    parameter = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(parameter.weight)
    guard = LossGuard(multiplier=2.0, model=parameter)
    with warnings.catch_warnings(action="ignore"):  # what a compiler says of its own imports
        compiled = torch.compile(lambda x: guard(parameter.weight.sum() + x.sum()), fullgraph=True, backend="aot_eager")
        kept = []
        for of_rank in losses:
            parameter.zero_grad()
            compiled(torch.tensor([float(of_rank[dist.get_rank()])])).backward()
            kept.append(bool(parameter.weight.grad.any()))
    return kept, torch._dynamo.utils.counters["stats"]["unique_graphs"]


def token_verdicts(figures):
    """The same for (loss sum, tokens) of each rank; a number is judged, the gradient is that of the weight."""
    parameter = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(parameter.weight)
    guard = PerTokenLossGuard(multiplier=2.0, model=parameter)
    kept = []
    for of_rank in figures:
        loss_sum, num_tokens = of_rank[dist.get_rank()]
        parameter.zero_grad()
        guard(parameter.weight.sum() + float(loss_sum), num_tokens).backward()
        kept.append(bool(parameter.weight.grad.any()))
    return kept


def words():
    """What a rank says when everything is skipped."""
    parameter = nn.Linear(1, 1, bias=False)
    guard = LossGuard(multiplier=2.0, model=parameter)
    for _ in range(10):
        guard(parameter.weight.sum() * math.nan)
    return guard.state_dict()["num_skipped"]


def words_of_steps():
    """What a rank says of an optimizer's parameters, of a norm that is not finite, and of a window without tokens."""
    model, temperature = nn.Linear(1, 1, bias=False), torch.ones((), requires_grad=True)
    guard = PerTokenLossGuard(multiplier=2.0, model=model)
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.0)
    for factor, num_tokens in ((1.0, 1), (math.inf, 1), (1.0, 0)):
        slope = (model.weight.sum() - model.weight.sum().detach()) * temperature
        # The loss is finite, its derivative by the weight is not.
        guard(torch.nan_to_num(slope * factor, 0.0) + 1.0, num_tokens).backward()
        model.weight.grad.mul_(factor)
        optimizer.step()
        optimizer.zero_grad()
    guard.state_dict()


def sharded_criterion():
    """Two windows of a model and a criterion, each sharded by itself, one optimizer; the second ends with a NaN."""
    torch.manual_seed(0)
    model, criterion = fully_shard(nn.Linear(4, 2)), fully_shard(nn.Linear(2, 1))
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    guard = LossGuard(multiplier=4.0, model=model)
    for window in range(2):
        for factor in (1.0, math.nan)[: window + 1]:
            loss = (criterion(model(torch.ones(3, 4))) ** 2).mean()
            guard(loss * factor if dist.get_rank() == 1 else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    finite = all(parameter.to_local().isfinite().all().item() for parameter in criterion.parameters())
    return finite, guard.state_dict()["num_skipped"]


def loaded_late(way):
    """How the next micro-batch is refused where each rank has loaded another state in mid-training."""
    parameter = nn.Linear(1, 1, bias=False)
    config = GuardConfig(multiplier=2.0)
    if way == "guard(loss)":
        holder = LossGuard(config, model=parameter)

        def take():
            holder(parameter.weight.sum() * 0 + 1.0).backward()
    else:
        optimizer = torch.optim.SGD(parameter.parameters(), lr=0.0)
        holder = Run(None, model=parameter, optimizer=optimizer, guard=config, record=False)

        def take():
            losses = parameter(torch.ones(2, 1)).squeeze(1) * 0 + 1.0
            holder.micro_batch(losses, rows=[0, 1], per="sample").backward()
            holder.step()

    early = holder.state_dict()
    for _ in range(2):
        take()
    holder.load_state_dict(early if dist.get_rank() == 0 else holder.state_dict())
    try:
        take()
    except UsageError as error:
        return str(error)
    return "not refused"
