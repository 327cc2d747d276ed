"""A load that is refused says what was found, what was expected and what to use instead, and changes nothing."""

import itertools
import os
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from trimtab import GuardConfig, Run, UsageError
from trimtab.checkpoint import Checkpointer
from trimtab.errors import CheckpointError
from trimtab.resume.manifest import MANIFEST_NAME, FileEntry, dump_manifest, read_manifest
from trimtab.torch.rng import rng_state


def made_model(width=4):
    return nn.Sequential(nn.Linear(3, width), nn.Linear(width, 1))


def made(model=None, *, optimizer=torch.optim.AdamW, scheduler=lr_scheduler.StepLR, lr=1e-2):
    model = made_model() if model is None else model
    opt = optimizer(model.parameters(), lr=lr)
    return {"model": model, "optimizer": opt, "scheduler": scheduler(opt, 10) if scheduler else None}


def trained(parts, num_steps=2):
    for _ in range(num_steps):
        parts["model"](torch.randn(5, 3)).square().mean().backward()
        parts["optimizer"].step()
        parts["optimizer"].zero_grad()
        parts["scheduler"].step()
    return parts


@pytest.fixture
def checkpoints(tmp_path):
    parts = trained(made())
    checkpoints = Checkpointer(tmp_path, run_id="a")
    checkpoints.save(1, **parts)
    checkpoints.save(2, **trained(parts))
    return checkpoints


def bits(parts):
    """Everything that a refused load must leave as it is."""
    tensors = [tensor.tolist() for tensor in parts["model"].state_dict().values()]
    scheduler = parts.get("scheduler")
    return str(
        (
            tensors,
            parts["optimizer"].state_dict() if parts.get("optimizer") else None,
            scheduler.state_dict() if scheduler else None,
            rng_state(),
        )
    )


def refused(checkpoints, which, parts, *, error=CheckpointError, **more):
    """What a refused load says; nothing has changed then."""
    before = bits(parts)
    with pytest.raises(error) as raised:
        checkpoints.load(which, **parts, **more)
    assert bits(parts) == before
    return str(raised.value)


# Damage.


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "one bit": flip,
    "half of it": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": os.unlink,
}


@pytest.mark.parametrize("name", ["model.pt", "optimizer.pt", "run.pt", "rank_0.pt"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_by_file_and_the_older_one_is_named(damage, name, checkpoints):
    info = checkpoints.pick()
    DAMAGES[damage](info.path / name)
    for which in (info, info.path, str(info.path)):
        message = refused(checkpoints, which, trained(made()))
        assert name in message
        assert f"Use {checkpoints.folder / 'step_1'} instead." in message
    assert checkpoints.pick().step == 1


def test_a_damaged_manifest_is_refused(checkpoints):
    info = checkpoints.pick()
    flip(info.path / MANIFEST_NAME)
    assert MANIFEST_NAME in refused(checkpoints, info, made())


def test_where_no_other_is_left_that_is_said(checkpoints):
    flip(checkpoints.folder / "step_1" / "model.pt")
    flip(checkpoints.folder / "step_2" / "model.pt")
    message = refused(checkpoints, checkpoints.folder / "step_2", made())
    assert "There is no other in its folder that a run can go on from." in message


def test_a_path_where_nothing_is_and_the_folder_of_all_are_refused(checkpoints):
    assert "nothing is there" in refused(checkpoints, checkpoints.folder / "step_7", made())
    message = refused(checkpoints, checkpoints.folder, made())
    assert "holds checkpoints and is none itself (step_1 and step_2)" in message
    with pytest.raises(UsageError, match="found a int: for a step pass its path"):
        checkpoints.load(2, **made())


# Health.


def test_an_unhealthy_one_is_refused_with_the_last_healthy_one_named_unless_it_is_named_itself(checkpoints, caplog):
    parts = trained(made())
    parts["model"][0].bias.data[0] = torch.inf
    checkpoints.save(3, **parts)
    info = checkpoints.pick()

    message = refused(checkpoints, info, made())
    assert "step_3: is not healthy: model's 0.bias: 1 entry" in message
    assert f"The last healthy one is {checkpoints.folder / 'step_2'}" in message

    resumed = checkpoints.load(info.path, **made())
    assert resumed.step == 3
    [remark] = resumed.remarks
    assert remark.endswith("step_3 is not healthy, and was named: it is loaded all the same")
    assert "step_3 is not healthy, and was named: it is loaded all the same" in caplog.text
    assert checkpoints.load(checkpoints.pick(healthy=True), **made()).step == 2


def test_where_no_healthy_one_is_that_is_said(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **made(), healthy=False)
    assert "There is no healthy one of its run" in refused(checkpoints, checkpoints.pick(), made())


# Another model, optimizer or schedule.


class Taller(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (lambda: made(made_model(width=5)), "0.weight"),
        (lambda: made(Taller()), "2.weight"),
        (lambda: made(nn.Linear(3, 4)), "weight"),
        (lambda: made(optimizer=torch.optim.SGD), "its optimizer is AdamW, and SGD is given"),
        (lambda: made(scheduler=lr_scheduler.ExponentialLR), "its scheduler is StepLR, and ExponentialLR is given"),
        (lambda: made(scheduler=None), "holds the state of a scheduler, and none is given: pass scheduler="),
    ],
    ids=["a shape", "a layer more", "other names", "optimizer", "scheduler", "no scheduler"],
)
def test_what_is_of_another_training_is_refused_by_name(parts, said, checkpoints):
    message = refused(checkpoints, checkpoints.pick(), parts())
    assert said in message
    assert "step_2" in message


def test_other_parameter_groups_are_refused(checkpoints):
    model = made_model()
    optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[1].parameters()}])
    message = refused(
        checkpoints,
        checkpoints.pick(),
        {"model": model, "optimizer": optimizer, "scheduler": lr_scheduler.StepLR(optimizer, 10)},
    )
    assert "1 parameter groups" in message


def test_a_scheduler_that_was_not_saved_is_refused(tmp_path):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **made(scheduler=None))
    message = refused(checkpoints, checkpoints.pick(), made())
    assert "was saved without a scheduler, and one is given: it would begin anew in the middle" in message


def test_nested_schedules_are_told_apart(tmp_path):
    def nested(*kinds):
        parts = made(scheduler=None)
        members = [kind(parts["optimizer"]) for kind in kinds]
        return parts | {"scheduler": lr_scheduler.SequentialLR(parts["optimizer"], members, [5])}

    def linear(optimizer):
        return lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 5)

    def constant(optimizer):
        return lr_scheduler.ConstantLR(optimizer)

    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **nested(linear, constant))
    assert "SequentialLR of LinearLR, ConstantLR" in refused(
        checkpoints, checkpoints.pick(), nested(constant, constant)
    )


@pytest.mark.parametrize(("saved", "given"), [(True, None), (None, True), (True, False), (False, True)])
def test_a_scaler_that_only_one_side_has_is_refused(saved, given, tmp_path):
    scalers = [None if enabled is None else torch.amp.GradScaler("cpu", enabled=enabled) for enabled in (saved, given)]
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(3, **made(), scaler=scalers[0])
    assert "scaler" in refused(checkpoints, checkpoints.pick(), made(), scaler=scalers[1])


def test_a_data_position_that_was_not_saved_is_refused(checkpoints):
    class Loader:
        def load_state_dict(self, state):
            raise AssertionError("nothing was saved")

    assert "holds no data position" in refused(checkpoints, checkpoints.pick(), made(), data=Loader())


def test_a_run_that_refuses_its_state_leaves_the_rest_as_it_was(tmp_path):
    parts = trained(made())
    checkpoints = Checkpointer(tmp_path)
    robust = GuardConfig(rule="robust")
    run = Run(None, record=False, model=parts["model"], optimizer=parts["optimizer"], guard=robust)
    checkpoints.save(3, **parts, run=run)
    other = trained(made())
    begun = Run(
        None, record=False, model=other["model"], optimizer=other["optimizer"], guard=GuardConfig(multiplier=2.0)
    )
    refused(checkpoints, checkpoints.pick(), other, run=begun, error=UsageError)


def test_a_rate_that_cannot_be_changed_leaves_everything_as_it_was(checkpoints):
    refused(checkpoints, checkpoints.pick(), trained(made(lr=0.5)), lr=-1.0, error=UsageError)


def test_a_scheduler_that_fails_while_it_loads_leaves_everything_as_it_was(tmp_path):
    class StepLR(lr_scheduler.StepLR):
        fails = False

        def load_state_dict(self, state):
            super().load_state_dict(state)
            if self.fails and state["last_epoch"] == 4:
                raise RuntimeError("planted")

    parts = trained(made(scheduler=StepLR), 4)
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(4, **parts)
    other = trained(made(scheduler=StepLR))
    other["scheduler"].fails = True
    assert "RuntimeError: planted. Nothing was loaded." in refused(checkpoints, checkpoints.pick(), other)


# The weights alone.


def test_a_fresh_start_takes_the_weights_and_says_that_the_schedule_begins_anew(checkpoints, caplog):
    saved, model = made_model(), made_model()
    checkpoints.load(checkpoints.folder / "step_2", **(parts := made(saved)))
    assert parts
    state = rng_state()

    resumed = checkpoints.load(checkpoints.pick(), model=model)

    assert [tensor.tolist() for tensor in model.parameters()] == [tensor.tolist() for tensor in saved.parameters()]
    assert (resumed.step, resumed.started_fresh, resumed.run_id) == (0, True, None)
    assert "optimizer, schedule and random numbers begin anew" in resumed.remarks[-1]
    assert resumed.remarks[-1] in caplog.text
    assert str(rng_state()) == str(state)


def test_a_fresh_start_is_a_run_of_its_own(checkpoints):
    other = Checkpointer(checkpoints.folder)
    other.load(checkpoints.pick(), model=made_model())
    assert other.save(5, **made()).run_id != "a"


@pytest.mark.parametrize("keys", ["model", "state_dict", "bare", "module."])
def test_a_file_of_somebody_s_own_loop_is_no_resume_and_may_be_a_start(keys, checkpoints, tmp_path):
    state = made_model().state_dict()
    content = {
        "model": {"step": 9, "model": state, "cfg": {"lr": 1}},
        "state_dict": {"state_dict": state},
        "bare": dict(state),
        "module.": {"model": {f"module.{name}": value for name, value in state.items()}},
    }[keys]
    path = tmp_path / "step_000009.pt"
    torch.save(content, path)

    message = refused(checkpoints, path, made())
    assert "optimizer" in message
    assert f"Use {checkpoints.folder / 'step_2'} instead." in message or "fresh start" in message
    model = made_model()
    assert checkpoints.load(path, model=model).started_fresh
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())


def test_a_fresh_start_of_another_model_is_refused(checkpoints):
    parts = {"model": made_model(width=7)}
    assert "0.weight" in refused(checkpoints, checkpoints.pick(), parts)


@pytest.mark.parametrize("name", ["lr", "scheduler", "scaler", "run", "data"])
def test_what_belongs_to_an_optimizer_is_refused_without_one(name, checkpoints):
    assert f"{name} given without an optimizer" in refused(
        checkpoints, checkpoints.pick(), {"model": made_model()}, error=UsageError, **{name: 1.0}
    )


# A stranger's files, under a manifest that holds.


class Runs:
    """What a pickle would run."""

    def __reduce__(self):
        return os.mkdir, ("pwned",)


def put(folder, name, content):
    """Saves a payload in a file's place, and writes what the manifest then has to say: checksums are no signature."""
    torch.save(content, folder / name)
    data = (folder / name).read_bytes()
    manifest = read_manifest(folder)
    entry = FileEntry(path=name, size_bytes=len(data), crc32=zlib.crc32(data))
    files = tuple(entry if file.path == name else file for file in manifest.files)
    (folder / MANIFEST_NAME).write_bytes(dump_manifest(replace(manifest, files=files)))


@pytest.mark.parametrize("name", ["model.pt", "optimizer.pt", "run.pt", "rank_0.pt"])
def test_a_pickle_that_runs_something_is_refused_by_file_and_runs_nothing(name, checkpoints, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = checkpoints.folder / "step_2"
    state = torch.load(folder / name, weights_only=True)
    put(folder, name, {**state, "x": Runs()})
    message = refused(checkpoints, folder, made())
    assert name in message
    assert "without running a pickle" in message
    assert "weights_only" not in message
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("name", ["model.pt", "optimizer.pt", "run.pt", "rank_0.pt"])
@pytest.mark.parametrize("content", [[], {}, {"version": 1}, 3], ids=repr)
def test_a_payload_that_holds_something_else_is_refused(name, content, checkpoints):
    put(checkpoints.folder / "step_2", name, content)
    assert "step_2" in refused(checkpoints, checkpoints.folder / "step_2", made())


@pytest.mark.parametrize("name", ["run.pt", "rank_0.pt"])
def test_another_version_is_refused(name, checkpoints):
    folder = checkpoints.folder / "step_2"
    put(folder, name, torch.load(folder / name, weights_only=True) | {"version": 2})
    assert f"{name}: found version 2, expected 1" in refused(checkpoints, folder, made())


# Calls that make no sense.


@pytest.mark.parametrize("step", [-1, 1.0, True, "3", None, 10**15, np.int64(3)], ids=repr)
def test_a_step_is_a_count(step, tmp_path):
    with pytest.raises(UsageError, match="step="):
        Checkpointer(tmp_path).save(step, **made())
    assert not list(tmp_path.iterdir())


class Opaque:
    pass


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"extra": {"a": [Opaque()]}}, r"extra\['a'\]\[0\] is a .*Opaque"),
        ({"extra": np.zeros(3)}, r"extra is a numpy.ndarray.*from_numpy"),
        ({"config": {"a": {Opaque(): 1}}}, "a key of config"),
        ({"best_eval": lambda: 0}, "best_eval is a builtins.function"),
        ({"data": {"x": Opaque()}}, r"data\['x'\]"),
        ({"data": 3}, "data is a int without state_dict"),
        ({"loss": "low"}, "loss is a str"),
        ({"loss": torch.ones(2)}, "loss is a Tensor"),
        ({"loss": True}, "loss is a bool"),
        ({"healthy": 1}, "healthy=1"),
        ({"scaler": 3}, "scaler is a int"),
        ({"run": 3}, "run is a int"),
        ({"model": 3}, "model is a int"),
        ({"optimizer": 3}, "optimizer is a int"),
        ({"model": nn.Linear(3, 1, device="meta")}, "on the meta device"),
    ],
)
def test_what_cannot_be_loaded_back_is_refused_before_anything_is_written(more, where, tmp_path):
    with pytest.raises(UsageError, match=where):
        Checkpointer(tmp_path).save(3, **(made() | more))
    assert not list(tmp_path.iterdir())


def test_what_holds_itself_is_refused(tmp_path):
    extra = []
    extra.append(extra)
    with pytest.raises(UsageError, match="holds itself"):
        Checkpointer(tmp_path).save(3, **made(), extra=extra)


@pytest.mark.parametrize(
    "settings", [{"keep": 1.5}, {"keep": True}, {"on_failure": "ignore"}, {"run_id": "../x"}], ids=repr
)
def test_settings_that_make_no_sense_are_refused(settings, tmp_path):
    with pytest.raises(UsageError):
        Checkpointer(tmp_path, **settings)


def test_loaded_state_is_not_tied_to_the_file(checkpoints):
    parts = made()
    checkpoints.load(checkpoints.pick(), **parts)
    before = bits(parts)
    for path in itertools.chain(*(folder.iterdir() for folder in checkpoints.folder.iterdir())):
        path.write_bytes(b"\xff" * path.stat().st_size)
    assert bits(parts) == before
    trained(parts)
