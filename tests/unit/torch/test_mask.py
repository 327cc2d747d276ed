"""The mask against the table of what a skip is: every fault, decided on the host and on the device."""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from trimtab.errors import UsageError
from trimtab.torch.backward import backward_at_hand, when_backward_ends
from trimtab.torch.mask import GradientMask

DECIDED_BY = ["host", "device"]
DECIDERS = pytest.mark.parametrize("decide", DECIDED_BY)
KINDS = ["finite spike", "infinite derivative", "nan activation", "no tokens"]


def says(counts: bool, decide: str) -> bool | torch.Tensor:
    return counts if decide == "host" else torch.tensor(counts)


def mask_of(model: nn.Module) -> GradientMask:
    return GradientMask(model, parameters=model.parameters)


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5)).to(dtype)


def batch(index: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(index)).to(dtype)


def healthy_loss(model: nn.Module, index: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return F.cross_entropy(model(batch(index, dtype)), torch.arange(6) % 5)


def faulty_loss(model: nn.Module, index: int, kind: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = batch(index, dtype)
    if kind == "nan activation":
        x[2, 1] = math.nan
    logits = model(x)
    if kind == "no tokens":
        return F.cross_entropy(logits, torch.full((6,), -100))  # 0 / 0
    loss = F.cross_entropy(logits, torch.arange(6) % 5)
    if kind == "finite spike":
        return loss * 1e6
    if kind == "infinite derivative":
        return loss + (logits * 0.0).square().sum().sqrt()
    return loss


def window_without(place: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """The oracle: the gradients of a window that never ran the micro-batch at `place`."""
    model = net(dtype)
    for index in range(3):
        if index != place:
            healthy_loss(model, index, dtype).backward()
    return [parameter.grad for parameter in model.parameters()]


def sparse(rows: list[int], values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.sparse_coo_tensor([rows], values, shape, check_invariants=True)


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True))


# What a skip is.


@DECIDERS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_window_has_the_gradients_of_one_that_never_saw_the_skipped_micro_batch(decide, kind, place, dtype):
    # given
    model = net(dtype)
    mask = mask_of(model)
    # when
    for index in range(3):
        fault = index == place
        loss = faulty_loss(model, index, kind, dtype) if fault else healthy_loss(model, index, dtype)
        mask.hook()
        mask.bind(loss, says(not fault, decide)).backward()
    # then
    found = [parameter.grad for parameter in model.parameters()]
    assert same(found, window_without(place, dtype))


@pytest.mark.parametrize("kind", KINDS[1:3])
def test_masking_the_loss_alone_is_no_skip(kind):
    """Why the hooks are there: were this to pass without them, the tests above would show nothing."""
    model = net()

    torch.where(torch.tensor(False), faulty_loss(model, 0, kind), 0.0).backward()

    assert any(not parameter.grad.isfinite().all() for parameter in model.parameters())


@DECIDERS
def test_a_skipped_loss_is_zero_and_still_hangs_on_its_graph(decide):
    weight = nn.Parameter(torch.tensor([2.0, math.nan]))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()

    loss = mask.bind(weight.sum(), says(False, decide))
    loss.backward()

    assert loss.item() == 0.0
    assert weight.grad.tolist() == [0.0, 0.0]


def test_a_loss_that_the_host_keeps_is_handed_back_as_it_is():
    loss = torch.tensor(3.0, requires_grad=True)
    mask = GradientMask(None, parameters=list)

    assert mask.bind(loss, True) is loss


@DECIDERS
def test_gradients_that_count_keep_their_bits(decide):
    values = torch.tensor([-0.0, 0.0, 1e-45, -3.4e38, math.inf, -math.inf, math.nan, 1 / 3])
    weight = nn.Parameter(torch.zeros(8))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()

    mask.bind((weight * values).sum(), says(True, decide)).backward()

    assert torch.equal(weight.grad.view(torch.int32), values.view(torch.int32))


@DECIDERS
def test_a_skip_adds_a_positive_zero_so_that_a_gradient_stays_equal(decide):
    before = torch.tensor([-0.0, 1e-45, -3.5, 1e38])
    weight = nn.Parameter(torch.ones(4))
    weight.grad = before.clone()
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()

    mask.bind((weight * math.nan).sum(), says(False, decide)).backward()

    assert torch.equal(weight.grad, before)


def test_an_opened_mask_lets_a_foreign_backward_through():
    weight = nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    mask.set(torch.tensor(False))

    mask.open()
    weight.sum().backward()

    assert weight.grad.tolist() == [1.0, 1.0]


def test_a_verdict_of_a_compiled_graph_ends_where_one_is_bound_outside_of_it():
    weight = nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    mask.set(torch.tensor(False))

    mask.bind(weight.sum(), True)
    (weight * 3).sum().backward()

    assert weight.grad.tolist() == [3.0, 3.0]


class Copies(TorchDispatchMode):
    """Notes what is copied into an existing tensor: where from, its value, and where to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, bool, str]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default:
            to, source = args[:2]
            self.found.append((source.device.type, source.item(), to.device.type))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("counts", [True, False])
def test_a_verdict_reaches_a_device_that_is_first_met_after_it(counts):
    """On meta nothing has a value: that the right one is copied there is all that can be seen."""
    here, there = nn.Parameter(torch.ones(2)), torch.ones(2, device="meta")
    mask = GradientMask(None, parameters=lambda: [here])
    mask.hook()
    mask.set(torch.tensor(counts))

    with Copies() as copies:
        mask.kept(there)

    assert copies.found == [("cpu", counts, "meta")]


def test_the_verdict_is_copied_so_that_its_owner_may_change_it():
    weight = nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    keep = torch.tensor(False)
    mask.set(keep)

    keep.fill_(True)
    weight.sum().backward()

    assert weight.grad.tolist() == [0.0, 0.0]


def test_the_mask_itself_is_never_exchanged():
    """A compiled graph holds the tensor."""
    weight = nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    mask.set(torch.tensor(False))
    first = mask.kept(weight).grad_fn._saved_condition.data_ptr()

    mask.set(torch.tensor(True))

    assert mask.kept(weight).grad_fn._saved_condition.data_ptr() == first


# In which backward a verdict holds.


def test_torch_has_what_tells_of_the_backward_at_hand():
    told = []
    weight = nn.Parameter(torch.ones(1))
    loss = weight.sum()
    loss.register_hook(lambda _: (told.append(backward_at_hand()), when_backward_ends(lambda: told.append("end")))[0])
    weight.register_hook(lambda _: told.append("weight"))

    for _ in range(2):
        loss.backward(retain_graph=True)

    first, second = told[0], told[3]
    assert told == [first, "weight", "end", second, "weight", "end"]
    assert -1 == backward_at_hand() < first < second


@DECIDERS
def test_a_verdict_is_over_when_its_backward_is(decide):
    weight = nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    loss = mask.bind(weight.sum() * math.nan, says(False, decide))
    weight.sum().backward()  # of somebody else, before it
    loss.backward(retain_graph=True)

    weight.sum().backward()  # and after it
    (inner,) = torch.autograd.grad(weight.sum() * 3, weight)
    (again,) = torch.autograd.grad(loss, weight)

    assert (weight.grad.tolist(), inner.tolist(), again.tolist()) == ([2.0, 2.0], [3.0, 3.0], [0.0, 0.0])


@DECIDERS
@pytest.mark.parametrize("then", ["bind", "open"])
def test_a_backward_that_raises_leaves_no_verdict_behind(decide, then):
    # given
    weight = nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    middle = weight * 2

    def out_of_memory(_):
        raise MemoryError

    middle.register_hook(out_of_memory)
    with pytest.raises(MemoryError):
        mask.bind(middle.sum(), says(False, decide)).backward()
    # when
    mask.bind(weight.sum(), True) if then == "bind" else mask.open()
    weight.sum().backward()
    # then
    assert weight.grad.tolist() == [1.0, 1.0]


@DECIDERS
def test_a_backward_that_is_tried_again_after_it_has_raised_ends_as_any_other(decide):
    # given
    weight = nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    middle = weight * 2
    tries = []

    def out_of_memory_at_first(_):
        tries.append(None)
        if len(tries) == 1:
            raise MemoryError

    middle.register_hook(out_of_memory_at_first)
    loss = mask.bind(middle.sum() * math.inf, says(False, decide))
    with pytest.raises(MemoryError):
        loss.backward(retain_graph=True)
    # when
    loss.backward()
    assert weight.grad.tolist() == [0.0, 0.0]
    weight.sum().backward()
    # then
    assert weight.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("counts", [True, False])
def test_one_backward_may_be_for_two_losses_of_which_the_host_says_the_same(counts):
    weight = nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()

    sum(mask.bind(weight.sum() * factor, counts) for factor in (1.0, 2.0)).backward()

    assert weight.grad.tolist() == ([3.0, 3.0] if counts else [0.0, 0.0])


@pytest.mark.parametrize(
    "verdicts",
    [(True, False), (False, True), (torch.tensor(True), torch.tensor(True)), (True, torch.tensor(True))],
    ids=["kept and skipped", "skipped and kept", "device", "host and device"],
)
def test_one_backward_for_losses_of_different_verdicts_is_refused(verdicts):
    weight = nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    both = sum(mask.bind(weight.sum(), counts) for counts in verdicts)

    with pytest.raises(UsageError, match="Call backward on each loss"):
        both.backward()

    assert weight.grad is None


@pytest.mark.parametrize("verdicts", [(True, False), (torch.tensor(False), torch.tensor(False))], ids=DECIDED_BY)
def test_after_a_backward_that_was_refused_one_of_your_own_has_its_gradients(verdicts):
    weight = nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    with pytest.raises(UsageError):
        sum(mask.bind(weight.sum(), counts) for counts in verdicts).backward()

    weight.sum().backward()

    assert weight.grad.tolist() == [1.0, 1.0]


def test_a_kept_gradient_where_a_skip_has_left_zeros_is_not_lifted_with_them():
    weight = nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight], alone=True)
    mask.hook()
    skipped, kept = mask.bind(weight.sum(), False), mask.bind(weight.sum(), True)

    for loss in (skipped, kept):
        loss.backward()
    mask.lift()

    assert weight.grad.tolist() == [1.0, 1.0]


@DECIDERS
@pytest.mark.parametrize("then", ["bind", "open"])
def test_a_guarded_loss_of_another_model_is_told_once(decide, then, caplog):
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [other])
    mask.hook()

    for _ in range(2):
        mask.bind(weight.sum(), says(False, decide)).backward()
        mask.bind(weight.sum(), True) if then == "bind" else mask.open()

    (line,) = caplog.messages
    assert "reached no parameter of the guarded model" in line


@DECIDERS
def test_a_loss_that_is_also_differentiated_by_something_else_is_not_told(decide, caplog):
    weight, inputs = nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    loss = mask.bind((weight * inputs).sum(), says(False, decide))

    torch.autograd.grad(loss, inputs, retain_graph=True)
    loss.backward()
    mask.open()

    assert not caplog.messages


@DECIDERS
def test_a_guarded_loss_of_another_model_is_told_also_after_one_of_this(decide, caplog):
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()

    for parameter in (weight, other):
        mask.bind(parameter.sum(), says(False, decide)).backward()
        assert not caplog.messages
    mask.open()

    (line,) = caplog.messages
    assert "reached no parameter of the guarded model" in line


class FirstOnly(torch.autograd.Function):
    """Two tensors as they are, as DDP hands them through: what no loss is made of gets no gradient, and not a zero."""

    @staticmethod
    def forward(ctx, one, other):
        ctx.set_materialize_grads(False)
        return one.clone(), other.clone()

    @staticmethod
    def backward(ctx, one, other):
        return one, other


@DECIDERS
def test_a_loss_that_reaches_the_model_without_any_gradient_is_not_told(decide, caplog):
    """A model all of whose trained parameters the loss leaves out this time: backward has come by."""
    inputs, weight = torch.ones(2, requires_grad=True), nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    used, _ = FirstOnly.apply(inputs, weight)

    mask.bind(used.sum(), says(False, decide)).backward()
    mask.open()

    assert weight.grad is None
    assert not caplog.messages


# Which parameters have a hook.


@DECIDERS
def test_a_parameter_that_is_unfrozen_late_has_its_hook_from_then_on(decide):
    model = net()
    model[0].requires_grad_(False)
    mask = mask_of(model)
    mask.hook()

    model[0].requires_grad_(True)
    loss = faulty_loss(model, 0, "nan activation")
    mask.hook()
    mask.bind(loss, says(False, decide)).backward()

    assert all(parameter.grad.eq(0).all() for parameter in model.parameters())


def test_a_parameter_that_is_frozen_and_unfrozen_again_is_masked_again():
    model = net()
    mask = mask_of(model)
    mask.hook()
    model.requires_grad_(False)
    mask.hook()
    model.requires_grad_(True)
    mask.hook()

    mask.bind(faulty_loss(model, 0, "nan activation"), False).backward()

    assert all(parameter.grad.eq(0).all() for parameter in model.parameters())


def test_a_new_parameter_is_hooked_and_one_that_left_is_let_go():
    kept, left, new = (nn.Parameter(torch.ones(1)) for _ in range(3))
    shown = [kept, left]
    mask = GradientMask(None, parameters=lambda: shown)
    mask.hook()

    shown[1] = new
    mask.open()
    mask.hook()
    mask.bind((kept + left + new).sum() * math.inf, False).backward()

    assert [parameter.grad.eq(0).item() for parameter in (kept, left, new)] == [True, False, True]


def test_what_takes_another_parameters_place_before_the_first_verdict_is_hooked():
    # given a mask that was made before the model was made ready (sharded, assigned to)
    left, new = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    shown = [left]
    mask = GradientMask(None, parameters=lambda: shown)
    mask.hook()

    shown[0] = new
    mask.hook()
    mask.bind(new.sum() * math.inf, False).backward()

    assert new.grad.item() == 0.0


@DECIDERS
def test_a_layer_that_is_put_in_within_a_window_has_its_hook_from_the_next_call_on(decide):
    # given
    model = net()
    mask = mask_of(model)
    mask.hook()
    mask.bind(healthy_loss(model, 0), says(True, decide)).backward()
    model.zero_grad()
    # when
    model.append(nn.Linear(5, 5))
    loss = faulty_loss(model, 1, "nan activation")
    mask.hook()
    mask.bind(loss, says(False, decide)).backward()
    # then
    assert all(parameter.grad.eq(0).all() for parameter in model.parameters())


def test_all_parameters_are_looked_at_once_a_window_and_when_something_is_unfrozen():
    # given
    model, walks = net(), []
    model[2].requires_grad_(False)

    def parameters():
        walks.append(None)
        return model.parameters()

    mask = GradientMask(model, parameters=parameters)
    # when / then
    for window in (1, 2):
        for _ in range(3):
            mask.hook()
            mask.bind(torch.zeros(()), True)
        assert len(walks) == window
        mask.open()
    for is_trained in (False, True, True):
        model[2].requires_grad_(is_trained)
        mask.hook()
        mask.bind(torch.zeros(()), True)
    assert len(walks) == 4


def test_a_tied_weight_has_one_hook_however_often_it_is_shown_and_hooked():
    weight = nn.Parameter(torch.ones(1))
    mask = GradientMask(None, parameters=lambda: [weight, weight])

    mask.hook()
    mask.hook()

    assert len(weight._backward_hooks) == 1


def test_tied_weights_are_masked():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    mask = mask_of(model)
    mask.hook()

    mask.bind((model(torch.tensor([1, 2])) * math.nan).sum(), torch.tensor(False)).backward()

    assert torch.equal(model[0].weight.grad, torch.zeros(5, 3))


@DECIDERS
@pytest.mark.parametrize("counts", [True, False])
def test_a_sparse_gradient_stays_sparse_and_becomes_zero_only_when_skipped(decide, counts):
    # given
    table = nn.Embedding(6, 2, sparse=True)
    table.weight.grad = sparse([1, 4], torch.tensor([[0.5, 1.0], [2.0, -1.0]]), (6, 2))
    before = table.weight.grad.to_dense().clone()
    mask = mask_of(table)
    mask.hook()
    # when
    factor = 1.0 if counts else math.nan
    mask.bind(table(torch.tensor([4, 0, 4])).sum() * factor, says(counts, decide)).backward()
    # then
    expected = before + (torch.tensor([[1.0], [0], [0], [0], [2], [0]]) if counts else 0.0)
    assert table.weight.grad.is_sparse
    assert torch.equal(table.weight.grad.to_dense(), expected)


@pytest.mark.parametrize("is_coalesced", [True, False])
def test_a_sparse_gradient_keeps_its_coalesced_flag(is_coalesced):
    weight = nn.Parameter(torch.ones(4))
    given = sparse([1, 1], torch.tensor([1.0, 2.0]), (4,))
    given = given.coalesce() if is_coalesced else given
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    mask.set(torch.tensor(True))

    weight.backward(given)

    assert weight.grad.is_coalesced() is is_coalesced
    assert weight.grad.to_dense().tolist() == [0.0, 3.0, 0.0, 0.0]


@DECIDERS
@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.bfloat16, nn.Module.double])
def test_a_model_that_is_cast_after_hooking_is_masked_in_its_new_dtype(decide, cast):
    model = net()
    mask = mask_of(model)
    mask.hook()
    healthy_loss(model, 0).backward()
    model.zero_grad()

    cast(model)
    dtype = model[0].weight.dtype
    loss = faulty_loss(model, 0, "nan activation", dtype)
    mask.hook()
    mask.bind(loss, says(False, decide)).backward()

    assert all(p.grad.dtype == dtype and p.grad.eq(0).all() for p in model.parameters())


def test_a_scalar_parameter_in_half_precision_keeps_its_dtype():
    weight = nn.Parameter(torch.ones((), dtype=torch.bfloat16))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()

    mask.bind(weight * 3, torch.tensor(True)).backward()

    assert (weight.grad.dtype, weight.grad.item()) == (torch.bfloat16, 3.0)


def test_the_hook_does_not_change_what_it_is_given():
    weight = nn.Parameter(torch.ones(2))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    mask.set(torch.tensor(False))
    given = torch.tensor([5.0, 6.0])

    weight.backward(given)

    assert given.tolist() == [5.0, 6.0]


@DECIDERS
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpointed_model_is_masked(decide, use_reentrant):
    model = net()
    mask = mask_of(model)
    for index in range(3):
        x = batch(index).requires_grad_()
        with torch.no_grad():
            x[0, 0] = math.nan if index == 1 else x[0, 0]
        logits = model[2](checkpoint(nn.Sequential(model[0], model[1]), x, use_reentrant=use_reentrant))
        mask.hook()
        mask.bind(F.cross_entropy(logits, torch.arange(6) % 5), says(index != 1, decide)).backward()

    assert same([parameter.grad for parameter in model.parameters()], window_without(1))


def test_the_mask_reaches_parameters_on_a_device_where_the_verdict_is_not():
    """On meta nothing has a value; that the verdict is copied there is all that can be seen."""
    here, there = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, device="meta"))
    mask = GradientMask(None, parameters=lambda: [here, there])
    mask.hook()

    mask.bind(here.sum() * math.inf, torch.tensor(False)).backward()
    mask.bind(there.sum(), torch.tensor(False)).backward()

    assert here.grad.tolist() == [0.0, 0.0]
    assert there.grad.device.type == "meta"


def test_setting_and_masking_on_a_device_never_look_at_a_value():
    """A tensor on meta has none: whatever looks raises."""
    weight = nn.Parameter(torch.ones(2, device="meta"))
    table = nn.Embedding(5, 2, device="meta")
    mask = GradientMask(None, parameters=lambda: [weight, table.weight])
    mask.hook()

    loss = weight.sum() + table(torch.zeros(2, dtype=torch.long, device="meta")).sum()
    mask.bind(loss, torch.empty((), dtype=torch.bool, device="meta")).backward()

    assert weight.grad.device.type == "meta"


def test_a_model_that_moves_takes_its_mask_along_and_leaves_none_behind():
    """From meta nothing can be copied back: a mask that stayed where the model was would raise."""
    model = nn.Linear(2, 1)
    mask = mask_of(model)
    mask.hook()
    model.to("meta")
    mask.hook()

    loss = model(torch.ones(3, 2, device="meta")).sum()
    mask.bind(loss, torch.empty((), dtype=torch.bool, device="meta")).backward()

    assert model.weight.grad.device.type == "meta"


def test_a_removed_mask_lets_everything_through():
    weight = nn.Parameter(torch.ones(1))
    mask = GradientMask(None, parameters=lambda: [weight])
    mask.hook()
    loss = mask.bind(weight.sum(), False)

    mask.remove()
    (loss + weight.sum()).backward()

    assert weight.grad.item() == 1.0


def test_a_copy_of_a_hooked_model_in_memory_or_in_a_file_has_no_hooks():
    model = net()
    mask = mask_of(model)
    mask.hook()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)

    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        healthy_loss(twin, 0).backward()
        assert all(parameter.grad.ne(0).any() for parameter in twin.parameters())


# What a skip leaves where there was no gradient.


def test_zeros_are_lifted_where_there_was_no_gradient_and_nowhere_else():
    with_gradient, without = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    with_gradient.grad = torch.tensor([3.0])
    mask = GradientMask(None, parameters=lambda: [with_gradient, without], alone=True)
    mask.hook()
    mask.bind((with_gradient + without).sum(), False).backward()
    assert without.grad is not None

    mask.lift()

    assert (with_gradient.grad.item(), without.grad) == (3.0, None)


@pytest.mark.parametrize(("alone", "lifts"), [(False, True), (True, False)], ids=["several ranks", "kept, no token"])
def test_zeros_stay_where_other_ranks_have_them_or_the_micro_batch_was_kept(alone, lifts):
    weight = nn.Parameter(torch.ones(1))
    mask = GradientMask(None, parameters=lambda: [weight], alone=alone)
    mask.hook()
    mask.bind(weight.sum(), False, lifts=lifts).backward()

    mask.lift()

    assert weight.grad.item() == 0.0


def test_a_gradient_of_a_later_micro_batch_is_not_lifted():
    weight = nn.Parameter(torch.ones(1))
    mask = GradientMask(None, parameters=lambda: [weight], alone=True)
    mask.hook()
    mask.bind(weight.sum(), False).backward()
    mask.lift()

    mask.bind(weight.sum(), True).backward()
    mask.lift()

    assert weight.grad.item() == 1.0


# Compiled.


def step(model: nn.Module, mask: GradientMask, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    mask.hook()
    mask.set(keep)
    return mask.kept(loss)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
@pytest.mark.parametrize("hooked_first", [True, False], ids=["hooked before", "hooked after the first call"])
def test_a_verdict_that_only_the_device_knows_masks_a_compiled_model_in_one_graph(backend, hooked_first):
    # given
    torch._dynamo.reset()
    model = net()
    mask = mask_of(model)
    if hooked_first:
        mask.hook()
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    # when
    found = []
    for index, counts in enumerate([True, False, True, False]):
        model.zero_grad()
        x = batch(index)
        if not counts:
            x[0, 0] = math.nan
        loss = compiled(model, mask, x, torch.tensor(counts))
        mask.hook()
        loss.backward()
        found.append((loss.item(), model[0].weight.grad.abs().sum().item()))
    # then
    assert found[1] == found[3] == (0.0, 0.0)
    assert all(0.0 < number < math.inf for pair in (found[0], found[2]) for number in pair)


@DECIDERS
def test_hooks_fire_on_a_compiled_model_whose_loss_is_judged_outside(decide):
    torch._dynamo.reset()
    model = net()
    mask = mask_of(model)
    compiled = torch.compile(model, backend="aot_eager")
    for index in range(3):
        fault = index == 1
        loss = faulty_loss(compiled, index, "nan activation") if fault else healthy_loss(compiled, index)
        mask.hook()
        mask.bind(loss, says(not fault, decide)).backward()

    for found, expected in zip(model.parameters(), window_without(1), strict=True):
        torch.testing.assert_close(found.grad, expected)


# What has no such hook.


def test_a_model_that_deepspeed_has_taken_apart_is_refused():
    weight = nn.Parameter(torch.ones(1))
    weight.ds_id = 0  # what its third stage leaves on every parameter

    with pytest.raises(UsageError, match="DeepSpeed ZeRO stage 3"):
        GradientMask(None, parameters=lambda: [weight]).hook()


def test_a_lazy_module_that_has_seen_no_batch_is_refused_and_then_hooked():
    model = nn.Sequential(nn.LazyLinear(3))
    mask = mask_of(model)
    for _ in range(2):
        with pytest.raises(UsageError, match="run one forward first"):
            mask.hook()

    loss = model(torch.ones(2, 4)).sum() * math.nan
    mask.hook()
    mask.bind(loss, False).backward()

    assert not any(parameter.grad.any() for parameter in model.parameters())
