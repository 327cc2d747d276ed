"""What is saved comes back bit for bit, in whatever the model is wrapped; and what a save and a load say."""

import json
import logging
import math
import threading
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from trimtab import GuardConfig, LossGuard, LossKit, Run, UsageError, open_log
from trimtab.checkpoint import Checkpointer, verify
from trimtab.errors import CheckpointError
from trimtab.resume.disk_changes import Disk


class Training:
    """A model with what belongs to it, which can be trained a step further."""

    def __init__(self, seed=0, *, lr=1e-2, wrap=lambda model: model):
        torch.manual_seed(seed)
        self.bare = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
        self.model = wrap(self.bare)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": self.bare[0].parameters()},
                {"params": [*self.bare[1].parameters(), *self.bare[3].parameters()]},
            ],
            lr=lr,
        )
        self.scheduler = lr_scheduler.CosineAnnealingLR(self.optimizer, 50)
        self.step = 0

    def train(self, num_steps=3):
        for _ in range(num_steps):
            loss = self.model(torch.randn(8, 3, dtype=torch.float64)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.step += 1
        return float(loss.detach())

    @property
    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    @property
    def bits(self):
        state = [*self.bare.state_dict().values()]
        for held in self.optimizer.state_dict()["state"].values():
            state += held.values()
        rates = [(group["lr"], group["initial_lr"]) for group in self.optimizer.param_groups]
        return [tensor.tolist() for tensor in state], rates, self.scheduler.state_dict()


def saved(folder, *, num_steps=3, **more):
    training = Training()
    training.train(num_steps)
    checkpoints = Checkpointer(folder, run_id="a")
    checkpoints.save(training.step, **training.parts, **more)
    return training, checkpoints


def test_training_goes_on_with_the_same_bits(tmp_path):
    training, checkpoints = saved(tmp_path, loss=0.1)
    training.train(5)

    resumed = Training(seed=1)
    result = checkpoints.load(checkpoints.pick(), **resumed.parts)
    resumed.train(5)

    assert resumed.bits == training.bits
    assert (result.step, result.loss, result.started_fresh, result.remarks) == (3, 0.1, False, ())
    assert result.path == tmp_path / "step_3"


def test_a_training_that_saves_is_the_one_that_does_not(tmp_path):
    plain, saving = Training(), Training()
    torch.manual_seed(7)
    plain.train(4)
    expected = plain.bits, torch.rand(2).tolist()
    torch.manual_seed(7)
    saving.train(2)
    Checkpointer(tmp_path).save(2, **saving.parts)
    saving.train(2)
    assert (saving.bits, torch.rand(2).tolist()) == expected


def with_a_compiled_layer(model):
    model[0] = torch.compile(model[0], backend="eager")
    return model


WRAPS = {
    "bare": lambda model: model,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "compiled inside": with_a_compiled_layer,
    "DataParallel": nn.DataParallel,
}


@pytest.mark.parametrize("saver", WRAPS)
@pytest.mark.parametrize("loader", WRAPS)
def test_every_wrapping_loads_what_any_other_saved(saver, loader, tmp_path):
    training = Training(wrap=WRAPS[saver])
    training.train()
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **training.parts)

    resumed = Training(seed=1, wrap=WRAPS[loader])
    result = checkpoints.load(tmp_path / "step_3", **resumed.parts)

    assert [*map(torch.Tensor.tolist, resumed.bare.state_dict().values())] == [
        *map(torch.Tensor.tolist, training.bare.state_dict().values())
    ]
    assert result.remarks == ()


def test_tied_weights_stay_tied(tmp_path):
    def made():
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        model[1].weight = model[0].weight
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    model, optimizer = made()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, model=model, optimizer=optimizer)
    loaded, other = made()
    checkpoints.load(checkpoints.pick(), model=loaded, optimizer=other)
    assert loaded[0].weight is loaded[1].weight
    assert torch.equal(loaded[0].weight, model[0].weight)
    assert len(other.state) == 1


def test_parameters_in_another_order_inside_a_group_get_their_own_moments(tmp_path):
    training, checkpoints = saved(tmp_path)
    resumed = Training(seed=1)
    resumed.optimizer.param_groups[0]["params"].reverse()
    checkpoints.load(checkpoints.pick(), **resumed.parts)
    for name, parameter in resumed.bare.named_parameters():
        expected = training.optimizer.state[dict(training.bare.named_parameters())[name]]
        assert torch.equal(resumed.optimizer.state[parameter]["exp_avg"], expected["exp_avg"])


def test_everything_beside_the_state_comes_back_as_it_was(tmp_path):
    beside = {
        "loss": torch.tensor(0.1),
        "extra": {"tokens": 10**20, "names": ("a", "b"), "mask": torch.tensor([1, 2]), 3: None},
        "best_eval": {"loss": np.float64(0.25), "streak": np.int64(2)},
        "config": OrderedDict(lr=1e-3, nested=[{"x": Counter("ab")}]),
        "data": {"epoch": 2, "batches": 17},
    }
    _, checkpoints = saved(tmp_path, **beside)
    result = checkpoints.load(checkpoints.pick(), **Training().parts)

    assert result.loss == float(torch.tensor(0.1))
    assert result.extra.keys() == beside["extra"].keys()
    assert result.extra["tokens"] == 10**20
    assert result.extra["names"] == ("a", "b")
    assert torch.equal(result.extra["mask"], torch.tensor([1, 2]))
    assert result.best_eval == {"loss": 0.25, "streak": 2}
    assert result.config == beside["config"]
    assert result.config["nested"][0]["x"]["missing"] == 0
    assert result.data == {"epoch": 2, "batches": 17}
    assert result.data_of_ranks == (result.data,)


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e-320, 0.1 + 0.2])
def test_a_loss_is_exactly_the_one_that_was_logged(loss, tmp_path):
    _, checkpoints = saved(tmp_path, loss=loss)
    info = checkpoints.pick()
    result = checkpoints.load(info, **Training().parts)
    assert [value.hex() for value in (result.loss, info.loss)] == [loss.hex()] * 2


def test_a_loss_with_its_graph_is_saved_without_a_warning(tmp_path):
    _, checkpoints = saved(tmp_path, loss=torch.tensor(2.5, requires_grad=True) * 1)
    assert checkpoints.pick().loss == 2.5


def test_parts_are_those_that_the_run_has(tmp_path):
    training = Training()
    training.train()
    checkpoints = Checkpointer(tmp_path)
    bare = checkpoints.save(3, model=training.model, optimizer=training.optimizer)
    run = Run(None, record=False, model=training.model, optimizer=training.optimizer, guard=GuardConfig(rule="robust"))
    full = checkpoints.save(
        4, **training.parts, loss=1, run=run, data={"at": 1}, best_eval=1, config={}, extra=[], scaler=scaler_of(True)
    )
    assert bare.parts == ("model", "optimizer", "step", "rng")
    assert " ".join(full.parts) == "model optimizer step rng scheduler scaler loss data guard best_eval config extra"
    assert verify(full.path).ok


def scaler_of(enabled):
    return torch.amp.GradScaler("cpu", enabled=enabled)


def test_a_scaler_goes_on_with_its_scale(tmp_path):
    training = Training()
    training.train()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **training.parts, scaler=scaler)
    other = torch.amp.GradScaler("cpu")
    checkpoints.load(checkpoints.pick(), **Training().parts, scaler=other)
    assert other.state_dict() == scaler.state_dict()


# The run and its guard.


def test_a_run_goes_on_under_its_id_and_says_in_its_log_from_where(tmp_path):
    training = Training()
    checkpoints = Checkpointer(tmp_path)
    with Run(tmp_path / "log", model=training.model, optimizer=training.optimizer) as run:
        run.micro_batch(
            training.model(torch.randn(4, 3).double()).square().squeeze(1), per="sample", rows=range(4)
        ).backward()
        run.step()
        info = checkpoints.save(1, **training.parts, run=run)
        assert info.run_id == checkpoints.run_id == run.run_id

    resumed = Training(lr=3e-2)
    later = Checkpointer(tmp_path)
    with Run(tmp_path / "log", model=resumed.model, optimizer=resumed.optimizer) as again:
        later.load(later.pick(), **resumed.parts, run=again)
        assert again.run_id == later.run_id == run.run_id

    [event] = [facts for facts in events_of(open_log(run.folder)) if facts["kind"] == "resumed"]
    assert event["saved_step"] == 1
    assert event["checkpoint"] == str(tmp_path / "step_1")
    assert event["remarks"] == ["resume keeps 1e-02; pass lr=0.03 to use 3e-02"]


def events_of(log):
    table = log.events().numpy()
    return [{"kind": kind, **json.loads(facts)} for kind, facts in zip(table["kind"], table["facts"], strict=True)]


@pytest.mark.parametrize("kind", ["kit", "guard"])
def test_what_else_has_a_state_goes_on_too(kind, tmp_path):
    training = Training()
    training.train()

    def made():
        if kind == "kit":
            kit = LossKit(training.model)
            kit.build_loss_guard(GuardConfig(rule="robust"))
            return kit, kit.guard_loss
        guard = LossGuard(rule="robust")
        return guard, guard.check

    held, judge = made()
    if kind == "guard":
        for loss in (1.0, 1.1, 0.9):
            judge(loss)
    checkpoints = Checkpointer(tmp_path)
    info = checkpoints.save(3, **training.parts, run=held)
    other, _ = made()
    checkpoints.load(checkpoints.pick(), **training.parts, run=other)
    assert "guard" in info.parts
    assert other.state_dict() == held.state_dict()


def test_a_run_that_only_one_side_has_is_said(tmp_path, caplog):
    training, checkpoints = saved(tmp_path)
    run = Run(None, record=False, model=training.model, optimizer=training.optimizer, guard=GuardConfig(rule="robust"))
    assert "no state of a run" in checkpoints.load(checkpoints.pick(), **training.parts, run=run).remarks[0]
    checkpoints.save(4, **training.parts, run=run)
    assert "is left aside" in checkpoints.load(checkpoints.pick(), **training.parts).remarks[0]
    assert "is left aside" in caplog.text


class Loader:
    """A stateful loader."""

    def __init__(self):
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_a_stateful_loader_is_put_where_it_was(tmp_path):
    training = Training()
    training.train()
    loader = Loader()
    loader.at = 12
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **training.parts, data=loader)
    other = Loader()
    result = checkpoints.load(checkpoints.pick(), **training.parts, data=other)
    assert other.at == 12
    assert result.data == {"at": 12}


# The learning rate.


def test_a_rate_that_was_set_by_hand_before_the_load_is_said_to_be_dropped(tmp_path):
    _, checkpoints = saved(tmp_path)
    resumed = Training()
    resumed.optimizer.param_groups[0]["lr"] = 0.5
    kept = checkpoints.load(checkpoints.pick(), **resumed.parts)
    assert kept.remarks == ("resume keeps 1e-02; pass lr=0.5 to use 5e-01",)


def test_another_rate_is_used_on_request_only(tmp_path, caplog):
    _, checkpoints = saved(tmp_path)
    resumed = Training(lr=3e-2)
    kept = checkpoints.load(checkpoints.pick(), **resumed.parts)
    assert kept.remarks == ("resume keeps 1e-02; pass lr=0.03 to use 3e-02",)
    assert kept.remarks[0] in caplog.text

    caplog.clear()
    asked = checkpoints.load(checkpoints.pick(), **Training(lr=3e-2).parts, lr=3e-2)
    afresh = Training(lr=3e-2)
    afresh.train(3)
    assert asked.lr == pytest.approx([group["lr"] for group in afresh.optimizer.param_groups], rel=1e-12)
    assert caplog.text.count("LR re-base: 1e-02 -> 3e-02 on resume (schedule phase preserved)") == 1
    assert asked.remarks == ()


def test_a_schedule_that_makes_something_else_of_its_state_is_told(tmp_path):
    class OneBehind(lr_scheduler.CosineAnnealingLR):
        def load_state_dict(self, state):
            super().load_state_dict(state | {"last_epoch": state["last_epoch"] - 1})

    training = Training()
    training.scheduler = OneBehind(training.optimizer, 50)
    training.train()
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **training.parts)
    result = checkpoints.load(checkpoints.pick(), **training.parts)
    assert result.remarks == ("last_epoch of the scheduler is 2 after loading, and was saved as 3",)


@pytest.mark.parametrize("name", ["last_epoch", "_step_count", "_last_lr", "base_lrs", "lr", "initial_lr"])
def test_each_number_of_the_learning_rate_that_is_another_after_loading_is_told(name, tmp_path):
    class Changes(lr_scheduler.CosineAnnealingLR):
        """Has a number of its own in the place of one that it was given."""

        def load_state_dict(self, state):
            super().load_state_dict(state)
            if name in vars(self):
                setattr(self, name, [7, 7] if name in ("_last_lr", "base_lrs") else 7)
            else:
                self.optimizer.param_groups[1][name] = 7

    training = Training()
    training.scheduler = Changes(training.optimizer, 50)
    training.train()
    group = training.optimizer.param_groups[1]
    was = group[name] if name in group else training.scheduler.state_dict()[name]
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **training.parts)
    remarks = checkpoints.load(checkpoints.pick(), **training.parts).remarks
    [said] = [remark for remark in remarks if remark.startswith(f"{name} of ")]
    now = [7, 7] if isinstance(was, list) else 7
    assert said.endswith(f" is {now} after loading, and was saved as {was}")


def test_weights_and_moments_in_another_dtype_are_told(tmp_path):
    _, checkpoints = saved(tmp_path)
    other = Training()
    other.bare.float()
    remarks = checkpoints.load(checkpoints.pick(), **other.parts).remarks
    assert remarks == (
        "8 weights were saved as torch.float64 and are torch.float32 here: they are not bit-equal",
        "12 moments were saved in another dtype than the optimizer keeps them in: they are not bit-equal",
    )


# In a thread.


class Held(Disk):
    """A disk that waits before its first write until it is let go."""

    def __init__(self):
        self.may_go_on = threading.Event()

    def write(self, fd, data):
        assert self.may_go_on.wait(30)
        return super().write(fd, data)


def test_values_are_those_at_the_call(tmp_path):
    training = Training()
    training.train()
    expected = training.bits
    disk = Held()
    checkpoints = Checkpointer(tmp_path, disk=disk)
    extra = {"seen": [1]}

    assert checkpoints.save(3, **training.parts, extra=extra, wait=False) is None
    training.train()
    extra["seen"].append(2)
    disk.may_go_on.set()
    info = checkpoints.wait()

    resumed = Training(seed=1)
    result = checkpoints.load(info, **resumed.parts)
    assert resumed.bits == expected
    assert result.extra == {"seen": [1]}


def test_the_next_call_waits_for_the_thread(tmp_path):
    training = Training()
    training.train()
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **training.parts, wait=False)
    assert checkpoints.pick().step == 3
    checkpoints.save(4, **training.parts, wait=False)
    checkpoints.save(5, **training.parts)
    assert checkpoints.pick().step == 5
    assert checkpoints.wait() is None


# A save that fails.


class Full(Disk):
    """A disk that is full from the n-th write on."""

    def __init__(self, num_writes=0):
        self.left = num_writes

    def write(self, fd, data):
        if self.left == 0:
            raise OSError(28, "No space left on device")
        self.left -= 1
        return super().write(fd, data)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("num_writes", [0, 1, 3, 30])
def test_a_full_disk_costs_the_checkpoint_and_nothing_else(wait, num_writes, tmp_path, caplog):
    training, before = saved(tmp_path)
    training.train()
    checkpoints = Checkpointer(tmp_path, run_id="a", disk=Full(num_writes))

    assert checkpoints.save(6, **training.parts, wait=wait) is None
    assert checkpoints.wait() is None

    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage() == (
        "the checkpoint of step 6 was not saved: No space left on device; what was saved before is still there, and "
        "the training goes on"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["step_3"]
    assert before.pick().step == 3


@pytest.mark.parametrize("wait", [True, False])
def test_it_is_raised_where_that_is_asked(wait, tmp_path):
    training = Training()
    checkpoints = Checkpointer(tmp_path, disk=Full(), on_failure="raise")

    def save():
        checkpoints.save(3, **training.parts, wait=wait)
        checkpoints.wait()

    with pytest.raises(CheckpointError, match="step 3 was not saved: No space left on device"):
        save()


def test_the_save_after_it_hears_of_a_thread_that_failed(tmp_path):
    training = Training()
    checkpoints = Checkpointer(tmp_path, disk=Full(), on_failure="raise")
    checkpoints.save(3, **training.parts, wait=False)
    with pytest.raises(CheckpointError, match="step 3"):
        checkpoints.save(4, **training.parts, wait=False)


def test_a_folder_that_cannot_be_made_is_a_save_that_fails(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert Checkpointer(tmp_path / "file" / "x").save(3, **Training().parts) is None
    assert "step 3 was not saved" in caplog.text


# Names, runs and rotation.


def test_the_newest_of_the_run_are_kept(tmp_path):
    training = Training()
    checkpoints = Checkpointer(tmp_path, keep=2)
    for step in (8, 9, 10, 11):
        checkpoints.save(step, **training.parts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_10", "step_11"]


@pytest.mark.parametrize("keep", [0, -1])
def test_no_limit_deletes_nothing(keep, tmp_path):
    checkpoints = Checkpointer(tmp_path, keep=keep)
    for step in range(4):
        checkpoints.save(step, **Training().parts)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_fresh_run_beside_an_old_one_deletes_neither_and_is_the_newest(tmp_path):
    old = Checkpointer(tmp_path, keep=1, run_id="old")
    old.save(1000, **Training().parts)
    fresh = Checkpointer(tmp_path, keep=1, run_id="fresh")
    fresh.save(10, **Training().parts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_10", "step_1000"]
    assert Checkpointer(tmp_path).pick().step == 10
    assert old.pick().step == 1000


def test_another_run_s_name_is_refused_at_the_first_save_and_never_overwritten(tmp_path, caplog):
    Checkpointer(tmp_path, run_id="old").save(3, **Training().parts)
    before = (tmp_path / "step_3" / "model.pt").read_bytes()
    fresh = Checkpointer(tmp_path, run_id="fresh")
    with pytest.raises(UsageError, match="step_3 is step 3 of run old, and this would be step 3 of run fresh"):
        fresh.save(3, **Training(seed=1).parts)
    assert fresh.save(2, **Training(seed=1).parts) is not None
    assert fresh.save(3, **Training(seed=1).parts) is None
    assert "step 3 was not saved" in caplog.text
    assert (tmp_path / "step_3" / "model.pt").read_bytes() == before


def test_a_name_that_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "step_3").mkdir()
    with pytest.raises(UsageError, match="step_3 is no checkpoint of Trimtab's"):
        Checkpointer(tmp_path).save(3, **Training().parts)


def test_a_resumed_run_replaces_what_it_goes_over_again(tmp_path):
    training, checkpoints = saved(tmp_path)
    training.train()
    checkpoints.save(6, **training.parts, loss=1.0)
    again = Training(seed=1)
    later = Checkpointer(tmp_path)
    later.load(tmp_path / "step_3", **again.parts)
    again.train()
    info = later.save(6, **again.parts, loss=2.0)
    assert info.path == tmp_path / "step_6"

    loaded = Training()
    result = later.load(later.pick(), **loaded.parts)
    assert result.loss == 2.0
    assert loaded.bits == again.bits


def test_whether_there_is_anything_to_resume(tmp_path):
    assert not Checkpointer(tmp_path / "none").has_checkpoints()
    assert not Checkpointer(tmp_path).has_checkpoints()
    Checkpointer(tmp_path, run_id="a").save(3, **Training().parts)
    assert Checkpointer(tmp_path).has_checkpoints()
    assert not Checkpointer(tmp_path, run_id="b").has_checkpoints()
    (tmp_path / "step_3" / "trimtab_manifest.json").write_text("{}")
    assert Checkpointer(tmp_path, run_id="a").has_checkpoints()


# Health.


def poison(training, name="0.weight"):
    with torch.no_grad():
        training.bare.get_parameter(name)[0, 0] = math.nan


def test_a_checkpoint_with_a_nan_is_not_picked_as_healthy(tmp_path, caplog):
    training, checkpoints = saved(tmp_path)
    poison(training)
    info = checkpoints.save(4, **training.parts)

    assert info.healthy is False
    assert info.unhealthy_because == (
        "model's 0.weight: 1 entry is NaN or infinite and was finite at the run's beginning, the first at flat index 0",
    )
    assert "step_4 is saved and not healthy" in caplog.text
    assert checkpoints.pick().step == 4
    assert checkpoints.pick(healthy=True).step == 3


def test_a_moment_counts_as_a_weight_does(tmp_path):
    training, checkpoints = saved(tmp_path)
    training.optimizer.state[training.bare[0].bias]["exp_avg_sq"][2] = math.inf
    assert "exp_avg_sq of 0.bias: 1 entry" in checkpoints.save(4, **training.parts).unhealthy_because[0]


def test_what_was_not_finite_from_the_start_is_said_once_and_stays_healthy_over_a_resume(tmp_path, caplog):
    training = Training()
    poison(training)
    first = Checkpointer(tmp_path, run_id="a")
    assert first.save(1, **training.parts).healthy
    assert first.save(2, **training.parts).healthy
    said = [record for record in caplog.messages if "first save" in record]
    assert len(said) == 1
    assert "model's 0.weight (1)" in said[0]

    for later in (Checkpointer(tmp_path), Checkpointer(tmp_path, run_id="a")):
        later.load(later.pick(), **Training().parts)
        assert later.save(3, **training.parts).healthy
    never_loaded = Checkpointer(tmp_path, run_id="a")
    poison(training, "3.weight")
    assert "model's 3.weight" in never_loaded.save(4, **training.parts).unhealthy_because[0]
    assert len(never_loaded.pick().unhealthy_because) == 1


def test_what_was_not_finite_from_the_start_is_the_run_s_wherever_it_goes_on(tmp_path):
    training = Training()
    poison(training)
    Checkpointer(tmp_path / "first", run_id="a").save(1, **training.parts)
    resumed, elsewhere = Training(), Checkpointer(tmp_path / "second")
    elsewhere.load(tmp_path / "first" / "step_1", **resumed.parts)
    poison(resumed, "3.weight")
    [why] = elsewhere.save(2, **resumed.parts).unhealthy_because
    assert "model's 3.weight" in why


def test_what_was_not_finite_in_another_run_is_no_excuse_for_this_one(tmp_path):
    training = Training()
    poison(training)
    Checkpointer(tmp_path / "first", run_id="a").save(1, **training.parts)
    resumed, another = Training(), Checkpointer(tmp_path / "second", run_id="b")
    another.load(tmp_path / "first" / "step_1", **resumed.parts)
    with torch.no_grad():
        resumed.bare.get_parameter("0.weight").nan_to_num_()
    assert another.save(2, **resumed.parts).healthy
    poison(resumed)
    assert not another.save(3, **resumed.parts).healthy


def test_the_caller_may_know_better(tmp_path):
    training, checkpoints = saved(tmp_path)
    assert checkpoints.save(4, **training.parts, healthy=False).unhealthy_because == (
        "the caller said so (healthy=False)",
    )
    poison(training)
    assert checkpoints.save(5, **training.parts, healthy=True).healthy


def test_the_last_healthy_one_is_never_deleted(tmp_path):
    training = Training()
    checkpoints = Checkpointer(tmp_path, keep=1)
    checkpoints.save(1, **training.parts)
    poison(training)
    checkpoints.save(2, **training.parts)
    checkpoints.save(3, **training.parts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_1", "step_3"]


def test_files_have_the_names_that_the_page_gives(tmp_path):
    saved(tmp_path)
    assert sorted(path.name for path in Path(tmp_path / "step_3").iterdir()) == [
        "model.pt",
        "optimizer.pt",
        "rank_0.pt",
        "run.pt",
        "trimtab_manifest.json",
    ]
