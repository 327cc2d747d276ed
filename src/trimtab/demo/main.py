"""The demo from beginning to end: rows, poison, training, rewind, and what to do next.

In go a folder and a seed, out comes a `DemoResult`; on the way the story is told on a console. What `rewind` says is
computed from the run's log alone: it sees neither the plants nor the rows.
"""

from __future__ import annotations

import importlib.util
import logging
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trimtab import registry
from trimtab.analysis import rewind
from trimtab.demo.console import Console, ConsoleHandler, quoted
from trimtab.demo.folder import ROWS, DemoFolder
from trimtab.demo.interrupt import Interrupt
from trimtab.demo.named import check_plants, draw_checks
from trimtab.demo.plant import GUARDED_KINDS, NEEDED, UNGUARDED_KINDS, Kind, planted_document
from trimtab.demo.poison import excerpt
from trimtab.demo.result import DemoResult
from trimtab.demo.rows import MIN_ROWS, Row, rows_from_modules, rows_from_sources
from trimtab.demo.run_log import first_difference, skipped_micro_batches
from trimtab.errors import MissingExtraError, TrimtabError, UsageError
from trimtab.guard import GuardConfig
from trimtab.report import as_json, terminal
from trimtab.run import switched_off
from trimtab.text import plain

if TYPE_CHECKING:
    from trimtab.demo.prepare import Prepared
    from trimtab.torch.run import Run

UNGUARDED_UNTIL: Final = 0.65
"""Without a guard the run ends with the first non-finite row: no need to train longer than it takes to get there."""
_NEEDS: Final = ("torch", "transformers", "accelerate", "tokenizers")


def run_demo(out: Path, *, seed: int, guard: bool, console: Console) -> DemoResult:
    """Trains a small language model with a few poisoned rows, and lets `rewind` name them from the log.

    Args:
        out: Folder to leave behind: absent, empty, or a former demo's.
        seed: Decides weights, order and plants.
        guard: Whether the robust guard is on; without it the run dies, and is stopped then.
        console: Where the story is told.

    Returns:
        What came of it.

    Raises:
        UsageError: `out` is something else, `TRIMTAB=off` is set, or Python runs under -OO.
        MissingExtraError: A package of `trimtab[demo]` is not installed.
        TrimtabError: There are too few rows, or the log contradicts the plan.
        KeyboardInterrupt: Ctrl-C came; what this demo had made is gone again.
    """
    _require_packages()
    if switched_off():
        raise UsageError("The demo shows what Trimtab does, and TRIMTAB=off is set: unset it, then start again.")
    story = _Story(DemoFolder(out), seed=seed, guard=guard, console=console)
    with Interrupt() as interrupt, _library_lines(console):
        try:
            result = story.tell()
            interrupt.check()
        except BaseException as error:
            if interrupt.happened or story.run_folder is None:
                story.undo()
            if interrupt.happened:
                raise KeyboardInterrupt from error
            raise
    return result


class _Story:
    """One demo under way."""

    def __init__(self, folder: DemoFolder, *, seed: int, guard: bool, console: Console) -> None:
        self._folder = folder
        self._seed = seed
        self._guard = guard
        self._console = console
        self._run: Run | None = None

    @property
    def run_folder(self) -> Path | None:
        return self._run.folder if self._run is not None else None

    def undo(self) -> None:
        run_folder = self.run_folder
        if self._run is not None:
            self._run.close()
        if run_folder is not None:
            registry.forget(run_folder)
        self._folder.undo(run_folder)

    def tell(self) -> DemoResult:
        console = self._console
        kinds = GUARDED_KINDS if self._guard else UNGUARDED_KINDS
        console.line(
            "A small language model is fine-tuned on this CPU by the real Hugging Face Trainer, on questions and\n"
            f"answers from Python's own docstrings. {len(kinds)} rows are poisoned, chosen by seed {self._seed}. "
            f"The guard is {'on' if self._guard else 'off'}.\n"
        )
        prepared = self._prepare(self._collect(), kinds)
        dead_since, broken = self._train(prepared)
        return self._explain(prepared, dead_since=dead_since, broken=broken)

    def _collect(self) -> list[Row]:
        console = self._console
        console.stage("reading question and answer rows from the standard library's docstrings")
        rows = rows_from_sources()
        console.stage(f"loading torch and transformers for the first time ({len(rows):,} rows read)")
        import torch
        import transformers

        import trimtab.demo.prepare  # noqa: F401 - transformers loads most of itself only when a name is used

        console.stage(f"loaded torch {torch.__version__} and transformers {transformers.__version__}")
        if len(rows) < MIN_ROWS:
            rows = rows_from_modules()
            console.stage(f"this Python has no sources to read: took {len(rows):,} docstrings of loaded modules")
        if len(rows) < MIN_ROWS:
            raise TrimtabError(
                f"This Python ({sys.executable}) offers {len(rows):,} docstrings to train on and the demo needs "
                f"{MIN_ROWS:,}: run it with a Python that has its standard library's sources and docstrings."
            )
        return rows

    def _prepare(self, rows: list[Row], kinds: tuple[Kind, ...]) -> Prepared:
        from trimtab.demo.prepare import prepare, rows_a_step

        rows = rows[: len(rows) - len(rows) % rows_a_step()]
        prepared = prepare(
            rows,
            out=self._folder.path,
            seed=self._seed,
            kinds=kinds,
            until=1.0 if self._guard else UNGUARDED_UNTIL,
            console=self._console,
        )
        self._folder.write_planted(as_json.dumps_document(planted_document(prepared.plants)))
        self._folder.write_rows(prepared.items)
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        self._console.stage(
            f"poisoned {len(kinds)} of {len(rows):,} rows ({counts})\n"
            "which ones stands in planted.json; rewind never reads it"
        )
        return prepared

    def _train(self, prepared: Prepared) -> tuple[int | None, list[str]]:
        from trimtab.demo.prepare import nonfinite_parameters, num_steps, rows_a_step
        from trimtab.demo.watch import Watch
        from trimtab.integrations.attach import attach

        console = self._console
        call = (
            'trimtab.attach(trainer, guard=trimtab.GuardConfig(rule="robust"))'
            if self._guard
            else "trimtab.attach(trainer)"
        )
        console.stage(f"training {num_steps(prepared)} steps of {rows_a_step()} rows, after the one line\n    {call}")
        guard = GuardConfig(rule="robust") if self._guard else None
        self._run = run = attach(prepared.trainer, guard=guard)
        watch = Watch(console)
        prepared.trainer.add_callback(watch)
        try:
            prepared.trainer.train()
        finally:
            run.close()
        broken = nonfinite_parameters(prepared)
        weights = f"{len(broken)} parameters are no longer finite" if broken else "every weight is finite"
        console.stage(f"training has ended; last loss {watch.last_loss:.2f}, {weights}")
        return watch.dead_since, broken

    def _explain(self, prepared: Prepared, *, dead_since: int | None, broken: list[str]) -> DemoResult:
        from trimtab.demo.train import ACCUMULATION

        console, run_folder = self._console, self.run_folder
        if run_folder is None or self._run is None or self._run.run_id is None:
            raise TrimtabError(
                f"Nothing was recorded under {self._folder.path}, so there is nothing to explain: the line "
                '"Trimtab recorder off" above says why.'
            )
        difference = first_difference(run_folder, prepared.order, accumulation=ACCUMULATION)
        if difference is not None:
            raise TrimtabError(
                f"The trainer read its rows in another order than planned, so planted.json does not hold: {difference} "
                f"({run_folder}). Please report this with the versions of torch, transformers and accelerate."
            )
        findings = rewind(run_folder)
        self._folder.write_report(as_json.dumps(findings))
        console.stage("this is what `trimtab rewind` says, from the log alone:")
        console.line()
        terminal.render(findings, console=console.as_rich())
        result = DemoResult(
            out=self._folder.path,
            run_id=self._run.run_id,
            run_folder=run_folder,
            seed=self._seed,
            guarded=self._guard,
            dead_since=dead_since,
            nonfinite_parameters=tuple(broken),
            skips=tuple(skipped_micro_batches(run_folder)),
            checks=tuple(check_plants(prepared.plants, run_folder, findings)),
            findings=findings,
        )
        console.line()
        console.stage("what was planted, against what `trimtab rewind --step` names:")
        console.line()
        texts = [f"{plain(row.question)[:48]} -> {quoted(excerpt(row))}" for row in prepared.poisoned]
        for line in draw_checks(result.checks, texts):
            console.line(line)
        for line in _last_lines(result):
            console.line(line)
        return result


def _last_lines(result: DemoResult) -> list[str]:
    """The verdict, and what to do next in a script of one's own."""
    needed = [check for check in result.checks if check.plant.kind in NEEDED]
    num_passed = sum(check.passed for check in needed)
    return [
        "",
        f"{num_passed} of {len(needed)} planted rows that the loss can show were found and named first.",
        *(_guard_line(result) if result.guarded else _death_line(result)),
        "A repeated row has a low loss: it shows in the gradient norm of its step, and in its own share and text."
        if any(check.plant.kind == "repeated" for check in result.checks)
        else "With the guard on (leave --no-guard away) the same faults are skipped and the run survives.",
        "",
        "In your own script, one line before trainer.train():",
        "    trimtab.attach(trainer)                                              records",
        '    trimtab.attach(trainer, guard=trimtab.GuardConfig(rule="robust"))    and skips',
        "Then, while it runs or after it:",
        "    trimtab rewind",
        "The rows of this demo, as text beside the findings:",
        f"    trimtab rewind {shlex.quote(str(result.out))} --data {shlex.quote(str(result.out / ROWS))}",
        f"Left in {result.out}: the log {result.run_folder.name}, planted.json, rows.jsonl, report.json.",
    ]


def _guard_line(result: DemoResult) -> list[str]:
    planted = {(check.plant.step, check.plant.micro) for check in result.checks if check.plant.kind in NEEDED}
    skipped = {(skip.step, skip.micro) for skip in result.skips}
    if skipped == planted:
        return [f"The guard skipped exactly their {len(skipped)} micro-batches; every weight stayed finite."]
    return [
        f"The guard skipped {len(skipped & planted)} of their {len(planted)} micro-batches, "
        f"and {len(skipped - planted)} clean ones."
    ]


def _death_line(result: DemoResult) -> list[str]:
    if result.dead_since is None:
        return []
    return [f"Without a guard the run was dead from step {result.dead_since} on: not one finite loss after it."]


def _require_packages() -> None:
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"trimtab demo trains a model, and {', '.join(missing)} is not installed in {sys.prefix}: "
            "pip install 'trimtab[demo]'"
        )
    if sys.flags.optimize >= 2:
        raise UsageError(
            "transformers builds its own docstrings and cannot be imported under -OO: start Python without."
        )


@contextmanager
def _library_lines(console: Console) -> Iterator[None]:
    """Lets what the library says while it works appear in the story."""
    logger, handler = logging.getLogger("trimtab"), ConsoleHandler(console)
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates
