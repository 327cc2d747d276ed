"""A checkpoint that was saved as healthy, while what was found later had begun, is none to go on from."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.errors import CheckpointError
from trimtab.resume.doubt import finding_in, short
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.manifest import read_manifest
from trimtab.resume.rotation import relied_on, to_delete
from trimtab.resume.select import instead_of, pick

Save = Callable[..., Path]

WORSE = "eval_regression at step 160: the evaluation loss became worse 3 times in a row"


@pytest.fixture
def streak(save: Save) -> None:
    """Evaluations at 40 to 160, each worse than the one before: known at 160, and all was well at 40."""
    for step in (20, 40, 80, 120):
        save(step)
    save(160, healthy=False, unhealthy_because=[WORSE], unhealthy_since=40)


@pytest.mark.usefixtures("streak")
def test_the_one_to_go_on_from_is_the_last_at_which_all_was_known_to_be_well(tmp_path: Path) -> None:
    info = pick(tmp_path, healthy=True)
    assert info.step == 40
    reasons = {entry.path.name: entry.reason for entry in info.refused}
    assert reasons == {
        "step_160": "not healthy: eval_regression at step 160",
        "step_120": "after step 40, the last known to be well before eval_regression at step 160",
        "step_80": "after step 40, the last known to be well before eval_regression at step 160",
    }
    # and where another is named in the place of the newest one
    instead = instead_of(tmp_path / "step_160", "run-a")
    assert instead is not None
    assert instead.step == 40


@pytest.mark.usefixtures("streak")
def test_a_rotation_keeps_it(tmp_path: Path) -> None:
    infos = list_checkpoints(tmp_path)
    newest = tmp_path / "step_160"
    assert [info.step for info in relied_on(infos, run_id="run-a", just_written=newest)] == [160, 40]
    doomed = to_delete(infos, keep=1, run_id="run-a", just_written=newest)
    assert [path.name for path in doomed] == ["step_20", "step_80", "step_120"]


def test_a_rotation_without_one_that_is_free_of_doubt_keeps_the_newest_healthy_one(save: Save, tmp_path: Path) -> None:
    save(80)
    save(120)
    newest = save(160, healthy=False, unhealthy_because=[WORSE], unhealthy_since=40)
    doomed = to_delete(list_checkpoints(tmp_path), keep=1, run_id="run-a", just_written=newest)
    assert [path.name for path in doomed] == ["step_80"]


@pytest.mark.usefixtures("streak")
def test_what_was_saved_once_it_was_over_is_healthy_and_what_was_saved_before_stays_in_doubt(
    save: Save, tmp_path: Path
) -> None:
    save(200)
    assert {info.step: info.doubt is None for info in list_checkpoints(tmp_path)} == {
        200: True, 160: True, 120: False, 80: False, 40: True, 20: True
    }  # fmt: skip
    assert pick(tmp_path, healthy=True).step == 200


@pytest.mark.parametrize(
    "other", [{"run_id": "run-b"}, {"resumed_from": {"step": 40, "serial": 500}}, {"serial": 1000}]
)
@pytest.mark.usefixtures("streak")
def test_another_way_is_not_in_doubt(save: Save, tmp_path: Path, other: dict[str, object]) -> None:
    # another run; the same run that went on from 40; one that was saved later than what tells of the finding
    save(100, **{"serial": 1000, **other})
    (info,) = [info for info in list_checkpoints(tmp_path) if info.step == 100]
    assert info.doubt is None


@pytest.mark.usefixtures("streak")
def test_a_run_that_went_back_before_it_goes_on_from_its_own_newest(save: Save, tmp_path: Path) -> None:
    # given a load of 40 by its path, and a save on the way that goes on from there
    save(90, serial=1000, resumed_from={"step": 40, "serial": 500})
    # then what was found on the way that it left says nothing of it
    assert pick(tmp_path, healthy=True).step == 90


@pytest.mark.usefixtures("streak")
def test_what_was_found_on_the_way_that_was_left_counts_for_what_lies_on_both(save: Save, tmp_path: Path) -> None:
    # given a load of 120 by its path, two worse evaluations into the streak
    save(130, serial=1000, resumed_from={"step": 120, "serial": 500})
    # then 80 and 120 are as they were
    assert {info.step for info in list_checkpoints(tmp_path) if info.doubt is not None} == {80, 120}


@pytest.mark.parametrize("since", [None, 0])
def test_where_nobody_knows_since_when_only_itself_is_refused_and_0_refuses_all(
    save: Save, tmp_path: Path, since: int | None
) -> None:
    save(40)
    save(160, healthy=False, unhealthy_because=[WORSE], unhealthy_since=since)
    if since is None:
        assert pick(tmp_path, healthy=True).step == 40
    else:
        with pytest.raises(CheckpointError, match="none of its checkpoints is a healthy one"):
            pick(tmp_path, healthy=True)


def test_a_manifest_holds_since_when_and_an_older_one_does_not_know(save: Save) -> None:
    assert read_manifest(save(1, healthy=False, unhealthy_since=7)).unhealthy_since == 7
    assert read_manifest(save(2, healthy=False)).unhealthy_since is None
    for step, wrong in enumerate((-1, True, "7", 1.5), start=3):
        with pytest.raises(CheckpointError, match="unhealthy_since"):
            read_manifest(save(step, unhealthy_since=wrong))


def test_a_long_reason_is_its_head_and_its_finding_has_one_name() -> None:
    text = "in layer blocks.1.gate the load has collapsed: " + "nearly all tokens go to few experts " * 4
    early = f"collapse in blocks.1.gate at step 200: {text}"
    late = f"collapse in blocks.1.gate since step 200, last seen at step 250: {text}"
    assert short([early, "w: 1 entry is NaN"]) == "collapse in blocks.1.gate at step 200; w: 1 entry is NaN"
    assert finding_in(early) == finding_in(late.replace(text, "other figures"))
    # what nobody has found at a step is told whole while it is short
    weight = (
        "model's 0.bias: 1 entry is NaN or infinite and was finite at the run's beginning, the first at flat index 0"
    )
    assert short([weight]) == finding_in(weight) == weight
    assert len(short(["x" * 5_000])) == 120


def test_of_many_reasons_two_are_told_and_how_many_more_there_are() -> None:
    reasons = [f"z_band in blocks.{layer}.gate at step 200: z is 4e5" for layer in range(12)]
    told = "z_band in blocks.0.gate at step 200; z_band in blocks.1.gate at step 200"
    assert short(reasons[:2]) == told
    assert short(reasons) == f"{told}; and 10 more"
    # however many there are, and however long they are
    layers = ", ".join(f"blocks.{layer}.gate" for layer in range(15))
    assert len(short([f"collapse in {layers} at step 200: MaxVio 3"] * 900)) < 260


def test_an_error_says_what_to_do_before_it_says_why(save: Save, tmp_path: Path) -> None:
    reasons = [f"z_band in blocks.{layer}.gate at step 200: {WORSE * 9}" for layer in range(40)]
    for step in range(20, 221, 20):
        save(step, healthy=False, unhealthy_because=reasons)
    with pytest.raises(CheckpointError, match="none of its checkpoints is a healthy one") as caught:
        pick(tmp_path, healthy=True)
    message = str(caught.value)
    assert message.index("start without a checkpoint") < message.index("step_220: not healthy")
    assert len(message) < 2_000
