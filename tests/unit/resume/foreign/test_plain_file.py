"""Single files of somebody's own loop: what they hold, and whether loading them is safe."""

import collections
import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from trimtab.resume.foreign.plain_file import inspect_file


class Runs:
    def __init__(self, function, *arguments):
        self._call = function, arguments

    def __reduce__(self):
        return self._call


@pytest.fixture
def save(tmp_path):
    def make(value, name="step_000300.pt", **settings):
        torch.save(value, tmp_path / name, **settings)
        return tmp_path / name

    return make


def test_the_keys_name_the_parts(save, states):
    found = inspect_file(save({**states, "step": 300, "loss": 1.25, "cfg": {"lr": 1e-3}}))
    assert found.parts == ("model", "optimizer", "step", "rng", "scheduler", "loss", "config")
    assert (found.missing, found.problems, found.notes) == ((), (), ())
    assert (found.step, found.loss, found.num_files) == (300, 1.25, 1)


@pytest.mark.parametrize(
    ("keys", "missing"),
    [
        # as nanoGPT, Lightning, Megatron-LM, PyTorch's tutorial and llm.c's port spell them
        (["model", "optimizer", "model_args", "iter_num", "best_val_loss", "config"], ()),
        (["state_dict", "optimizer_states", "lr_schedulers", "global_step", "loops"], ()),
        (["model", "optimizer", "opt_param_scheduler", "iteration", "rng_state", "args"], ()),
        (["epoch", "model_state_dict", "optimizer_state_dict", "loss"], ()),
        (["model-state", "OPTIMIZER", "Step", "rng_states"], ()),
    ],
)
def test_the_spellings_of_known_loops_are_known(save, keys, missing):
    found = inspect_file(save({key: {} for key in keys}))
    assert found.missing == missing


def test_a_file_without_optimizer_is_refused_with_what_is_missing(save, states):
    # the case of a file with the keys step, model and cfg
    found = inspect_file(save({"step": 300, "model": states["model"], "cfg": {}}))
    assert found.parts == ("model", "step", "config")
    assert found.missing == ("optimizer",)
    assert found.notes == ("its keys are step, model and cfg",)
    assert found.problems == ()


def test_without_random_numbers_one_can_go_on_and_not_bit_for_bit(save, states):
    kept = {name: states[name] for name in ("model", "optimizer")}
    assert inspect_file(save(kept)).notes == (
        "it holds no random numbers: a run that goes on from it is not bit-identical to one that went on",
        "it holds no scheduler: if the run had one, its schedule would begin anew",
    )


def test_the_weights_alone_are_a_model(save, states):
    found = inspect_file(save(states["model"], "weights.pt"))
    assert (found.parts, found.missing) == (("model",), ("optimizer", "step"))


def test_a_number_in_the_name_is_the_step(save, states):
    found = inspect_file(save(dict(states)))
    assert "step" in found.parts
    assert found.step is None


@pytest.mark.parametrize(
    ("inside", "is_problem"), [(300, False), (299, False), (301, False), (200, True), (3000, True)]
)
def test_a_copy_under_another_number_is_told_from_a_loop_that_counts_from_zero(save, states, inside, is_problem):
    found = inspect_file(save({**states, "step": inside}))
    assert bool(found.problems) == is_problem
    assert all("it was copied or renamed" in problem for problem in found.problems)


def test_a_flipped_bit_anywhere_in_the_weights_is_named(save, states):
    path = save({**states, "step": 300})
    data = bytearray(path.read_bytes())
    place = data.index(states["model"]["weight"].numpy().tobytes())
    data[place] ^= 4
    path.write_bytes(data)
    assert inspect_file(path).problems == (
        "step_000300.pt does not hold the bytes that were saved: the CRC-32 of step_000300/data/0 differs",
    )


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "step_300.pt").touch()
    assert inspect_file(tmp_path / "step_300.pt").problems == ("step_300.pt is empty (0 bytes)",)


def test_a_truncated_file_is_refused(save, states):
    path = save({**states, "step": 300})
    path.write_bytes(path.read_bytes()[:-1_000])
    (problem,) = inspect_file(path).problems
    assert "truncated" in problem


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_bare_pickle_needs_pickle(tmp_path, protocol):
    (tmp_path / "step_300.pt").write_bytes(pickle.dumps({"model": Runs(os.system, "false")}, protocol))
    (problem,) = inspect_file(tmp_path / "step_300.pt").problems
    assert "needs pickle: it is a bare pickle" in problem


def test_the_old_format_of_torch_needs_pickle(save, states):
    path = save(dict(states), _use_new_zipfile_serialization=False)
    (problem,) = inspect_file(path).problems
    assert "before 1.6" in problem


def test_a_hostile_pickle_is_named_and_not_run(tmp_path, save):
    witness = tmp_path / "ran"
    path = save({"model": Runs(os.system, f"touch {witness}"), "step": 300})
    found = inspect_file(path)
    assert found.problems == (
        f"step_000300.pt needs pickle: {os.system.__module__}.system, which weights_only=True does not load",
    )
    assert not witness.exists()


def test_a_name_made_to_act_on_a_terminal_is_shown_as_an_escape(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}X\x01\0\0\0acevil\x1b[31m\nname\xe2\x80\xae\ns.")
    (tmp_path / "step_300.pt").write_bytes(stream.getvalue())
    (problem,) = inspect_file(tmp_path / "step_300.pt").problems
    assert "evil\\x1b[31m.name\\u202e" in problem
    assert problem.isascii()


def test_numbers_of_numpy_need_pickle(save, states):
    (problem,) = inspect_file(save({**states, "loss": np.float64(1.5)})).problems
    assert "needs pickle: numpy" in problem


def test_a_torchscript_archive_needs_pickle(tmp_path):
    # given: the layout that torch.jit.save writes, which a torch to come may write no more
    with zipfile.ZipFile(tmp_path / "step_300.pt", "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        archive.writestr("a/constants.pkl", b"\x80\x02).")
        archive.writestr("a/code/__torch__.py", b"class Net: pass")
    (problem,) = inspect_file(tmp_path / "step_300.pt").problems
    assert "holds code" in problem


def test_a_tensor_without_its_bytes_is_named(save, states):
    path = save({**states, "step": 300})
    stream = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(stream, "w") as new:
        for info in old.infolist():
            if not info.filename.endswith("/data/2"):
                new.writestr(info.filename, old.read(info))
    path.write_bytes(stream.getvalue())
    (problem,) = inspect_file(path).problems
    assert "lacks the bytes of 1 of its tensors, step_000300/data/2" in problem


@pytest.mark.parametrize("value", [[1, 2], torch.ones(3), "text"])
def test_what_is_no_mapping_holds_no_part(save, value):
    found = inspect_file(save(value))
    assert (found.parts, found.missing) == ((), ("model", "optimizer", "step"))
    assert found.problems == ()


def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "step_300.pt")
    assert inspect_file(tmp_path / "step_300.pt").problems == ("step_300.pt is no ordinary file",)


def test_what_is_not_there_is_missing(tmp_path):
    assert inspect_file(tmp_path / "step_300.pt").problems == ("step_300.pt is missing",)


def test_an_ordered_dict_of_modules_state_is_read(save):
    value = collections.OrderedDict(model=collections.OrderedDict(w=torch.ones(2)), optimizer={}, step=300, rng=[1])
    assert inspect_file(save(value)).missing == ()
