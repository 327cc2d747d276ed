"""Several look at what is recorded: the first steps after a resume, and the watch; one that fails is asked no more."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from trimtab import open_log
from trimtab.log.folder import create_run
from trimtab.recorder import Recorder
from trimtab.values import Event, RunHeader, StepRow


class Looks:
    """Notes the steps that it sees, and writes an event of its own at the end."""

    def __init__(self, subject: str, *, fails_at: int | None = None) -> None:
        self.subject = subject
        self.seen: list[int] = []
        self._fails_at = fails_at

    def observe(self, items: Sequence[object]) -> list[Event]:
        for item in items:
            if isinstance(item, StepRow):
                self.seen.append(item.step)
                if item.step == self._fails_at:
                    raise ValueError("odd step")
        return []

    def finish(self) -> list[Event]:
        return [Event(self.subject, len(self.seen), 0.0)]


@pytest.mark.parametrize("place", [0, 1])
def test_one_that_fails_is_said_and_asked_no_more_and_the_other_goes_on(place, tmp_path: Path, caplog) -> None:
    # given two that look, one of which fails at the second step
    sound, failing = Looks("health"), Looks("first-steps", fails_at=2)
    observers = [sound, failing] if place else [failing, sound]
    folder = create_run(tmp_path, RunHeader(run_id="a", backend="torch"))
    recorder = Recorder(folder, observers=observers)
    # when
    for step in (1, 2, 3):
        recorder.put(StepRow(step, 2.0, None, None))
        recorder.flush(10.0)
    recorder.close()
    # then
    assert (sound.seen, failing.seen) == ([1, 2, 3], [1, 2])
    log = open_log(folder.path)
    assert [(event.kind, event.step) for event in log.event_list()] == [("health", 3)]
    assert log.steps().numpy()["step"].tolist() == [1, 2, 3]
    assert caplog.messages == ["Trimtab recorder: first-steps could not be looked at: ValueError: odd step"]
