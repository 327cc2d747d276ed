"""`Saver`: one save after the other of one run, agreed among its ranks.

    begin   at the call: every rank takes its values, rank 0 makes a draft      errors of the call are raised here
    finish  perhaps in a thread: every rank writes, rank 0 commits and rotates  or the draft is removed

Enters: what each rank gives. Leaves: a checkpoint under its name, and older ones of the run deleted; or an error, the
same on every rank, and the folder as it was. Invariant: no rank goes on to a next stage before all are through the
last, and what one could not do all know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError, UsageError
from trimtab.log.folder import check_run_id, new_run_id
from trimtab.notices import say, warn
from trimtab.resume.describe import next_serial
from trimtab.resume.disk_changes import Disk
from trimtab.resume.doubt import finding_in, short
from trimtab.resume.drafts import remove_checkpoint
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.listing import info_of, list_checkpoints
from trimtab.resume.manifest import FileEntry, ResumedFrom
from trimtab.resume.names import step_name
from trimtab.resume.rotation import relied_on, to_delete
from trimtab.resume.writing import Draft, refuse_taken
from trimtab.text import plain
from trimtab.torch.checkpoint_looks import Looks
from trimtab.torch.checkpoint_ranks import RanksTogether, spelled_error
from trimtab.torch.checkpoint_save import Given, Summary, Taken, manifest_of, take, write
from trimtab.torch.checkpoint_source import saved_baseline
from trimtab.torch.health import Nonfinite, merged, nonfinite_to_state, worse_than
from trimtab.torch.watch_in_saves import WatchWord, together

_LOG: Final = "checkpoint"

_MAX_NAMED: Final = 5

_SAID_SO: Final = "the caller said so (healthy=False)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """What rank 0 tells the others of a save that has begun."""

    draft: str
    run_id: str
    serial: int
    baseline: dict[str, Nonfinite]


class Saver:
    """Saves one run into one folder.

    Attributes:
        run_id: The run; None until it is named, loaded or saved for the first time.
        baseline: What was not finite when the run began; None until that is known.
        resumed_from: The last load; None where nothing was loaded. Rank 0 writes it down.
    """

    def __init__(
        self, folder: Path, *, keep: int, run_id: str | None, ranks: RanksTogether, disk: Disk, looks: Looks
    ) -> None:
        """Touches nothing yet; for the arguments see `Checkpointer`."""
        self.run_id = run_id
        self.baseline: dict[str, Nonfinite] | None = None
        self.resumed_from: ResumedFrom | None = None
        self._folder = folder
        self._keep = keep
        self._ranks = ranks
        self._disk = disk
        self._looks = looks
        self._has_saved = False
        self._told: set[str] = set()
        """The findings among the reasons for which a checkpoint was called not healthy."""

    def begin(self, given: Given, *, copies: bool) -> Callable[[], CheckpointInfo]:
        """Takes the values of every rank, and begins a draft.

        Args:
            given: What this rank saves.
            copies: Whether training goes on before the returned call is made.

        Returns:
            What is left to do; it raises what kept the checkpoint from being saved, the same on every rank.

        Raises:
            UsageError: An argument makes no sense, on whichever rank, the run's id among them; or it is the first save,
                and the name is taken by another run.
            CheckpointError: The draft could not be made.
        """
        ranks = self._ranks
        taken: list[Taken] = []

        def take_here() -> Summary:
            taken.append(take(given, rank=ranks.rank, copies=copies))
            return taken[0].summary

        told = ranks.of_all(take_here)
        _refuse_unlike(told)
        found = merged(one.nonfinite for one in told)
        drafts: list[Draft] = []
        begun = ranks.from_first(lambda: self._begin_draft(given, found, drafts))
        self.run_id, self.baseline = begun.run_id, begun.baseline
        self._has_saved = True
        watch = together(one.watch for one in told)
        worse = worse_than(begun.baseline, found)
        unhealthy = _unhealthy(healthy=given.healthy, found=watch._replace(because=(*worse, *watch.because)))
        has_data = [one.has_data for one in told]
        run = given.run

        def finish() -> CheckpointInfo:
            draft = drafts[0] if drafts else None
            joined: list[Draft] = []
            try:
                # Before anything is written: writing shards is a conversation of the ranks, which none may miss.
                ranks.of_all(lambda: joined.append(draft or Draft.join(begun.draft, disk=self._disk)))
                entries = ranks.of_all(lambda: self._write(taken[0], begun, joined[0], run=run))
                return ranks.from_first(
                    lambda: self._commit(
                        taken[0], begun, draft, entries=entries, unhealthy=unhealthy, has_data=has_data
                    )
                )
            finally:
                for one in joined:
                    one.abandon()  # does nothing to one that is committed; other ranks let go of it

        return finish

    @property
    def has_begun(self) -> bool:
        """Whether the run has saved or gone on here: weights that are loaded now, of a teacher say, begin no other."""
        return self._has_saved or self.resumed_from is not None

    # On rank 0.

    def _begin_draft(self, given: Given, found: dict[str, Nonfinite], drafts: list[Draft]) -> _Begun:
        run_id = self.run_id or getattr(given.run, "run_id", None) or new_run_id(time.time())
        check_run_id(run_id)
        name = step_name(given.step)
        if not self._has_saved:
            try:
                # The run was started into a folder that it should not share.
                refuse_taken(self._folder / name, run_id=run_id, step=given.step)
            except CheckpointError as error:
                raise UsageError(str(error)) from error
        draft = Draft.begin(self._folder, name, disk=self._disk)
        try:
            serial = next_serial(self._folder)
            baseline = self.baseline
            if baseline is None:
                baseline = saved_baseline(list_checkpoints(self._folder), run_id=run_id)
            if baseline is None:
                baseline = found
                _tell_baseline(baseline)
        except BaseException:
            draft.abandon()
            raise
        drafts.append(draft)
        return _Begun(draft=str(draft.path), run_id=run_id, serial=serial, baseline=baseline)

    def _commit(
        self,
        taken: Taken,
        begun: _Begun,
        draft: Draft | None,
        *,
        entries: list[tuple[FileEntry, ...]],
        unhealthy: WatchWord,
        has_data: list[bool],
    ) -> CheckpointInfo:
        assert draft is not None, "rank 0 has begun it"
        manifest = manifest_of(
            taken,
            entries=[entry for of_rank in entries for entry in of_rank],
            run_id=begun.run_id,
            serial=begun.serial,
            world_size=self._ranks.world_size,
            unhealthy=unhealthy,
            has_data=has_data,
            nonfinite_at_start=begun.baseline,
            resumed_from=self.resumed_from,
        )
        path = draft.commit(manifest)
        if unhealthy.because:
            self._tell_unhealthy(path, unhealthy.because)
        try:
            self._rotate(path, run_id=begun.run_id)
        except Exception as error:  # noqa: BLE001 - the checkpoint is saved, whatever became of older ones
            text = str(error) if isinstance(error, CheckpointError) else spelled_error(error)
            warn(_LOG, f"{plain(str(path))} is saved, and older checkpoints were not deleted: {text}")
        return info_of(path, manifest)

    def _tell_unhealthy(self, path: Path, because: tuple[str, ...]) -> None:
        """Says why a checkpoint is not healthy: each reason in full once, and shortly from then on."""
        reasons = [short([reason]) if finding_in(reason) in self._told else reason for reason in because]
        self._told.update(map(finding_in, because))
        warn(_LOG, f"{plain(str(path))} is saved and not healthy: {'; '.join(reasons)}")

    def _rotate(self, written: Path, *, run_id: str) -> None:
        """Deletes what is too many, once those for whose sake it goes were read whole."""
        infos = list_checkpoints(self._folder)
        while doomed := to_delete(infos, keep=self._keep, run_id=run_id, just_written=written):
            relied = relied_on(infos, run_id=run_id, just_written=written)
            damaged = {info.path: problem for info in relied if (problem := self._problem(info.path)) is not None}
            if not damaged:
                break
            for path, problem in damaged.items():
                warn(_LOG, f"{plain(str(path))} does not read back: {problem}. Older ones are kept in its place")
            infos = tuple(replace(info, problem=damaged.get(info.path, info.problem)) for info in infos)
        for path in doomed:
            try:
                remove_checkpoint(path, disk=self._disk)
            except OSError as error:
                warn(_LOG, f"{plain(str(path))} could not be deleted: {spelled_error(error)}")

    def _problem(self, path: Path) -> str | None:
        """What is wrong with a checkpoint, every byte of which is read if it was not before; None if nothing is."""
        try:
            found = self._looks.at(path)
        except CheckpointError as error:
            return str(error)
        return next(iter(found.problems), found.lacks)

    # On every rank.

    def _write(self, taken: Taken, begun: _Begun, draft: Draft, *, run: object) -> tuple[FileEntry, ...]:
        _flush_log(run)
        taken.run["nonfinite_at_start"] = nonfinite_to_state(begun.baseline)
        return write(taken, draft, ranks=self._ranks)


def _flush_log(run: object) -> None:
    """Hands the log of a run on before the checkpoint has its name: no step that is behind it is then missing."""
    flush = getattr(run, "flush", None)
    if not callable(flush):
        return
    try:
        flush()
    except Exception as error:  # noqa: BLE001 - somebody else's, and no reason to lose the checkpoint
        warn(_LOG, f"the log of the run may end before this checkpoint: {spelled_error(error)}")


def _refuse_unlike(told: list[Summary]) -> None:
    """Refuses to save where the ranks were not called with the same."""
    for rank, one in enumerate(told):
        for name, value in one.alike.items():
            expected = told[0].alike[name]
            if value != expected:
                raise UsageError(
                    f"The ranks save different things: for {name} rank {rank} has {value!r}, and rank 0 {expected!r}. "
                    "Call save on every rank after the same step, with the same parts."
                )


def _unhealthy(*, healthy: bool | None, found: WatchWord) -> WatchWord:
    """Why the checkpoint is not healthy; what the caller says overrides what is found."""
    if healthy is True:
        return WatchWord()
    return found._replace(because=(_SAID_SO, *found.because)) if healthy is False else found


def _tell_baseline(baseline: Mapping[str, Nonfinite]) -> None:
    """Says once what is not finite from the start, as it will not be called unhealthy."""
    if not baseline:
        return
    first = [f"{plain(name)} ({entries.count:,})" for name, entries in list(baseline.items())[:_MAX_NAMED]]
    more = f" and {len(baseline) - _MAX_NAMED} more" if len(baseline) > _MAX_NAMED else ""
    say(
        _LOG,
        "entries that are NaN or infinite at the run's first save, and so count as healthy in this run: "
        f"{', '.join(first)}{more}",
    )
