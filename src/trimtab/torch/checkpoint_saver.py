"""`Saver`: one save after the other of one run, agreed among its ranks.

    begin   at the call: every rank takes its values, rank 0 makes a draft      errors of the call are raised here
    finish  perhaps in a thread: every rank writes, rank 0 commits and rotates  or the draft is removed

Enters: what each rank gives. Leaves: a checkpoint under its name, and older ones of the run deleted; or an error, the
same on every rank, and the folder as it was. Invariant: no rank goes on to a next stage before all are through the
last, and what one could not do all know.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError, UsageError
from trimtab.log.folder import new_run_id
from trimtab.notices import say, warn
from trimtab.resume.drafts import remove_checkpoint
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.listing import info_of, list_checkpoints
from trimtab.resume.manifest import FileEntry, read_manifest
from trimtab.resume.rotation import to_delete
from trimtab.resume.verify import has_manifest, verify
from trimtab.resume.writing import Disk, Draft
from trimtab.text import plain
from trimtab.torch.checkpoint_ranks import RanksTogether, spelled_error
from trimtab.torch.checkpoint_save import Given, Taken, Told, manifest_of, take, write
from trimtab.torch.checkpoint_source import saved_baseline
from trimtab.torch.health import Nonfinite, merged, nonfinite_to_state, worse_than

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
    """

    def __init__(self, folder: Path, *, keep: int, run_id: str | None, ranks: RanksTogether, disk: Disk) -> None:
        """Touches nothing yet; for the arguments see `Checkpointer`."""
        self.run_id = run_id
        self.baseline: dict[str, Nonfinite] | None = None
        self._folder = folder
        self._keep = keep
        self._ranks = ranks
        self._disk = disk
        self._has_saved = False

    def begin(self, given: Given, *, copies: bool) -> Callable[[], CheckpointInfo]:
        """Takes the values of every rank, and begins a draft.

        Args:
            given: What this rank saves.
            copies: Whether training goes on before the returned call is made.

        Returns:
            What is left to do; it raises what kept the checkpoint from being saved, the same on every rank.

        Raises:
            UsageError: An argument makes no sense, on whichever rank; or it is the first save, and the name is taken by
                another run.
            CheckpointError: The draft could not be made.
        """
        ranks = self._ranks
        taken: list[Taken] = []

        def take_here() -> Told:
            taken.append(take(given, rank=ranks.rank, copies=copies))
            return taken[0].told

        told = ranks.of_all(take_here)
        _refuse_unlike(told)
        found = merged(one.nonfinite for one in told)
        drafts: list[Draft] = []
        begun = ranks.from_first(lambda: self._begin_draft(given, found, drafts))
        self.run_id, self.baseline = begun.run_id, begun.baseline
        self._has_saved = True
        because = _unhealthy_because(healthy=given.healthy, found=found, baseline=begun.baseline)
        has_data = [one.has_data for one in told]

        def finish() -> CheckpointInfo:
            draft = drafts[0] if drafts else None
            joined: list[Draft] = []
            try:
                # Before anything is written: writing shards is a conversation of the ranks, which none may miss.
                ranks.of_all(lambda: joined.append(draft or Draft.join(begun.draft, disk=self._disk)))
                entries = ranks.of_all(lambda: self._write(taken[0], begun, joined[0]))
                return ranks.from_first(
                    lambda: self._commit(taken[0], begun, draft, entries=entries, because=because, has_data=has_data)
                )
            finally:
                for one in joined:
                    one.abandon()  # does nothing to one that is committed; other ranks let go of it

        return finish

    # On rank 0.

    def _begin_draft(self, given: Given, found: dict[str, Nonfinite], drafts: list[Draft]) -> _Begun:
        run_id = self.run_id or getattr(given.run, "run_id", None) or new_run_id(time.time())
        name = f"step_{given.step}"
        if not self._has_saved:
            self._refuse_other_run(self._folder / name, run_id)
        draft = Draft.begin(self._folder, name, disk=self._disk)
        try:
            infos = list_checkpoints(self._folder)
            serial = 1 + max((info.serial or 0 for info in infos), default=0)
            baseline = self.baseline
            if baseline is None:
                baseline = saved_baseline(infos, run_id=run_id)
            if baseline is None:
                baseline = found
                _tell_baseline(baseline)
        except BaseException:
            draft.abandon()
            raise
        drafts.append(draft)
        return _Begun(draft=str(draft.path), run_id=run_id, serial=serial, baseline=baseline)

    def _refuse_other_run(self, target: Path, run_id: str) -> None:
        """Refuses the first name that is another's: the run was started into a folder that it should not share."""
        if not os.path.lexists(target):
            return
        if not has_manifest(target):
            owner = "no checkpoint of Trimtab's"
        else:
            try:
                other = read_manifest(target).run_id
            except CheckpointError:
                return  # the draft says what becomes of a damaged one
            if other == run_id:
                return
            owner = f"a checkpoint of run {plain(str(other))}, and this is run {run_id}"
        raise UsageError(
            f"{plain(str(target))} is {owner}: it is not overwritten. Save into another folder, or load that "
            "checkpoint first to go on with its run, or move it away."
        )

    def _commit(
        self,
        taken: Taken,
        begun: _Begun,
        draft: Draft | None,
        *,
        entries: list[tuple[FileEntry, ...]],
        because: tuple[str, ...],
        has_data: list[bool],
    ) -> CheckpointInfo:
        assert draft is not None, "rank 0 has begun it"
        manifest = manifest_of(
            taken,
            entries=[entry for of_rank in entries for entry in of_rank],
            run_id=begun.run_id,
            serial=begun.serial,
            world_size=self._ranks.world_size,
            unhealthy_because=because,
            nonfinite_at_start=begun.baseline,
            has_data=has_data,
        )
        path = draft.commit(manifest)
        if because:
            warn(_LOG, f"{plain(str(path))} is saved and not healthy: {'; '.join(because)}")
        self._rotate(path, run_id=begun.run_id)
        return info_of(path, manifest)

    def _rotate(self, written: Path, *, run_id: str) -> None:
        """Deletes what is too many, once the new one was read back. Its errors are no failure of the save."""
        doomed = to_delete(list_checkpoints(self._folder), keep=self._keep, run_id=run_id, just_written=written)
        if not doomed:
            return
        report = verify(written)
        if not report.ok:
            raise CheckpointError(
                f"{plain(str(written))} was written and does not read back: {'; '.join(report.problems)}. Older ones "
                "were kept"
            )
        for path in doomed:
            try:
                remove_checkpoint(path, disk=self._disk)
            except OSError as error:
                warn(_LOG, f"{plain(str(path))} could not be deleted: {spelled_error(error)}")

    # On every rank.

    def _write(self, taken: Taken, begun: _Begun, draft: Draft) -> tuple[FileEntry, ...]:
        taken.run["nonfinite_at_start"] = nonfinite_to_state(begun.baseline)
        return write(taken, draft, ranks=self._ranks, disk=self._disk)


def _refuse_unlike(told: list[Told]) -> None:
    """Refuses to save where the ranks were not called with the same."""
    for rank, one in enumerate(told):
        for name, value in one.alike.items():
            expected = told[0].alike[name]
            if value != expected:
                raise UsageError(
                    f"The ranks save different things: for {name} rank {rank} has {value!r}, and rank 0 {expected!r}. "
                    "Call save on every rank after the same step, with the same parts."
                )


def _unhealthy_because(
    *, healthy: bool | None, found: Mapping[str, Nonfinite], baseline: Mapping[str, Nonfinite]
) -> tuple[str, ...]:
    """Why the checkpoint is not healthy, a sentence each; what the caller says overrides what is found."""
    if healthy is True:
        return ()
    because = worse_than(baseline, found)
    return (_SAID_SO, *because) if healthy is False else because


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
