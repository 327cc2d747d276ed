"""Whether the chunk's checkpoint was loaded again, by the events of its log, and what the loaded model said."""

import pytest
from checkpoints_of_a_chunk import LAST, PROBE, judge, record, save, statuses, trip


def test_no_round_trip_is_unknown_and_says_how_to_make_one(tmp_path):
    save(tmp_path)
    found = judge(record(tmp_path), tmp_path)
    assert (statuses(found)["round_trip"], statuses(found)["generation_probe"]) == ("unknown", "unknown")
    assert "trimtab.checkpoint.round_trip(" in found["round_trip"].text


def test_a_round_trip_that_found_a_difference_fails(tmp_path):
    _, crc32 = save(tmp_path)
    differences = [f"optimizer: exp_avg of w{number} differs" for number in range(10)]
    event = trip(crc32, same=False, differences=differences, num_differences=40)
    found = judge(record(tmp_path, events=[event]), tmp_path)
    assert statuses(found)["round_trip"] == "failed"
    assert "exp_avg of w0 differs; " in found["round_trip"].text
    assert "and 37 more" in found["round_trip"].text


def test_of_two_round_trips_of_one_save_the_later_one_counts(tmp_path):
    _, crc32 = save(tmp_path)
    failed = trip(crc32, same=False, differences=["w differs"], num_differences=1)
    assert statuses(judge(record(tmp_path, events=[trip(crc32), failed]), tmp_path))["round_trip"] == "failed"
    assert statuses(judge(record(tmp_path / "b", events=[failed, trip(crc32)]), tmp_path))["round_trip"] == "passed"


def test_the_round_trip_of_an_earlier_save_of_the_same_step_does_not_count(tmp_path):
    # given: saved, loaded again, and saved once more under the same name
    _, earlier = save(tmp_path / "before")
    _, crc32 = save(tmp_path, salt=b"other weights")
    assert earlier != crc32
    found = judge(record(tmp_path, events=[trip(earlier)]), tmp_path)
    assert (statuses(found)["round_trip"], statuses(found)["generation_probe"]) == ("failed", "unknown")
    assert "is not what is on disk now" in found["round_trip"].text


def test_one_of_an_attempt_that_was_gone_over_again_is_unknown(tmp_path):
    _, earlier = save(tmp_path / "before")
    save(tmp_path, salt=b"other weights")
    first = record(tmp_path, events=[trip(earlier)])
    record(tmp_path, range(41, LAST + 1), folder=first)
    gate = judge(first, tmp_path)["round_trip"]
    assert gate.status == "unknown"
    assert "an earlier attempt's save of step_60" in gate.text


def test_a_checkpoint_that_could_not_be_loaded_again_fails_with_the_reason(tmp_path):
    save(tmp_path)
    event = trip(None, step=None, same=False, differences=["model.pt cannot be read (Input/output error)"], probe=None)
    found = judge(record(tmp_path, events=[event]), tmp_path)
    assert statuses(found)["round_trip"] == "failed"
    assert "could not be loaded again: model.pt cannot be read" in found["round_trip"].text


def test_one_that_compared_no_model_says_nothing(tmp_path):
    _, crc32 = save(tmp_path)
    gate = judge(record(tmp_path, events=[trip(crc32, parts=["step"])]), tmp_path)["round_trip"]
    assert gate.status == "unknown"


@pytest.mark.parametrize(
    "changes",
    [
        {"same": 1},
        {"same": "true"},
        {"manifest_crc32": 1.5},
        {"manifest_crc32": True},
        {"step": LAST + 1},
        {"step": None},
        {"parts": "model"},
        {"probe": [PROBE]},
        {"name": 7},
        {"differences": {"a": 1}},
        {"manifest_crc32": 10**400},
    ],
    ids=lambda changes: "".join(f"{name} {str(value)[:12]}" for name, value in changes.items()),
)
def test_an_event_that_no_round_trip_writes_passes_nothing(tmp_path, changes):
    _, crc32 = save(tmp_path)
    found = judge(record(tmp_path, events=[trip(crc32, **changes)]), tmp_path)
    assert statuses(found)["round_trip"] in ("unknown", "failed")
    assert statuses(found)["generation_probe"] == "unknown"


def test_hostile_names_in_an_event_act_on_nothing(tmp_path):
    _, crc32 = save(tmp_path)
    evil = "\x1b[2J\u202e" * 400
    event = trip(crc32, same=False, differences=[evil], parts=[evil], probe={**PROBE, "shape": evil})
    found = judge(record(tmp_path, events=[event]), tmp_path)
    assert statuses(found)["round_trip"] == "failed"
    assert all(gate.text.isascii() and gate.text.isprintable() for name, gate in found.items() if name != "path")


# The probe.


@pytest.mark.parametrize(
    ("probe", "status", "said"),
    [
        ({"shape": "flat", "entropy": 5.4, "cv": 0.4}, "passed", "flat"),
        ({"shape": "uniform", "entropy": 5.545, "cv": 0.0}, "failed", "every token is as likely as any other"),
        ({"shape": "one-hot", "entropy": 0.0, "cv": 15.9}, "failed", "one token takes all"),
        ({"shape": "nonfinite", "entropy": "nan", "cv": "nan", "num_nonfinite": 12}, "failed", "12 logits not finite"),
        ({"num_nonfinite": 3}, "failed", "logits are not finite"),
        ({"entropy": "nan"}, "unknown", "is none that"),
        ({"shape": "round"}, "unknown", "is none that"),
    ],
    ids=["flat", "uniform", "one-hot", "nonfinite", "contradicts itself", "entropy nan", "no shape"],
)
def test_a_probe_passes_that_is_finite_and_neither_uniform_nor_one_hot(tmp_path, probe, status, said):
    _, crc32 = save(tmp_path)
    gate = judge(record(tmp_path, events=[trip(crc32, probe={**PROBE, **probe})]), tmp_path)["generation_probe"]
    assert gate.status == status
    assert said in gate.text


@pytest.mark.parametrize(
    ("problem", "said"), [(None, "was not asked"), ("it raised ValueError", "could not answer: it raised ValueError")]
)
def test_a_probe_that_was_not_made_is_unknown(tmp_path, problem, said):
    _, crc32 = save(tmp_path)
    event = trip(crc32, probe=None, probe_problem=problem)
    found = judge(record(tmp_path, events=[event]), tmp_path)
    assert (statuses(found)["round_trip"], statuses(found)["generation_probe"]) == ("passed", "unknown")
    assert said in found["generation_probe"].text
