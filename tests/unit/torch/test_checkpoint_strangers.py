"""Values that a stranger put into a checkpoint whose checksums hold: refused in short time, before anything changes."""

import signal
import zlib
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from trimtab.checkpoint import Checkpointer
from trimtab.errors import CheckpointError
from trimtab.resume.manifest import MANIFEST_NAME, FileEntry, dump_manifest, read_manifest

MOST_S = 20
"""Of 2^40 entries nobody has spelled or compared any by then."""


def made(kind=torch.optim.AdamW, *, lr=1e-2, **options):
    model = nn.Linear(4, 3)
    optimizer = kind(model.parameters(), lr=lr, **options)
    scheduler = lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer), lr_scheduler.StepLR(optimizer, 2)], [3]
    )
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def trained(parts, num_steps=2):
    for _ in range(num_steps):
        parts["model"](torch.randn(5, 4)).square().mean().backward()
        parts["optimizer"].step()
        parts["optimizer"].zero_grad()
        parts["scheduler"].step()
    return parts


def forged(folder, name, change):
    """Changes a payload, and writes what the manifest then has to say: checksums are no signature."""
    state = torch.load(folder / name, weights_only=True)
    change(state)
    torch.save(state, folder / name)
    data = (folder / name).read_bytes()
    manifest = read_manifest(folder)
    entry = FileEntry(path=name, size_bytes=len(data), crc32=zlib.crc32(data))
    files = tuple(entry if file.path == name else file for file in manifest.files)
    (folder / MANIFEST_NAME).write_bytes(dump_manifest(replace(manifest, files=files)))


def refused(folder, parts):
    """What is said in time; nothing has changed, and not even been tried."""

    def tried(*_):
        raise AssertionError("the load had begun")

    parts["optimizer"].register_load_state_dict_pre_hook(tried)
    before = str([part.state_dict() for part in parts.values()])
    old = signal.signal(signal.SIGALRM, tried)
    signal.alarm(MOST_S)
    try:
        with pytest.raises(CheckpointError) as raised:
            Checkpointer(folder.parent).load(folder, **parts)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
    assert str([part.state_dict() for part in parts.values()]) == before
    assert "the load had begun" not in str(raised.value)
    return str(raised.value)


def at(*keys):
    """Puts a value to a place."""

    def put(value):
        def change(state):
            for key in keys[:-1]:
                state = state[key]
            state[keys[-1]] = value

        return change

    return put


def without(*keys):
    def change(state):
        for key in keys[:-1]:
            state = state[key]
        del state[keys[-1]]

    return change


def doubled():
    value = ["x"]
    for _ in range(40):
        value = [value, value]
    return value


SCHEDULE = ("values", "scheduler")
OPTION = ("param_groups", 0)
MOMENT = ("state", 0)

PLACES = {
    "version": ("run.pt", at("version")),
    "step": ("run.pt", at("step")),
    "kind": ("run.pt", at("kinds", "optimizer")),
    "names": ("run.pt", at("optimizer_names")),
    "baseline": ("run.pt", at("nonfinite_at_start")),
    "values": ("run.pt", at("values")),
    "schedule": ("run.pt", at(*SCHEDULE)),
    "rates": ("run.pt", at(*SCHEDULE, "_last_lr")),
    "rank version": ("rank_0.pt", at("version")),
    "position": ("rank_0.pt", at("data")),
    "random": ("rank_0.pt", at("rng", "python")),
    "lr": ("optimizer.pt", at(*OPTION, "lr")),
    "betas": ("optimizer.pt", at(*OPTION, "betas")),
    "an entry": ("optimizer.pt", at("more")),
    "a weight": ("model.pt", at("weight")),
}


@pytest.mark.parametrize("make", [doubled, lambda: ["y" * 2**20] * 2**11], ids=["lists", "text"])
@pytest.mark.parametrize("place", PLACES)
def test_what_grows_beyond_its_file_is_refused_in_short_time(place, make, tmp_path):
    Checkpointer(tmp_path).save(2, **trained(made()))
    name, put = PLACES[place]
    forged(tmp_path / "step_2", name, put(make()))
    assert f"{name}: holds the same lists or text over and over" in refused(tmp_path / "step_2", made())


def test_a_version_or_a_step_that_is_no_number_is_not_spelled(tmp_path):
    Checkpointer(tmp_path).save(2, **trained(made()))
    forged(tmp_path / "step_2", "run.pt", at("step")("2" * 10_000))
    assert "run.pt is of step a str, and its manifest says 2" in refused(tmp_path / "step_2", made())
    forged(tmp_path / "step_2", "run.pt", at("version")(10**30))
    assert "found version a int, expected 1" in refused(tmp_path / "step_2", made())


def test_nesting_has_an_end(tmp_path):
    Checkpointer(tmp_path).save(2, **trained(made()))
    # Deeper than pickle itself can write at once.
    forged(tmp_path / "step_2", "run.pt", at("values", "extra")(eval("[" * 180 + "]" * 180)))
    assert "nested more than 150 deep" in refused(tmp_path / "step_2", made())


FORGED = {
    "lr is text": ("optimizer.pt", at(*OPTION, "lr")("x"), "has a str for lr, expected a finite number"),
    "lr is a list": ("optimizer.pt", at(*OPTION, "lr")([1.0]), "has a list for lr"),
    "lr is nan": ("optimizer.pt", at(*OPTION, "lr")(float("nan")), "has nan for lr"),
    "lr is huge": ("optimizer.pt", at(*OPTION, "lr")(10**400), "has a int for lr"),
    "no lr": ("optimizer.pt", without(*OPTION, "lr"), "has None for lr"),
    "first lr": ("optimizer.pt", at(*OPTION, "initial_lr")(float("inf")), "has inf for initial_lr"),
    "betas nested": ("optimizer.pt", at(*OPTION, "betas")([[0.9], 0.999]), "has a list for betas"),
    "betas short": ("optimizer.pt", at(*OPTION, "betas")((0.9,)), "has a tuple for betas"),
    "decay": ("optimizer.pt", at(*OPTION, "weight_decay")({}), "has a dict for weight_decay"),
    "switch": ("optimizer.pt", at(*OPTION, "maximize")([]), "has a list for maximize"),
    "shape": ("optimizer.pt", at(*MOMENT, "exp_avg")(torch.zeros(3)), "shape (3,) and type torch.float32 for exp_avg"),
    "type": ("optimizer.pt", at(*MOMENT, "exp_avg")(torch.zeros(3, 4, dtype=torch.int8)), "type torch.int8"),
    "no tensor": ("optimizer.pt", at(*MOMENT, "exp_avg")(0.0), "has 0.0 for exp_avg"),
    "on meta": ("optimizer.pt", at(*MOMENT, "exp_avg")(torch.zeros(3, 4, device="meta")), "for exp_avg"),
    "missing": ("optimizer.pt", without(*MOMENT, "exp_avg_sq"), "state of weight lacks exp_avg_sq"),
    "count": ("optimizer.pt", at(*MOMENT, "step")(torch.zeros(2)), "shape (2,) and type torch.float32 for step"),
    "weight on meta": ("model.pt", at("weight")(torch.zeros(3, 4, device="meta")), "weight is on the meta device"),
    "weight sparse": ("model.pt", at("weight")(torch.zeros(3, 4).to_sparse()), "weight is of layout torch.sparse_coo"),
    "the optimizer": ("run.pt", at(*SCHEDULE, "optimizer")(3), "SequentialLR holds optimizer, which is no part"),
    "a method": ("run.pt", at(*SCHEDULE, "_schedulers", 1, "step")(3), "StepLR holds step, which is no part"),
    "a count": ("run.pt", at(*SCHEDULE, "last_epoch")([2]), "has a list for last_epoch, expected a finite number"),
    "a rate": ("run.pt", at(*SCHEDULE, "_schedulers", 0, "base_lrs")(["x"]), "has a list for base_lrs, expected 1"),
    "no count": ("run.pt", without(*SCHEDULE, "last_epoch"), "has None for last_epoch"),
    "one scheduler": ("run.pt", at(*SCHEDULE, "_schedulers")([]), "does not hold those of its 2 schedulers"),
    "no schedule": ("run.pt", at(*SCHEDULE)([]), "is a list, expected a mapping"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_value_that_could_not_be_one_is_refused_by_its_place(case, tmp_path):
    Checkpointer(tmp_path).save(2, **trained(made()))
    name, change, said = FORGED[case]
    forged(tmp_path / "step_2", name, change)
    message = refused(tmp_path / "step_2", made())
    assert said in message
    assert str(tmp_path / "step_2") in message


KINDS = {
    "adadelta": (torch.optim.Adadelta, {}),
    "adafactor": (torch.optim.Adafactor, {}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adam, amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adam, fused": (torch.optim.Adam, {"fused": True}),
    "adam, rate as a tensor": (torch.optim.Adam, {"lr": torch.tensor(1e-2)}),
    "adamax": (torch.optim.Adamax, {}),
    "asgd": (torch.optim.ASGD, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "rmsprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "rprop": (torch.optim.Rprop, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "sgd, plain": (torch.optim.SGD, {}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_steps", [0, 2])
def test_what_each_optimizer_of_torch_saves_is_taken_and_trains_on_alike(kind, num_steps, tmp_path):
    cls, options = KINDS[kind]
    checkpoints = Checkpointer(tmp_path)
    parts = trained(made(cls, **options), num_steps)
    checkpoints.save(2, **parts)
    torch.manual_seed(3)
    trained(parts)
    resumed = made(cls, **options)
    checkpoints.load(checkpoints.pick(), **resumed)
    torch.manual_seed(3)
    trained(resumed)
    assert torch.equal(resumed["model"].weight, parts["model"].weight)


@pytest.mark.parametrize(
    ("kind", "options", "key"),
    [
        (torch.optim.Adam, {"amsgrad": True}, "max_exp_avg_sq"),
        (torch.optim.RMSprop, {"centered": True}, "grad_avg"),
        (torch.optim.Adagrad, {}, "sum"),
        (torch.optim.NAdam, {}, "mu_product"),
        (torch.optim.Rprop, {}, "prev"),
    ],
)
def test_what_an_optimizer_cannot_step_without_is_missed_before_it_steps(kind, options, key, tmp_path):
    Checkpointer(tmp_path).save(2, **trained(made(kind, **options)))
    forged(tmp_path / "step_2", "optimizer.pt", without(*MOMENT, key))
    assert f"state of weight lacks {key}" in refused(tmp_path / "step_2", made(kind, **options))


def test_an_option_that_is_gone_is_missed_before_the_next_step(tmp_path):
    Checkpointer(tmp_path).save(2, **trained(made()))
    forged(tmp_path / "step_2", "optimizer.pt", without(*OPTION, "betas"))
    with pytest.raises(CheckpointError, match=r"parameter group 0 of its optimizer lacks betas\. Nothing was loaded"):
        Checkpointer(tmp_path).load(tmp_path / "step_2", **made())


@pytest.mark.parametrize("lr", [float("nan"), float("inf"), 0, -1.0, "x", True], ids=repr)
def test_what_is_no_rate_is_refused_before_a_checkpoint_is_read(lr, tmp_path):
    with pytest.raises(Exception, match="is no learning rate"):
        Checkpointer(tmp_path).load(tmp_path / "nothing", **made(), lr=lr)
