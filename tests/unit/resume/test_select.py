"""Which checkpoint is picked from real folders, and what is said of the others."""

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trimtab.errors import CheckpointError
from trimtab.resume import content, examine, select
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.manifest import ResumedFrom
from trimtab.resume.select import instead_of, pick

Save = Callable[..., Path]


def refusals(info: CheckpointInfo) -> dict[str, str]:
    return {entry.path.name: entry.reason for entry in info.refused}


def failure(folder: Path, **wanted: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        pick(folder, **wanted)
    message = str(caught.value)
    assert message.isascii()
    assert message.isprintable()
    return message


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_newest_is_picked_and_described(save: Save, tmp_path: Path) -> None:
    save(900, serial=1)
    path = save(1000, serial=2, loss=0.5, lr=[3e-4, 1e-5], saver="trimtab")

    assert pick(tmp_path) == CheckpointInfo(
        path=path,
        step=1000,
        healthy=True,
        run_id="run-a",
        serial=2,
        saver="trimtab",
        parts=("model", "optimizer", "step", "rng"),
        promise="checksums",
        loss=0.5,
        lr=(3e-4, 1e-5),
        size_bytes=900,
    )


def test_numbers_are_compared_as_numbers(save: Save, tmp_path: Path) -> None:
    for step in (900, 9000, 10_000):
        save(step)

    assert pick(tmp_path).step == 10_000


def test_the_time_of_a_file_decides_nothing(save: Save, tmp_path: Path) -> None:
    old = save(100)
    os.utime(save(200), (1, 1))
    os.utime(old)

    assert pick(tmp_path).step == 200


def test_a_renamed_copy_and_a_backup_are_not_picked(save: Save, tmp_path: Path) -> None:
    # C070, and a copy under the name of a later step.
    path = save(200)
    shutil.copytree(path, tmp_path / "step_300_postcollapse")
    shutil.copytree(path, tmp_path / "step_1000_backup")
    shutil.copytree(path, tmp_path / "step_400")

    info = pick(tmp_path)

    assert info.path == path
    assert refusals(info) == {
        "step_400": "called step_400 and saved after step 200: it was copied or renamed. Give it back the name that "
        "its step has"
    }
    assert [entry.path.name for entry in info.ignored] == ["step_1000_backup", "step_300_postcollapse"]


def test_damage_falls_back_to_the_next_older_one(save: Save, tmp_path: Path) -> None:
    # C076 and its neighbours: empty, flipped, truncated, missing, no manifest.
    for step in (100, 200, 300, 400, 500, 600):
        save(step)
    (tmp_path / "step_600" / "model.pt").write_bytes(b"")
    flip(tmp_path / "step_500" / "optimizer.pt")
    (tmp_path / "step_400" / "run.pt").write_bytes(b"r" * 39)
    (tmp_path / "step_300" / "rank_0.pt").unlink()
    (tmp_path / "step_200" / "trimtab_manifest.json").unlink()

    info = pick(tmp_path)

    assert info.step == 100
    assert [entry.path.name for entry in info.refused] == ["step_600", "step_500", "step_400", "step_300", "step_200"]
    reasons = list(refusals(info).values())
    assert reasons[0] == "model.pt is empty; it had 300 bytes"
    assert reasons[1].startswith("optimizer.pt is not what was saved: ")
    assert reasons[2] == "run.pt is truncated: 39 of its 40 bytes are there"
    assert reasons[3] == "rank_0.pt is missing, which holds rng"
    assert reasons[4].startswith("no trimtab_manifest.json, which a save writes last; it holds ")


def test_payload_of_older_ones_is_never_read(save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def reads(path: Path, **kwargs: Any) -> tuple[int, int]:
        read.append(path)
        return original(path, **kwargs)

    original = content.read_checksum
    monkeypatch.setattr(content, "read_checksum", reads)
    for step in (100, 200, 300, 400):
        save(step)
    (tmp_path / "step_400" / "model.pt").unlink()
    flip(tmp_path / "step_300" / "model.pt")

    assert pick(tmp_path).step == 200

    assert {path.parent.name for path in read} == {"step_300", "step_200"}
    # One whose sizes are wrong is not read, and of one that is damaged nothing beyond the damage.
    assert [path.name for path in read if path.parent.name == "step_300"] == ["model.pt"]


def test_one_without_all_its_parts_is_refused_with_their_names(save: Save, tmp_path: Path) -> None:
    # C079: its keys were step, model and config.
    save(100)
    save(
        200,
        files={"model.pt": b"m", "run.pt": b"r"},
        parts={"model": ["model.pt"], "step": ["run.pt"], "scheduler": []},
    )

    info = pick(tmp_path)

    assert info.step == 100
    assert refusals(info) == {
        "step_200": "lacks optimizer, rng and scheduler, which a resume needs; as an explicit fresh start, which "
        "restarts the schedule, load its model alone by its path"
    }


def test_a_part_that_the_run_has_and_no_file_holds_makes_it_incomplete(save: Save, tmp_path: Path) -> None:
    save(100)
    parts = {
        "model": ["model.pt"],
        "optimizer": ["optimizer.pt"],
        "step": ["run.pt"],
        "rng": ["rank_0.pt"],
        "guard": [],
    }
    save(200, parts=parts)

    assert pick(tmp_path).step == 100
    assert "lacks guard," in refusals(pick(tmp_path))["step_200"]


def test_an_unhealthy_newest_one_is_picked_and_says_so(save: Save, tmp_path: Path) -> None:
    save(900)
    save(1000, healthy=False, unhealthy_because=["layer.weight: 1 NaN"])

    info = pick(tmp_path)

    assert (info.step, info.healthy, info.unhealthy_because) == (1000, False, ("layer.weight: 1 NaN",))


def test_the_newest_healthy_one_is_picked_where_that_is_asked(save: Save, tmp_path: Path) -> None:
    # C065
    save(900)
    save(1000, healthy=False, unhealthy_because=["layer.weight: 1 NaN \x1b[31m"])

    info = pick(tmp_path, healthy=True)

    assert info.step == 900
    assert refusals(info) == {"step_1000": "not healthy: layer.weight: 1 NaN \\x1b[31m"}


def test_the_one_before_the_first_anomaly_is_picked(save: Save, tmp_path: Path) -> None:
    # C066: the spike is at 7000, the gradient norm was off from 4700 on; all of them are finite.
    for step in (4000, 4500, 4700, 5000, 6500):
        save(step)

    info = pick(tmp_path, healthy=True, before_step=4700)

    assert info.step == 4500
    assert set(refusals(info).values()) == {"not before step 4700"}


def test_no_healthy_one_is_an_error_that_says_what_to_do(save: Save, tmp_path: Path) -> None:
    save(900, healthy=False)
    flip(save(800) / "model.pt")

    message = failure(tmp_path, healthy=True)

    assert f"{tmp_path}: none of its checkpoints is a healthy one to resume from." in message
    assert "start without a checkpoint, or name one of these by its path" in message
    assert "step_900: not healthy: its manifest does not say why; step_800: model.pt is not what was saved" in message


def test_nothing_usable_is_an_error_with_each_reason(save: Save, tmp_path: Path) -> None:
    for step in range(12):
        (save(step) / "model.pt").unlink()

    message = failure(tmp_path)

    assert "step_11: model.pt is missing, which holds model; step_10: model.pt is missing" in message
    assert message.endswith("and 2 more.")


def test_an_empty_folder_says_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "step_5.tmp-0badcafe").mkdir()
    (tmp_path / "latest").write_text("step_7")

    assert failure(tmp_path) == (
        f"{tmp_path}: no checkpoint, expected step_<number>, checkpoint-<number>, or a file step_<number>.pt. Name "
        "another folder, or start without one. Ignored: latest: a pointer is a hint, never the truth; "
        "step_5.tmp-0badcafe: a draft: its save has not ended, or was killed."
    )


def test_a_checkpoint_given_as_the_folder_is_said(save: Save) -> None:
    assert "is a checkpoint itself, expected the folder that holds it" in failure(save(900))


def test_a_pointer_is_no_truth(save: Save, tmp_path: Path) -> None:
    save(100)
    save(200)
    (tmp_path / "latest").write_text("step_100")
    (tmp_path / "last").symlink_to("step_100")

    assert pick(tmp_path).step == 200


def test_the_run_that_saved_last_is_picked_whatever_its_numbers(save: Save, tmp_path: Path) -> None:
    # C071
    save(1000, name="checkpoint-1000", run_id="run-a", serial=40, saver="transformers")
    save(10, name="checkpoint-10", run_id="run-b", serial=41, saver="transformers")

    info = pick(tmp_path)

    assert (info.path.name, info.run_id, info.saver) == ("checkpoint-10", "run-b", "transformers")
    assert info.notices == (
        "the folder holds checkpoints of run run-a (newest checkpoint-1000) as well; those of run run-b are looked "
        "at, which saved last. run_id= (--run-id of trimtab ckpt pick) chooses another",
    )
    assert pick(tmp_path, run_id="run-a").step == 1000
    assert pick(tmp_path, run_id="run-a").notices == ()


def test_another_run_never_steps_in_for_the_newest(save: Save, tmp_path: Path) -> None:
    save(1000, run_id="run-a", serial=40)
    flip(save(10, run_id="run-b", serial=41) / "model.pt")

    message = failure(tmp_path)

    assert "step_10: model.pt is not what was saved" in message
    assert "The folder holds checkpoints of run run-a (newest step_1000) as well" in message


def test_a_run_that_is_not_there_is_an_error_that_names_those_that_are(save: Save, tmp_path: Path) -> None:
    save(1000, run_id="run-a", serial=1)
    save(10, run_id=None, serial=2)

    assert failure(tmp_path, run_id="run-\x1b") == (
        f"{tmp_path}: no checkpoint of run run-\\x1b. It holds those of a run without an id (newest step_10) and run "
        "run-a (newest step_1000). Name one of those, or another folder."
    )


def test_two_runs_that_saved_at_once_are_told_apart_and_said(save: Save, tmp_path: Path) -> None:
    save(10, run_id="run-a", serial=7)
    save(20, run_id="run-b", serial=7)

    info = pick(tmp_path)

    assert info.run_id == "run-b"
    assert "which saved last, at once with run run-a (newest step_10), and is further on" in info.notices[0]


def test_of_a_step_that_is_there_twice_the_one_saved_last_is_taken(save: Save, tmp_path: Path) -> None:
    save(900, name="step_900", serial=1)
    save(900, name="step_0900", serial=2)

    info = pick(tmp_path)

    assert info.path.name == "step_0900"
    assert info.notices[0].startswith("step 900 is there 2 times; step_0900 is taken and not step_900: ")


def test_of_a_copy_and_its_original_the_plain_number_is_taken(save: Save, tmp_path: Path) -> None:
    path = save(900)
    shutil.copytree(path, tmp_path / "step_00900")

    assert pick(tmp_path).path == path


def test_a_run_that_went_back_is_said(save: Save, tmp_path: Path) -> None:
    save(500, serial=1)
    save(1000, serial=2)
    save(600, serial=3)

    info = pick(tmp_path)

    assert info.step == 1000
    assert info.notices == (
        "step_600 was saved after step_1000: the run had gone back. The higher number is taken; name step_600 by its "
        "path to go on from there",
    )


def test_a_run_that_was_taken_back_goes_on_from_its_last_save(save: Save, tmp_path: Path) -> None:
    # 500 was loaded by its name while 1000 stood, and 600 saved then.
    save(500, serial=1)
    save(1000, serial=2)
    save(600, serial=3, resumed_from={"step": 500, "serial": 2})

    info = pick(tmp_path)

    assert (info.step, info.refused, info.resumed_from) == (600, (), ResumedFrom(step=500, serial=2))
    assert info.notices == (
        "step_1000 was left aside: the run was taken back to an earlier step since, and went on from there. Name one "
        "by its path to go on from it",
    )
    assert [entry.path.name for entry in list_checkpoints(tmp_path) if entry.abandoned] == ["step_1000"]


def test_one_that_was_left_aside_does_not_step_in_for_a_damaged_one(save: Save, tmp_path: Path) -> None:
    save(500, serial=1)
    save(1000, serial=2)
    flip(save(600, serial=3, resumed_from={"step": 500, "serial": 2}) / "model.pt")

    assert pick(tmp_path).step == 500


def test_a_manifest_that_cannot_be_read_is_refused_and_named(save: Save, tmp_path: Path) -> None:
    save(100)
    file = save(200) / "trimtab_manifest.json"
    file.write_bytes(file.read_bytes()[:-30])

    info = pick(tmp_path)

    assert info.step == 100
    assert refusals(info) == {"step_200": f"{file}: found no JSON, expected a whole manifest"}


def test_an_older_one_that_says_nothing_of_its_run_is_told(save: Save, tmp_path: Path) -> None:
    # It may be all that there is of a later run, whose numbers are small.
    save(1000, run_id="run-a", serial=40)
    (save(10, run_id="run-b", serial=41) / "trimtab_manifest.json").unlink()

    (notice,) = pick(tmp_path).notices

    assert notice.startswith("step_10 says nothing of its run (no trimtab_manifest.json, ")
    assert pick(tmp_path, run_id="run-a").notices == ()


def test_checkpoints_without_a_manifest_are_left_out_where_a_run_is_known(save: Save, tmp_path: Path) -> None:
    save(10, name="checkpoint-10", saver="transformers")
    (tmp_path / "checkpoint-300").mkdir()
    (tmp_path / "step_500.pt").write_bytes(b"")

    info = pick(tmp_path)

    assert info.step == 10
    assert info.notices == (
        "2 checkpoints without a manifest (newest step_500.pt) may be of any run and were left out; name one by its "
        "path to go on from it",
    )


def test_a_checkpoint_that_vanishes_while_one_looks_is_passed_over(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another process saves step 300 and removes 200 between the listing and the reading.
    save(200)
    original = select.scan

    def scan_and_rotate(folder: Path) -> Any:
        listing = original(folder)
        if (tmp_path / "step_200").exists():
            save(300)
            shutil.rmtree(tmp_path / "step_200")
        return listing

    monkeypatch.setattr(select, "scan", scan_and_rotate)

    assert pick(tmp_path).step == 300


def test_a_folder_whose_checkpoints_all_vanish_ends_in_an_error(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(200)
    original = select.scan
    listing = original(tmp_path)
    shutil.rmtree(path)
    monkeypatch.setattr(select, "scan", lambda folder: listing)

    assert "step_200: removed while it was looked at" in failure(tmp_path)


def test_a_step_that_is_replaced_while_one_looks_is_read_again(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The run goes over step 200 again: new payload in a subfolder, the manifest replaced, the old payload removed.
    path = save(200, serial=1)
    payload = "again-0badcafe/all.pt"
    parts = {name: [payload] for name in ("model", "optimizer", "step", "rng")}
    new = save(200, serial=2, folder=tmp_path / "other", files={payload: b"n"}, parts=parts)
    original = examine.read_with_checksum

    def read_and_replace(folder: Path) -> Any:
        read = original(folder)
        if (path / "model.pt").exists():
            shutil.copytree(new, path, dirs_exist_ok=True)
            for name in ("model.pt", "optimizer.pt", "run.pt", "rank_0.pt"):
                (path / name).unlink()
        return read

    monkeypatch.setattr(examine, "read_with_checksum", read_and_replace)

    assert (pick(tmp_path).serial, pick(tmp_path).size_bytes) == (2, 1)


def test_instead_of_one_the_newest_healthy_one_beside_it_is_told(save: Save, tmp_path: Path) -> None:
    save(100, run_id="run-b", serial=900)
    save(200, serial=1)
    other = save(300, serial=2, healthy=False)
    path = save(400, serial=3)

    healthy, newest = instead_of(path, "run-a"), instead_of(other, "run-a")
    shutil.rmtree(path)
    shutil.rmtree(tmp_path / "step_200")

    assert (healthy and healthy.step, newest and newest.step) == (200, 400)
    left = instead_of(path, "run-a")
    assert (left and left.step, left and left.healthy) == (300, False)
    assert instead_of(other, "run-a") is None
    unknown = instead_of(other, None)
    assert unknown is not None
    assert unknown.run_id == "run-b"


def test_a_disk_that_fails_is_a_reason(save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(100)
    save(200)
    original = content.read_checksum

    def fails(path: Path, **kwargs: Any) -> tuple[int, int]:
        if path.parent.name == "step_200":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return original(path, **kwargs)

    monkeypatch.setattr(content, "read_checksum", fails)

    assert refusals(pick(tmp_path)) == {"step_200": "model.pt cannot be read (Input/output error)"}


def test_a_thousand_checkpoints_cost_little_beyond_the_one_that_is_picked(save: Save, tmp_path: Path) -> None:
    parts = {name: ["model.pt"] for name in ("model", "optimizer", "step", "rng")}
    for step in range(1000):
        save(step, files={"model.pt": b"m"}, parts=parts)

    # CPU seconds, the best of three: what else the machine does meanwhile is no cost of ours.
    costs = []
    for _ in range(3):
        began = time.process_time()
        info = pick(tmp_path)
        costs.append(time.process_time() - began)

    assert info.step == 999
    assert min(costs) < 0.3


def test_the_list_holds_all_newest_first_with_what_shows_without_reading(save: Save, tmp_path: Path) -> None:
    save(900, serial=1)
    flip(save(1000, serial=2) / "model.pt")
    (save(1100, serial=3) / "model.pt").write_bytes(b"")
    (save(1200, serial=4) / "trimtab_manifest.json").unlink()
    (tmp_path / "checkpoint-50").mkdir()
    (tmp_path / "step_60.pt").touch()
    (tmp_path / "other").mkdir()

    infos = list_checkpoints(tmp_path)

    assert [info.step for info in infos] == [1200, 1100, 1000, 900, 60, 50]
    assert [info.problem is None for info in infos] == [False, False, True, True, False, False]
    assert [info.problem for info in infos[-2:]] == [
        "step_60.pt is empty (0 bytes)",
        "trainer_state.json is missing; a Trainer writes it last",
    ]
    assert [info.saver for info in infos] == ["trimtab"] * 4 + ["file", "transformers"]
    assert [info.promise for info in infos] == ["structure"] + ["checksums"] * 3 + ["structure"] * 2


def test_the_document_is_strict_json(save: Save, tmp_path: Path) -> None:
    save(900, loss="nan", lr=["inf"], healthy=False, unhealthy_because=["a"])
    (tmp_path / "other").touch()

    document = json.loads(json.dumps(pick(tmp_path).to_dict(), allow_nan=False))

    assert document == {
        "version": 1, "path": str(tmp_path / "step_900"), "step": 900, "healthy": False, "unhealthy_because": ["a"],
            "unhealthy_since": None, "doubt": None,
        "run_id": "run-a", "serial": 901, "resumed_from": None, "abandoned": False, "saver": "trimtab",
        "parts": ["model", "optimizer", "step", "rng"],
        "missing": [], "promise": "checksums", "loss": "nan", "lr": ["inf"], "size_bytes": 900, "problem": None,
        "refused": [], "ignored": [{"path": str(tmp_path / "other"), "reason": "no checkpoint"}], "num_ignored": 1,
        "notices": [],
    }  # fmt: skip


DAMAGE = ("none", "flip", "empty", "missing", "no manifest", "incomplete")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(
    checkpoints=st.dictionaries(
        st.integers(0, 12_000), st.tuples(st.sampled_from(DAMAGE), st.booleans(), st.integers(0, 3)), max_size=7
    ),
    healthy=st.booleans(),
)
def test_the_highest_number_that_may_be_taken_is_taken(
    save: Save, tmp_path: Path, checkpoints: dict[int, tuple[str, bool, int]], healthy: bool
) -> None:
    folder = Path(tmp_path / str(time.monotonic_ns()))
    folder.mkdir()
    for step, (damage, is_healthy, zeros) in checkpoints.items():
        fields = {"parts": {"model": ["model.pt"]}} if damage == "incomplete" else {}
        path = save(step, folder=folder, name=f"step_{'0' * zeros}{step}", healthy=is_healthy, **fields)
        if damage == "flip":
            flip(path / "optimizer.pt")
        elif damage == "empty":
            (path / "run.pt").write_bytes(b"")
        elif damage in ("missing", "no manifest"):
            (path / ("rank_0.pt" if damage == "missing" else "trimtab_manifest.json")).unlink()
    good = [
        step
        for step, (damage, is_healthy, _) in checkpoints.items()
        if damage == "none" and (is_healthy or not healthy)
    ]

    if good:
        info = pick(folder, healthy=healthy)
        assert info.step == max(good)
        assert [entry.path.name.lstrip("step_").lstrip("0") or "0" for entry in info.refused] == [
            str(step) for step in sorted(checkpoints, reverse=True) if step > max(good)
        ]
    else:
        failure(folder, healthy=healthy)
