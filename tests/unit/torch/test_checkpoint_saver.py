"""What a save relies on before it deletes, what it says of the run, and what one that fails late leaves behind."""

import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trimtab import Run, UsageError, open_log
from trimtab.checkpoint import Checkpointer
from trimtab.errors import CheckpointError
from trimtab.resume import checksum
from trimtab.resume.disk_changes import Disk
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.manifest import ResumedFrom, read_manifest


@pytest.fixture
def parts():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def poison(parts):
    with torch.no_grad():
        parts["model"].weight[0, 0] = math.nan


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def read(monkeypatch):
    """The files whose bytes were read, in order."""
    paths = []
    read_checksum = checksum.read_checksum

    def noted(path, **more):
        paths.append(f"{path.parent.name}/{path.name}")
        return read_checksum(path, **more)

    monkeypatch.setattr("trimtab.resume.content.read_checksum", noted)
    return paths


# What is deleted.


def test_weights_that_a_run_loads_on_its_way_leave_none_of_its_checkpoints_behind(parts, tmp_path):
    checkpoints = Checkpointer(tmp_path, keep=5)
    for step in (100, 200, 300, 400, 500):
        checkpoints.save(step, **parts)
    checkpoints.load(tmp_path / "step_300", model=nn.Linear(3, 2))  # a teacher, say

    checkpoints.save(600, **parts)

    assert names(tmp_path) == ["step_200", "step_300", "step_400", "step_500", "step_600"]
    assert not any(info.abandoned for info in list_checkpoints(tmp_path))


def test_a_damaged_one_is_not_kept_in_the_place_of_the_last_healthy_one(parts, tmp_path, caplog):
    before = Checkpointer(tmp_path, run_id="a")
    before.save(100, **parts)
    before.save(200, **parts)
    flip(tmp_path / "step_200" / "model.pt")
    poison(parts)
    checkpoints = Checkpointer(tmp_path, run_id="a", keep=1)

    checkpoints.save(300, **parts)
    checkpoints.save(400, **parts)

    assert {"step_100", "step_400"} <= set(names(tmp_path))
    assert checkpoints.pick(healthy=True).step == 100
    assert "step_200 does not read back: model.pt" in caplog.text


def test_nothing_goes_where_the_new_one_does_not_read_back(parts, tmp_path, caplog):
    class Rots(Disk):
        """Loses a bit of what was written once it has its name."""

        def rename(self, path, new):
            super().rename(path, new)
            flip(new / "model.pt")

    Checkpointer(tmp_path, run_id="a").save(1, **parts)
    info = Checkpointer(tmp_path, run_id="a", keep=1, disk=Rots()).save(2, **parts)

    assert info.step == 2
    assert names(tmp_path) == ["step_1", "step_2"]
    assert "step_2 does not read back" in caplog.text


def test_what_was_read_whole_is_not_read_again_at_each_save(parts, tmp_path, read):
    checkpoints = Checkpointer(tmp_path, keep=1)
    checkpoints.save(1, **parts)
    checkpoints.save(2, **parts)
    poison(parts)
    checkpoints.save(3, **parts)
    checkpoints.save(4, **parts)

    # The last healthy one is 2, which was read when it was new.
    assert [name for name in read if name.endswith("model.pt")] == [f"step_{step}/model.pt" for step in (2, 4)]
    assert names(tmp_path) == ["step_2", "step_4"]


@pytest.mark.parametrize("on_failure", ["continue", "raise"])
def test_a_rotation_that_fails_is_told_as_one_and_the_save_counts(on_failure, parts, tmp_path, caplog, monkeypatch):
    checkpoints = Checkpointer(tmp_path, keep=1, on_failure=on_failure)
    checkpoints.save(1, **parts)

    def fails(*_, **__):
        raise CheckpointError("the folder cannot be listed")

    monkeypatch.setattr("trimtab.torch.checkpoint_saver.to_delete", fails)
    info = checkpoints.save(2, **parts)

    assert info.step == 2
    assert "was not saved" not in caplog.text
    assert "step_2 is saved, and older checkpoints were not deleted: the folder cannot be listed" in caplog.text


# What a manifest cannot hold.


@pytest.mark.parametrize("run_id", ["my run!", "../b", 3, "x" * 65])
def test_a_run_id_that_names_no_run_is_refused_before_anything_is_written(run_id, parts, tmp_path):
    run = SimpleNamespace(run_id=run_id, state_dict=dict, load_state_dict=None)
    with pytest.raises(UsageError, match="run_id"):
        Checkpointer(tmp_path / "new").save(1, **parts, run=run)
    assert not (tmp_path / "new").exists()


def test_a_manifest_that_cannot_be_written_is_a_save_that_fails(parts, tmp_path, caplog, monkeypatch):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, **parts)
    monkeypatch.setattr("trimtab.resume.manifest.MAX_SIZE_BYTES", 100)

    assert checkpoints.save(2, **parts) is None
    assert names(tmp_path) == ["step_1"]
    assert "the checkpoint of step 2 was not saved: the manifest of step 2 cannot be written" in caplog.text


# Where the run was taken back to.


def test_a_save_says_which_load_it_goes_on_from(parts, tmp_path):
    first = Checkpointer(tmp_path, run_id="a")
    for step in (500, 1000):
        first.save(step, **parts)
    back = Checkpointer(tmp_path)
    back.load(tmp_path / "step_500", **parts)
    back.save(600, **parts)
    back.save(700, **parts)

    assert read_manifest(tmp_path / "step_1000").resumed_from is None
    assert read_manifest(tmp_path / "step_600").resumed_from == ResumedFrom(step=500, serial=2)
    assert read_manifest(tmp_path / "step_700").resumed_from == ResumedFrom(step=500, serial=2)
    assert back.pick().step == 700

    further = Checkpointer(tmp_path)
    further.load(further.pick(), **parts)
    further.save(800, **parts)
    assert read_manifest(tmp_path / "step_800").resumed_from == ResumedFrom(step=700, serial=4)
    assert further.pick().step == 800


def test_a_load_from_another_folder_leaves_nothing_of_this_one_behind_but_what_is_there(parts, tmp_path):
    Checkpointer(tmp_path / "a", run_id="a").save(500, **parts)
    other = Checkpointer(tmp_path / "b")
    other.load(tmp_path / "a" / "step_500", **parts)
    other.save(501, **parts)
    assert read_manifest(tmp_path / "b" / "step_501").resumed_from == ResumedFrom(step=500, serial=0)


def test_a_fresh_start_of_the_same_run_goes_back_to_its_beginning(parts, tmp_path):
    Checkpointer(tmp_path, run_id="a").save(500, **parts)
    again = Checkpointer(tmp_path, run_id="a")
    again.load(again.pick(), model=parts["model"])
    again.save(100, **parts)
    assert read_manifest(tmp_path / "step_100").resumed_from == ResumedFrom(step=0, serial=1)
    assert again.pick().step == 100


def test_a_load_that_is_refused_is_none(parts, tmp_path):
    checkpoints = Checkpointer(tmp_path, run_id="a")
    checkpoints.save(1, **parts)
    other = nn.Linear(4, 4)
    with pytest.raises(CheckpointError):
        checkpoints.load(checkpoints.pick(), model=other, optimizer=torch.optim.AdamW(other.parameters()))
    checkpoints.save(2, **parts)
    assert read_manifest(tmp_path / "step_2").resumed_from is None


# The log of the run.


@pytest.mark.parametrize("wait", [True, False])
def test_no_step_before_the_checkpoint_is_missing_from_the_log(wait, parts, tmp_path):
    with Run(tmp_path / "log", **parts) as run:
        for _ in range(3):
            run.micro_batch(parts["model"](torch.ones(2, 3)).square().mean(1), per="sample", rows=range(2)).backward()
            run.step()
        checkpoints = Checkpointer(tmp_path / "checkpoints")
        checkpoints.save(3, **parts, run=run, wait=wait)
        checkpoints.wait()
        # As a kill would leave it.
        shutil.copytree(run.folder, tmp_path / "killed")

    assert open_log(tmp_path / "killed").steps().numpy()["step"].tolist() == [1, 2, 3]


def test_the_log_is_flushed_before_the_checkpoint_has_its_name(parts, tmp_path):
    there = []
    run = SimpleNamespace(state_dict=dict, flush=lambda: there.append((tmp_path / "step_1").exists()))
    Checkpointer(tmp_path).save(1, **parts, run=run)
    assert there == [False]


def test_a_log_that_cannot_be_flushed_does_not_cost_the_checkpoint(parts, tmp_path, caplog):
    def flush():
        raise OSError(28, "No space left on device")

    info = Checkpointer(tmp_path).save(1, **parts, run=SimpleNamespace(state_dict=dict, flush=flush))
    assert info.step == 1
    assert "the log of the run may end before this checkpoint: No space left on device" in caplog.text


# What is read for a load.


def test_what_pick_has_read_is_not_read_again_by_the_load(parts, tmp_path, read):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, **parts)
    info = checkpoints.pick()
    num_read = len(read)

    checkpoints.load(info, **parts)
    assert len(read) == num_read == 4

    checkpoints.load(info.path, **parts)
    assert len(read) == 2 * num_read

    # One that was copied back meanwhile, alike to the byte, is read again.
    content = (tmp_path / "step_1" / "model.pt").read_bytes()
    (tmp_path / "step_1" / "model.pt").write_bytes(content)
    checkpoints.load(info, **parts)
    assert len(read) == 3 * num_read


def test_another_process_reads_by_itself(parts, tmp_path, read):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, **parts)
    info = checkpoints.pick()
    del read[:]
    Checkpointer(tmp_path).load(info, **parts)
    assert len(read) == 4


def test_a_run_that_goes_over_the_step_between_pick_and_load_is_loaded_as_it_is_now_and_verified(parts, tmp_path):
    checkpoints = Checkpointer(tmp_path, run_id="a")
    checkpoints.save(1, **parts)
    info = checkpoints.pick()
    Checkpointer(tmp_path, run_id="a").save(1, **parts, extra="again")
    assert checkpoints.load(info, **parts).extra == "again"

    info = checkpoints.pick()
    Checkpointer(tmp_path, run_id="a").save(1, **parts)
    [inside] = [path for path in (tmp_path / "step_1").iterdir() if path.is_dir()]
    flip(inside / "model.pt")
    with pytest.raises(CheckpointError, match=f"{inside.name}/model.pt"):
        checkpoints.load(info, **parts)


def test_an_unhealthy_save_that_took_its_place_is_refused_too(parts, tmp_path):
    checkpoints = Checkpointer(tmp_path, run_id="a")
    checkpoints.save(1, **parts)
    info = checkpoints.pick()
    Checkpointer(tmp_path, run_id="a").save(1, **parts, healthy=False)
    with pytest.raises(CheckpointError, match="is not healthy"):
        checkpoints.load(info, **parts)


def test_files_that_are_no_part_of_it_are_remarked_after_pick_as_after_a_path(parts, tmp_path):
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, **parts)
    (tmp_path / "step_1" / "notes.txt").write_text("mine")
    remarks = checkpoints.load(checkpoints.pick(), **parts).remarks
    assert any("notes.txt" in remark for remark in remarks)
    assert Checkpointer(tmp_path).load(tmp_path / "step_1", **parts).remarks == remarks
