"""OUT: one process at a time trains into it, and where nothing can be saved nothing is built."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.strict_yaml import ConfigError
from recipes.twin_moe.folder import Hold
from recipes.twin_moe.tests.small_twin import engine_with, small
from recipes.twin_moe.train import main, train

ROOT = Path(__file__).parents[3]


def hold(out, lines=None):
    return Hold(out, tell=(lines if lines is not None else []).append)


# One process at a time.


def test_a_second_one_is_kept_out_until_the_first_has_ended(tmp_path):
    with hold(tmp_path), pytest.raises(ConfigError, match="another process trains into this folder"), hold(tmp_path):
        pass
    with hold(tmp_path):
        pass


def test_a_folder_that_is_not_there_is_locked_once_it_is_made(tmp_path):
    out = tmp_path / "new"
    with hold(out) as first, hold(out) as second:
        assert not out.exists()
        first.make_ready(out / "segment_1")
        with pytest.raises(ConfigError, match="another process"):
            second.make_ready(out / "segment_1")


def test_two_trainings_at_once_are_refused_though_the_history_is_no_file(tmp_path):
    # given
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    refused = []

    def another(engine):
        if engine.step == 2:
            command = [sys.executable, "-m", "recipes.twin_moe.tests.small_twin", str(tmp_path)]
            refused.append(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120).stderr)

    # when
    ended = train(small(), out=tmp_path, stop_at=3, tell=lambda line: None, make_engine=engine_with(another))
    # then
    assert "another process trains into this folder" in refused[0]
    assert ended.checkpoint.step == 3
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("segment_")] == ["segment_1"]


def test_where_there_are_no_locks_that_is_said_once_and_training_goes_on(tmp_path, monkeypatch):
    # given
    def none_here(fd, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("recipes.twin_moe.folder.fcntl.flock", none_here)
    lines = []
    # when
    with hold(tmp_path, lines) as held:
        held.make_ready(tmp_path / "segment_1")
    # then
    [line] = lines
    assert "cannot be locked (OSError: [Errno 37] No locks available): see to it yourself" in line


# Where nothing can be saved.


def a_file(tmp_path):
    (tmp_path / "out").write_text("")
    return tmp_path / "out"


def below_a_file(tmp_path):
    return a_file(tmp_path) / "deeper"


def no_place_for_it(tmp_path):
    return Path("/proc/trimtab-out")


def segment_is_a_file(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "segment_1").write_text("")
    return tmp_path / "out"


def read_only(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o500)
    if os.access(tmp_path / "out", os.W_OK):
        pytest.skip("who runs this may write everywhere")
    return tmp_path / "out"


@pytest.mark.parametrize("made", [a_file, below_a_file, no_place_for_it, segment_is_a_file, read_only])
def test_where_nothing_can_be_saved_nothing_is_built_and_the_exit_is_2(tmp_path, capsys, monkeypatch, made):
    # given
    out = made(tmp_path)
    monkeypatch.setattr("recipes.twin_moe.engine.build_parts", pytest.fail)
    # then
    assert main(["--preset", "tiny", "--out", str(out)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"--out: nothing can be saved in {out}" in said
    assert "give another folder" in said


def test_a_disk_without_room_for_a_byte_is_known_before_anything_is_built(tmp_path):
    # given
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    # when
    try:
        with hold(tmp_path) as held, pytest.raises(ConfigError, match=r"nothing can be saved in .*segment_1"):
            held.make_ready(tmp_path / "segment_1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    # then
    assert list(tmp_path.iterdir()) == []


def test_what_can_be_saved_to_is_left_as_it_was(tmp_path):
    (tmp_path / "segment_2" / "step_3").mkdir(parents=True)
    with hold(tmp_path) as held:
        for segment in ("segment_1", "segment_2"):
            held.make_ready(tmp_path / segment)
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "segment_2",
        "segment_2/step_3",
    ]
