"""`trimtab ckpt` where names, folders and files are not what one would wish: what it says, and what it exits with."""

import json
import os
import pty
import subprocess
import sys

import pytest
import torch

from trimtab.resume.names import MAX_IGNORED

COMMAND = (sys.executable, "-c", "import sys; from trimtab.cli import main; sys.exit(main())", "ckpt", "pick")


def printed(here, *arguments):
    """Standard output of `trimtab ckpt pick`, its bytes."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, check=True, cwd=here)
    return done.stdout


# ----------------------------------------------------------------------------------------------------- an unhealthy one


def test_a_choice_that_is_not_healthy_is_warned_of_with_the_command_that_gives_the_last_healthy_one(
    trimtab, checkpoint
):
    checkpoint(900)
    checkpoint(1_000, because="layer.weight holds nan")
    result = trimtab("ckpt", "pick", "--run-id", "r", "runs/a")
    assert (result.exit_code, result.stdout) == (0, "runs/a/step_1000\n")
    assert "warning: this one is not healthy, and a load of it is refused." in result.stderr
    assert "The last healthy one is step_900" in result.stderr
    assert "trimtab ckpt pick --healthy --run-id r runs/a\n" in result.stderr
    found = json.loads(trimtab("ckpt", "pick", "--json", "-", "runs/a").stdout)
    assert (found["step"], found["last_healthy"]) == (1_000, "runs/a/step_900")


def test_where_none_is_healthy_there_is_none_to_name(trimtab, checkpoint):
    checkpoint(1_000, because="layer.weight holds nan")
    result = trimtab("ckpt", "pick", "runs/a")
    assert "warning: this one is not healthy, a load of it is refused, and no other one" in result.stderr
    assert json.loads(trimtab("ckpt", "pick", "--json", "-", "runs/a").stdout)["last_healthy"] is None


def test_a_healthy_choice_is_the_last_healthy_one_and_nothing_is_warned_of(trimtab, checkpoint):
    checkpoint(900)
    assert "warning" not in trimtab("ckpt", "pick", "runs/a").stderr
    found = json.loads(trimtab("ckpt", "pick", "--json", "-", "runs/a").stdout)
    assert (found["last_healthy"], found["path_hex"]) == ("runs/a/step_900", None)


# ------------------------------------------------------------------------------------------------------------- the path


@pytest.mark.parametrize("name", [b"l\xc3\xa4ufe", b"\xff\xfe", b"a b", b"red\x1b[31m"])
def test_the_path_for_a_program_is_the_path_byte_for_byte(checkpoint, here, name):
    folder = os.fsdecode(name)
    checkpoint(100, out=folder)
    path = printed(here, folder).removesuffix(b"\n")
    assert path == name + b"/step_100"
    assert os.path.isdir(os.path.join(os.fsencode(here), path))  # noqa: PTH112, PTH118 - bytes


def test_the_bytes_of_a_path_that_is_no_text_are_in_the_json(checkpoint, here):
    checkpoint(100, out=os.fsdecode(b"\xff"))
    found = json.loads(printed(here, "--json", "-", os.fsdecode(b"\xff")).decode("utf-8", "strict"))
    assert bytes.fromhex(found["path_hex"]) == b"\xff/step_100"
    assert found["path"] == "\\udcff/step_100"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"l\xc3\xa4ufe", b"l\xc3\xa4ufe"),
        (b"red\x1b[31m", b"red\\x1b[31m"),
        (b"\xff", b"\\udcff"),
        (b"\xe2\x80\xae", b"\\u202e"),
    ],
)
def test_on_a_terminal_a_path_is_escaped_where_it_would_act(checkpoint, here, name, shown):
    checkpoint(100, out=os.fsdecode(name))
    ours, theirs = pty.openpty()
    environ = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    try:
        subprocess.run(
            [*COMMAND, os.fsdecode(name)], stdout=theirs, stderr=subprocess.PIPE, check=True, cwd=here, env=environ
        )
        assert os.read(ours, 1_000) == shown + b"/step_100\r\n"
    finally:
        os.close(ours)
        os.close(theirs)


# -------------------------------------------------------------------------------------------------------- folders above


@pytest.mark.parametrize("verb", ["ls", "verify"])
def test_a_link_to_itself_beside_the_folders_is_passed_over_and_told(trimtab, checkpoint, here, verb):
    checkpoint(100, out="runs/a")
    checkpoint(200, out="runs/b")
    (here / "runs/loop").symlink_to("loop")
    result = trimtab("ckpt", verb, "runs")
    assert result.exit_code == 0
    assert "step_100" in result.stdout
    assert "step_200" in result.stdout
    assert "ignored: loop: neither a file nor a folder" in result.stdout
    found = json.loads(trimtab("ckpt", verb, "--json", "-", "runs").stdout)
    assert found["ignored"] == [{"path": "runs/loop", "reason": "neither a file nor a folder"}]


def test_a_link_to_itself_beside_the_one_folder_is_noted_by_pick(trimtab, checkpoint, here):
    checkpoint(100, out="runs/a")
    (here / "runs/loop").symlink_to("loop")
    result = trimtab("ckpt", "pick", "runs")
    assert (result.exit_code, result.stdout) == (0, "runs/a/step_100\n")
    assert "note: loop was not looked into: neither a file nor a folder" in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list any folder")
def test_a_folder_that_may_not_be_listed_is_told(trimtab, checkpoint, here):
    checkpoint(100)
    (here / "runs/closed").mkdir(mode=0)
    assert "ignored: closed: cannot be listed (Permission denied)" in trimtab("ckpt", "ls", "runs").stdout


def test_of_a_folder_full_of_other_files_the_first_are_told_and_the_others_counted(trimtab, checkpoint, here):
    checkpoint(100)
    for number in range(MAX_IGNORED + 5):
        (here / f"runs/a/a{number}").touch()
    (here / "runs/a/step_200_backup").mkdir()
    for verb in ("ls", "pick"):
        assert f"ignored: {MAX_IGNORED - 14:,} more" in trimtab("ckpt", verb, "runs/a").output
    found = json.loads(trimtab("ckpt", "pick", "--json", "-", "runs/a").stdout)
    assert (len(found["ignored"]), found["num_ignored"]) == (MAX_IGNORED, MAX_IGNORED + 6)
    # what somebody may have taken for a checkpoint is among them, wherever the alphabet has it
    assert "runs/a/step_200_backup" in {entry["path"] for entry in found["ignored"]}


# ---------------------------------------------------------------------------------------------------- of somebody's own


def save_needing_pickle(path, **settings):
    torch.save({"model": {}, "optimizer": {}, "step": 300, "rng": range(3)}, path, **settings)


@pytest.mark.parametrize("is_legacy", [False, True])
def test_a_sound_file_that_needs_pickle_is_not_called_damaged(trimtab, here, is_legacy):
    save_needing_pickle(here / "step_300.pt", _use_new_zipfile_serialization=not is_legacy)
    result = trimtab("ckpt", "verify", "step_300.pt")
    assert result.exit_code == 1
    assert "damaged  " not in result.stdout
    assert "cannot be loaded without pickle" in result.stdout
    found = json.loads(trimtab("ckpt", "verify", "--json", "-", "step_300.pt").stdout)
    assert (found["ok"], found["checkpoints"][0]["needs_pickle"]) == (False, True)


def test_damage_comes_before_what_needs_pickle(trimtab, here):
    save_needing_pickle(here / "step_300.pt")
    (here / "step_200.pt").write_bytes(b"")
    result = trimtab("ckpt", "verify", ".")
    assert result.exit_code == 3
    assert "2 checkpoints, 1 damaged, 1 that cannot be loaded without pickle" in result.stdout


def test_a_damaged_file_that_needs_pickle_is_damaged(trimtab, here):
    save_needing_pickle(here / "step_300.pt")
    data = (here / "step_300.pt").read_bytes()
    (here / "step_300.pt").write_bytes(data[:-30])
    assert trimtab("ckpt", "verify", "step_300.pt").exit_code == 3


def test_a_trainers_file_that_needs_pickle_is_no_damage_beside_sound_ones(trimtab, here):
    folder = here / "checkpoint-20"
    folder.mkdir()
    (folder / "trainer_state.json").write_text('{"global_step": 20}')
    for name in ("pytorch_model.bin", "optimizer.pt", "rng_state.pth"):
        torch.save({}, folder / name)
    torch.save(range(3), folder / "scheduler.pt")
    result = trimtab("ckpt", "verify", "checkpoint-20")
    assert (result.exit_code, "pickle   checkpoint-20" in result.stdout) == (1, True)
    (folder / "optimizer.pt").write_bytes(b"")
    assert trimtab("ckpt", "verify", "checkpoint-20").exit_code == 3


def test_ls_says_of_others_what_names_and_sizes_tell(trimtab, here):
    folder = here / "checkpoint-20"
    folder.mkdir()
    # no payload is read: none of these would be one
    for name in ("trainer_state.json", "model.safetensors", "optimizer.pt", "rng_state.pth"):
        (folder / name).write_bytes(b"x" * 250)
    (here / "step_130.pt").touch()
    (here / "step_120.pt").write_bytes(b"x" * 2_000)
    lines = trimtab("ckpt", "ls", ".").stdout.splitlines()
    assert lines[3].split() == ["130", "-", "-", "no", "0", "B", "-", "step_130.pt"]
    assert lines[4] == "    step_130.pt is empty (0 bytes)"
    assert lines[5].split() == ["120", "-", "-", "-", "2", "kB", "-", "step_120.pt"]
    assert lines[6].split() == ["20", "-", "-", "-", "1", "kB", "-", "checkpoint-20"]
    assert lines[7] == "    lacks scheduler, which a resume needs"


def test_a_trainers_checkpoint_without_a_manifest_is_refused_with_the_reason_where_others_have_one(
    trimtab, checkpoint, here
):
    checkpoint(100)
    for step in (50, 200):
        (here / f"runs/a/checkpoint-{step}").mkdir()
    found = json.loads(trimtab("ckpt", "pick", "--json", "-", "runs/a").stdout)
    assert found["step"] == 100
    assert [entry["path"] for entry in found["refused"]] == ["runs/a/checkpoint-200"]
    assert "and others here have one: which run it is of is not known" in found["refused"][0]["reason"]


def test_a_checkpoint_whose_weights_are_not_there_is_not_offered_as_a_fresh_start(trimtab, checkpoint):
    (checkpoint(12, parts=("model", "step")) / "model.pt").unlink()
    result = trimtab("ckpt", "pick", "runs/a")
    assert result.exit_code == 1
    assert "model.pt is missing" in result.stderr
    assert "load its model alone" not in result.stderr
