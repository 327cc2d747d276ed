"""From which checkpoint to load, found whole; and what stands in its files.

Enters: what `Checkpointer.load` was given. Leaves: a `Source` that was verified, or a `CheckpointError` that says which
file, what is wrong with it, and which checkpoint to use instead. Invariant: a file is opened as a stranger's: nothing
in its archive is inflated, and no pickle runs but by torch's `weights_only`.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trimtab.errors import CheckpointError
from trimtab.resume.doubt import short
from trimtab.resume.examine import Examined
from trimtab.resume.foreign.zip_archive import BadArchive, read_entries
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.manifest import Manifest, read_manifest
from trimtab.resume.parts import FRESH_START
from trimtab.resume.select import instead_of
from trimtab.text import plain
from trimtab.torch.checkpoint_looks import Looks
from trimtab.torch.checkpoint_parts import MODEL_FILE, OPTIMIZER_FILE, RUN_FILE, RUN_VERSION, SHARDED_FOLDER, rank_file
from trimtab.torch.checkpoint_ranks import spelled_error
from trimtab.torch.health import Nonfinite, nonfinite_from_state
from trimtab.torch.plain_tree import refuse_grown


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint that holds what it promises.

    Attributes:
        path: Its folder, or the file.
        manifest: What it says of itself; None for a file of somebody else's loop.
        remarks: What is to be said of it.
    """

    path: Path
    manifest: Manifest | None
    remarks: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """What to call it in a message."""
        return plain(str(self.path))

    @property
    def sharded_folder(self) -> Path | None:
        """The folder in which weights and moments lie in shards; None where they do not."""
        for path in self._files("model"):
            above, found, _ = f"/{path}".partition(f"/{SHARDED_FOLDER}/")
            if found:
                return self.path / above.lstrip("/") / SHARDED_FOLDER
        return None

    def model(self) -> Mapping[str, Any]:
        """The whole weights by name, mapped into memory and not read yet."""
        return self._read("model", MODEL_FILE, maps=True)

    def optimizer(self) -> Mapping[str, Any]:
        """What the optimizer's `state_dict` gave, mapped likewise."""
        return self._read("optimizer", OPTIMIZER_FILE, maps=True)

    def run(self) -> Mapping[str, Any]:
        """What is alike on all ranks."""
        run = self._read("step", RUN_FILE)
        found, expected = run.get("step"), self.manifest.step if self.manifest is not None else None
        if found != expected:
            raise CheckpointError(
                f"{self.where}: {RUN_FILE} is of step {_number(found)}, and its manifest says {expected}; "
                "pick another one."
            )
        return run

    def of_rank(self, rank: int) -> Mapping[str, Any]:
        """What one rank has of its own."""
        return self._read("rng", rank_file(rank))

    def instead(self) -> str:
        """Which checkpoint to use in its place, as a sentence; reads that one."""
        return _instead(self.path, self.manifest.run_id if self.manifest is not None else None)

    def _files(self, part: str) -> Iterable[str]:
        return self.manifest.parts.get(part, ()) if self.manifest is not None else ()

    def _read(self, part: str, name: str, *, maps: bool = False) -> Mapping[str, Any]:
        path = next((path for path in self._files(part) if path.rpartition("/")[2] == name), None)
        if path is None:
            raise CheckpointError(f"{self.where}: its manifest names no {name} for the part {part}; it was changed.")
        state = read_torch_file(self.path / path, maps=maps)
        if name in (MODEL_FILE, OPTIMIZER_FILE):
            return state
        version = state.get("version")
        if version != RUN_VERSION:
            raise CheckpointError(
                f"{self.where}/{plain(path)}: found version {_number(version)}, expected {RUN_VERSION}: another "
                "version of Trimtab has saved it; load it with that one."
            )
        return state


def find_source(info_or_path: CheckpointInfo | str | os.PathLike[str], *, is_fresh: bool, looks: Looks) -> Source:
    """Verifies the checkpoint that was asked for.

    Args:
        info_or_path: What `pick` gave, or a path: a path that is named overrides what its health says.
        is_fresh: Whether only the weights are asked for.
        looks: What this process has read: of what `pick` has read a moment before nothing is read again.

    Raises:
        CheckpointError: It is not whole, not complete, or not healthy and was not named.
    """
    is_named = not isinstance(info_or_path, CheckpointInfo)
    if isinstance(info_or_path, CheckpointInfo):
        path = info_or_path.path
        _refuse_unhealthy(info_or_path)
    else:
        path = Path(os.path.abspath(info_or_path))
    # A path that is named may have been read hours ago, by a rotation; what is picked was a moment ago.
    found = looks.at(path, needs=("model",) if is_fresh else None, again=is_named)
    info, where = found.info, plain(str(path))
    if found.problems:
        raise CheckpointError(f"{where}: {'; '.join(found.problems)}. {_instead(path, info.run_id)}")
    if found.missing:
        raise CheckpointError(f"{where}: {found.lacks}. {_instead(path, info.run_id)}")
    if "model" not in info.parts:
        raise CheckpointError(f"{where}: holds no model. {_instead(path, info.run_id)}")
    if not is_named:
        _refuse_unhealthy(info)  # another save may have taken its place since
    source = _source(path, found, is_fresh=is_fresh)
    if info.healthy is False:
        named = f"{where} is not healthy, and was named: it is loaded all the same"
        source = replace(source, remarks=(*source.remarks, named))
    return source


def saved_baseline(infos: Iterable[CheckpointInfo], *, run_id: str) -> dict[str, Nonfinite] | None:
    """What was not finite when a run began, as its newest readable checkpoint says; None where none says.

    Args:
        infos: What is in the folder, newest first.
        run_id: The run.
    """
    for info in infos:
        if info.run_id != run_id or info.saver != "trimtab" or info.problem is not None:
            continue
        try:
            source = Source(path=info.path, manifest=read_manifest(info.path))
            return baseline_in(source.run(), where=source.where)
        except CheckpointError:
            continue
    return None


def baseline_in(run: Mapping[str, Any], *, where: str) -> dict[str, Nonfinite]:
    """What was not finite when the run began, out of `run.pt`."""
    return nonfinite_from_state(run.get("nonfinite_at_start"), where=where)


def read_torch_file(path: Path, *, maps: bool = False) -> dict[str, Any]:
    """A mapping that `torch.save` has written, on the CPU.

    Args:
        path: The file.
        maps: Whether its tensors stay in the file until they are looked at; they are a private copy all the same.

    Raises:
        CheckpointError: It is none, or needs a pickle.
    """
    where = plain(str(path))
    try:
        with path.open("rb") as file:
            entries = read_entries(file)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=maps)
    except (OSError, BadArchive) as error:
        raise CheckpointError(
            f"{where}: {error if isinstance(error, BadArchive) else spelled_error(error)}."
        ) from error
    except Exception as error:
        # What torch says of a pickle is the advice to run it.
        why = "" if isinstance(error, pickle.UnpicklingError) else f" ({spelled_error(error)})"
        raise CheckpointError(
            f"{where}: torch cannot read it without running a pickle, which is not done{why}."
        ) from error
    pickled = sum(entry.size_bytes for entry in entries if entry.name.endswith("/data.pkl"))
    refuse_grown(state, size_bytes=pickled, where=where)
    if not isinstance(state, dict):
        raise CheckpointError(f"{where}: holds a {type(state).__name__}, expected a mapping.")
    return state


def _number(value: object) -> str:
    """What stands in a number's place, in few words: a stranger's text or list is not spelled."""
    return str(value) if type(value) is int and value.bit_length() < 64 else f"a {type(value).__name__}"


def _source(path: Path, found: Examined, *, is_fresh: bool) -> Source:
    """The files of the manifest that they were held against, and of no other one that took its place since."""
    if found.manifest is not None and found.manifest.saver == "trimtab":
        return Source(path=path, manifest=found.manifest, remarks=found.notes)
    if path.is_dir():
        raise CheckpointError(
            f"{plain(str(path))}: was saved by transformers; pass it to trainer.train(resume_from_checkpoint=...), or "
            "its weights to from_pretrained."
        )
    if not is_fresh:
        raise CheckpointError(
            f"{plain(str(path))}: was saved by a loop of somebody's own, and only that knows how to go on from it. "
            f"{FRESH_START[0].upper()}{FRESH_START[1:]}."
        )
    return Source(path=path, manifest=None, remarks=found.notes)


def _refuse_unhealthy(info: CheckpointInfo) -> None:
    if info.healthy is not False:
        return
    why = short(info.unhealthy_because) or "its manifest does not say why"
    other = instead_of(info.path, info.run_id)
    if other is not None and other.healthy:
        instead = f"The last healthy one is {plain(str(other.path))}: use pick(healthy=True)"
    else:
        instead = "There is no healthy one of its run: begin anew"
    raise CheckpointError(
        f"{plain(str(info.path))}: is not healthy: {plain(why)}. {instead}, or load this one by its path."
    )


def _instead(path: Path, run_id: str | None) -> str:
    """Which checkpoint to use in the place of one that cannot be."""
    other = instead_of(path, run_id)
    if other is None:
        return "There is no other in its folder that a run can go on from."
    not_healthy = ", which is not healthy," if other.healthy is False else ""
    return f"Use {plain(str(other.path))}{not_healthy} instead."
