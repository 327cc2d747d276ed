"""A checkpoint of a Hugging Face Trainer that has no manifest of ours: `checkpoint-500`.

Enters: a folder. Leaves: `Inspected`. Invariant: every file that a resume would read is looked at, as far as its
format allows: torch's archives have checksums, safetensors have lengths and no more, JSON must parse to its end.

A Trainer writes its files one after the other and `trainer_state.json` last, so a killed save lacks that or what comes
before it; which of several ranks' files belong to it nobody has written down, so a gap is seen and a missing last one
is not.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from trimtab.resume.checksum import Progress
from trimtab.resume.foreign.format import NUMBER, Format
from trimtab.resume.foreign.inspected import Inspected
from trimtab.resume.foreign.payload import Unsound, opened, read_json_object
from trimtab.resume.foreign.safe_names import NUMPY_NAMES, SAFE_NAMES
from trimtab.resume.foreign.safetensors_file import read_tensor_names
from trimtab.resume.foreign.torch_file import inspect_torch_file
from trimtab.resume.parts import ALWAYS, in_order
from trimtab.text import listed, plain

STATE_NAME: Final = "trainer_state.json"

MAX_FILES: Final = 10_000
"""Files that are looked at; a Trainer on a thousand ranks writes two or three a rank."""

MAX_JSON_BYTES: Final = 256 << 20
"""A `trainer_state.json` of two million logged steps."""

_NAMES_OF: Final[dict[str, re.Pattern[str]]] = {
    "model": re.compile(
        r"(?:adapter_)?model(?:-\d+-of-\d+)?\.safetensors|pytorch_model(?:-\d+-of-\d+)?\.bin|adapter_model\.bin"
        r"|pytorch_model_fsdp\.bin|pytorch_model_fsdp_\d+/.+|global_step\d+/.*model_states\.pt"
    ),
    "optimizer": re.compile(
        r"optimizer\.(?:pt|bin)|rank\d+-of-\d+-optimizer\.pt|optimizer_\d+/.+|global_step\d+/.*optim_states\.pt"
    ),
    "scheduler": re.compile(r"scheduler\.pt"),
    "scaler": re.compile(r"scaler\.pt"),
    "rng": re.compile(r"rng_state(?:_\d+)?\.pth"),
}
_RANK_OF: Final = (
    re.compile(r"rng_state_(?P<rank>\d+)\.pth"),
    re.compile(r"rank(?P<rank>\d+)-of-(?P<num>\d+)-optimizer\.pt"),
    re.compile(r"(?:pytorch_model_fsdp|optimizer)_\d+/__(?P<rank>\d+)_\d+\.distcp"),
)
_SHARD: Final = re.compile(r"(?P<stem>.+)-(?P<place>\d{1,6})-of-(?P<num>\d{1,6})\.(?:safetensors|bin)")
_INDEX: Final = re.compile(r".*\.(?:safetensors|bin)\.index\.json")
_TORCH_SUFFIXES: Final = (".pt", ".pth", ".bin")
_OTHER_PAYLOAD: Final = re.compile(r"(?:.*/)?(?:mp_rank_\d+[^/]*|\.metadata|[^/]+\.(?:distcp|npz|npy|ckpt))")
_DEEPSPEED: Final = re.compile(r"global_step\d+/")


def part_of_file(name: str) -> str | None:
    """The part that a file of a Trainer's checkpoint holds, by its path in the folder; None where it holds none.

    Example:
        >>> part_of_file("model-00001-of-00002.safetensors"), part_of_file("config.json")
        ('model', None)
    """
    return next((part for part, pattern in _NAMES_OF.items() if pattern.fullmatch(name)), None)


def inspect_hf(folder: str | os.PathLike[str], *, reads: bool = True, progress: Progress | None = None) -> Inspected:
    """Looks at every file of a checkpoint that a resume would read.

    Args:
        folder: `checkpoint-<step>`, or a folder of the same layout under another name.
        reads: Whether they are opened; otherwise their names and sizes are all that is looked at.
        progress: Called now and then with how many more bytes were read.
    """
    place = Path(folder)
    try:
        names = sorted(islice(_names(place), MAX_FILES + 1))
    except OSError as error:
        why = error.strerror or plain(str(error))
        return Inspected(parts=(), missing=ALWAYS, problems=(f"{plain(place.name)} cannot be listed ({why})",))
    if len(names) > MAX_FILES:
        return Inspected(
            parts=(), missing=ALWAYS, problems=(f"{plain(place.name)} holds more than {MAX_FILES:,} files",)
        )
    return _Look(place, names, reads=reads, progress=progress).result()


def _names(folder: Path) -> Iterator[str]:
    """Files below a folder, relative to it; a folder that is a link is not followed."""
    for base, _, files in os.walk(folder, onerror=_raise):
        for file in files:
            yield Path(base, file).relative_to(folder).as_posix()


def _raise(error: OSError) -> None:
    raise error


class _Look:
    """One look at a checkpoint: what it finds, file by file."""

    def __init__(self, folder: Path, names: Sequence[str], *, reads: bool, progress: Progress | None) -> None:
        self._folder = folder
        self._names = names
        self._reads = reads
        self._progress = progress
        self._problems: list[str] = []
        self._need_pickle: list[str] = []
        self._notes: list[str] = []
        self._tensors: dict[str, frozenset[str]] = {}
        self._sizes: list[int] = []
        self._was_renamed = False

    def result(self) -> Inspected:
        state = self._state()
        for name in self._names:
            self._file(name)
        self._shards()
        self._ranks()
        parts = {part for part, pattern in _NAMES_OF.items() if any(map(pattern.fullmatch, self._names))}
        step = _count(state.get("global_step"))
        if step is not None or (not self._reads and STATE_NAME in self._names):
            parts.add("step")
        loss = _loss(state)
        if loss is not None:
            parts.add("loss")
        is_deepspeed = any(map(_DEEPSPEED.match, self._names))
        # DeepSpeed keeps its scheduler in its own files.
        needed = ALWAYS if is_deepspeed else (*ALWAYS, "scheduler")
        self._say_what_is_not_known(parts, is_deepspeed=is_deepspeed)
        return Inspected(
            parts=in_order(parts),
            missing=tuple(part for part in needed if part not in parts),
            problems=(*self._problems, *self._need_pickle),
            needs_pickle=bool(self._need_pickle) and not self._problems,
            notes=tuple(self._notes),
            step=None if self._was_renamed else step,
            loss=loss,
            num_files=len(self._sizes),
            size_bytes=sum(self._sizes),
        )

    def _problem(self, name: str, what: str) -> None:
        self._problems.append(f"{plain(name)} {what}")

    def _state(self) -> Mapping[str, Any]:
        """What `trainer_state.json` holds; an empty mapping, and a problem, where it cannot be taken at its word."""
        if not self._reads and STATE_NAME in self._names:
            return {}
        try:
            state = read_json_object(self._folder / STATE_NAME, max_bytes=MAX_JSON_BYTES, loads=json.loads)
        except Unsound as error:
            self._problem(STATE_NAME, f"{error}; a Trainer writes it last")
            return {}
        step = _count(state.get("global_step"))
        named = re.search(r"(\d{1,18})\Z", self._folder.name)
        if step is None:
            self._problem(STATE_NAME, "names no global_step")
        elif named is not None and int(named[1]) != step:
            self._was_renamed = True
            self._problem(
                STATE_NAME,
                f"says global_step {step}; the folder {plain(self._folder.name)} was copied or renamed",
            )
        return state

    def _file(self, name: str) -> None:
        path = self._folder / name
        try:
            if not self._reads:
                self._size_alone(name)
                return
            if name.endswith(".safetensors"):
                self._tensors[name] = read_tensor_names(path)
            elif name.endswith(_TORCH_SUFFIXES):
                found = inspect_torch_file(path, allowed=_allowed(name), progress=self._progress)
                problems = self._need_pickle if found.needs_pickle else self._problems
                problems += [f"{plain(name)} {problem}" for problem in found.problems]
            elif _OTHER_PAYLOAD.fullmatch(name):
                with opened(path):
                    pass
            else:
                return
            self._sizes.append(path.stat().st_size)
        except Unsound as error:
            self._problem(name, str(error))
        except OSError as error:
            self._problem(name, f"cannot be read ({error.strerror or plain(str(error))})")

    def _size_alone(self, name: str) -> None:
        is_payload = name.endswith((".safetensors", *_TORCH_SUFFIXES)) or _OTHER_PAYLOAD.fullmatch(name)
        if is_payload or name == STATE_NAME:
            size_bytes = (self._folder / name).stat().st_size
            self._sizes.append(size_bytes)
            if not size_bytes:
                self._problem(name, "is empty (0 bytes)")

    def _shards(self) -> None:
        """Holds a model in several files against its index, and each shard against the number in its name."""
        present = set(self._names)
        for name in filter(_INDEX.fullmatch, self._names if self._reads else ()):
            self._index(name, present=present)
        families: dict[tuple[str, int], set[int]] = {}
        for name in self._names:
            shard = _SHARD.fullmatch(name)
            if shard is not None:
                families.setdefault((shard["stem"], int(shard["num"])), set()).add(int(shard["place"]))
        for (stem, num), places in families.items():
            if len(places) < num:
                self._problem(stem, f"has {len(places)} of its {num} shards")

    def _index(self, name: str, *, present: set[str]) -> None:
        try:
            placed = read_json_object(self._folder / name, max_bytes=MAX_JSON_BYTES).get("weight_map")
        except Unsound as error:
            self._problem(name, str(error))
            return
        if not isinstance(placed, dict) or not placed or not all(isinstance(file, str) for file in placed.values()):
            self._problem(name, "names no weights")
            return
        for file in sorted(set(placed.values())):
            if file not in present:
                self._problem(file, f"is missing; {plain(name)} names it")
                continue
            lacking = [tensor for tensor, where in placed.items() if where == file and self._lacks(file, tensor)]
            if lacking:
                self._problem(file, f"lacks {len(lacking)} of its tensors, {plain(lacking[0])} for one")

    def _lacks(self, file: str, tensor: str) -> bool:
        held = self._tensors.get(file)
        return held is not None and tensor not in held

    def _ranks(self) -> None:
        """Names the gaps between the files that each rank has one of."""
        for pattern in _RANK_OF:
            found = [match for match in map(pattern.fullmatch, self._names) if match is not None]
            if not found:
                continue
            ranks = {int(match["rank"]) for match in found}
            told = [int(match["num"]) for match in found if "num" in pattern.groupindex]
            # Ranks have at most seven digits here, and files are 10,000 at most: a name alone cannot make this long.
            num = max([*told, max(ranks) + 1]) if max([*told, *ranks]) < 10**7 else 0
            if len(ranks) < num:
                first = next(rank for rank in range(num) if rank not in ranks)
                self._problem(found[0][0], f"is one of {num} ranks', and that of rank {first} is missing")

    def _say_what_is_not_known(self, parts: set[str], *, is_deepspeed: bool) -> None:
        if self._tensors:
            self._notes.append("of a safetensors file the layout alone is checked: it has no checksum")
        if is_deepspeed or any(name.endswith(".distcp") for name in self._names):
            self._notes.append(
                "sharded files are known to be there, and not looked into; DeepSpeed loads its own by pickle"
            )
        if "model" in parts and not parts & {"optimizer", "scheduler", "rng"}:
            self._notes.append(
                "the model alone, as save_only_model=True leaves it: nothing can be resumed from it, and "
                f"{listed(['optimizer', 'scheduler', 'rng'])} would begin anew"
            )


def _allowed(name: str) -> frozenset[str] | None:
    """The names that a Trainer allows in a file; None for files that it does not load by `weights_only=True`."""
    if "/" in name:
        return None
    if _NAMES_OF["rng"].fullmatch(name):
        return SAFE_NAMES | NUMPY_NAMES
    return SAFE_NAMES if any(pattern.fullmatch(name) for pattern in _NAMES_OF.values()) else None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _loss(state: Mapping[str, Any]) -> float | None:
    """The training loss that was logged last."""
    history = state.get("log_history")
    if not isinstance(history, list):
        return None
    for entry in reversed(history):
        loss = entry.get("loss") if isinstance(entry, dict) else None
        if isinstance(loss, float):
            return loss
    return None


FORMAT: Final = Format(
    saver="transformers",
    kind="folder",
    pattern=re.compile(rf"checkpoint-{NUMBER}"),
    expected="checkpoint-<number>",
    recognises=lambda path: os.path.lexists(path / STATE_NAME),
    inspect=inspect_hf,
)
