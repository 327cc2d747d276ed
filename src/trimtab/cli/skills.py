"""`trimtab skills`: tasks written for coding agents, and a copy of them for a project's own folder of skills.

Enters: a folder. Leaves: DIR/NAME/ with the skill's files. Invariant: a file that somebody changed is replaced only
where `--force` says so, and where one is in the way nothing is written at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import click
from rich.console import Console

import trimtab
from trimtab.cli.output import answer, json_option, refuse_one_file_for_two
from trimtab.disk import write_file
from trimtab.errors import TrimtabError, UsageError
from trimtab.report.lines import say, tell
from trimtab.report.written import say_written
from trimtab.text import plain

ENTRY_NAME: Final = "SKILL.md"
"""What an agent reads first; a folder with such a file is a skill."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill as it came with Trimtab.

    Attributes:
        name: Its name, which is its folder's as well.
        description: What it is for, and when to use it.
        folder: Where it lies.
        files: Its files, relative to the folder.
    """

    name: str
    description: str
    folder: Path
    files: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        """The skill as `--json` writes it."""
        files = [file.as_posix() for file in self.files]
        return {"name": self.name, "description": self.description, "folder": str(self.folder), "files": files}


@dataclass(frozen=True, slots=True)
class _Copy:
    """A file to install, and what its place holds now."""

    source: Path
    place: Path
    state: Literal["written", "unchanged", "replaced"]


@click.group("skills", invoke_without_command=True)
@json_option("Write the list as strict JSON; - for standard output, where nothing else is then printed.")
@click.pass_context
def command(context: click.Context, json_file: str | None) -> int:
    """Lists the skills that come with Trimtab: tasks written for a coding agent.

    \b
    Example:
        trimtab skills
        trimtab skills install .agents/skills
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    if context.invoked_subcommand is not None:
        if json_file is not None:
            verb = context.invoked_subcommand
            raise UsageError(f"--json before {verb} is the list's own. Write: trimtab skills {verb} ... --json FILE")
        return 0
    skills = find_skills()

    def draw(console: Console) -> None:
        for skill in skills:
            say(console, skill.name)
            tell(console, plain(skill.description))
        say(console, "")
        tell(console, "To give them to an agent: trimtab skills install DIR")
        if json_file:
            say_written(console, json_file)

    answer(lambda: {"version": 1, "skills": [skill.to_dict() for skill in skills]}, json_file=json_file, draw=draw)
    return 0


@command.command("install")
@click.argument("folder", metavar="DIR")
@click.option("--force", is_flag=True, help="Replace files that differ from those that come with Trimtab.")
@json_option("Write what was copied as strict JSON; - for standard output, where nothing else is then printed.")
def install(folder: str, *, force: bool, json_file: str | None) -> int:
    """Copies every skill into DIR/NAME/, where an agent looks for skills.

    DIR is made if it is not there. A file that differs from ours is replaced only with --force; without it nothing is
    written and each such file is named. Files beside ours are left alone.

    \b
    Example:
        trimtab skills install .agents/skills
        trimtab skills install .claude/skills --force
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    if not folder or "\0" in folder:
        raise UsageError(f"{folder!r} cannot be the name of a folder here. Name one, there or not.")
    skills = find_skills()
    plans = [(skill, Path(folder) / skill.name, _plan(skill, Path(folder) / skill.name)) for skill in skills]
    for _, _, copies in plans:
        for copy in copies:
            refuse_one_file_for_two({"install": str(copy.place), "--json": json_file})
    if not force:
        _refuse_changed([copy for _, _, copies in plans for copy in copies if copy.state == "replaced"])
    for _, _, copies in plans:
        for copy in copies:
            _write(copy)

    document = {
        "version": 1,
        "skills": [
            {
                "name": skill.name,
                "folder": str(place),
                "files": [{"path": str(copy.place), "state": copy.state} for copy in copies],
            }
            for skill, place, copies in plans
        ],
    }

    def draw(console: Console) -> None:
        for skill, place, copies in plans:
            _draw(skill, place, copies, console=console)
        if json_file:
            say_written(console, json_file)

    answer(lambda: document, json_file=json_file, draw=draw)
    return 0


def find_skills() -> list[Skill]:
    """The skills that come with Trimtab, by name.

    Raises:
        TrimtabError: None is there, or one has no name or description; the installation is not whole.
    """
    package = Path(trimtab.__file__).parent
    # In a wheel they lie in the package; in a clone, installed as editable or not, beside src.
    home = next((place for place in (package / "skills", package.parents[1] / "skills") if place.is_dir()), None)
    entries = sorted(home.glob(f"*/{ENTRY_NAME}")) if home is not None else []
    if not entries:
        raise TrimtabError(
            f"no skill came with this installation of Trimtab: none lies in {package / 'skills'}. Install it again, "
            "from a wheel or from a clone."
        )
    return [_read(entry) for entry in entries]


def _read(entry: Path) -> Skill:
    lines = entry.read_text(encoding="utf-8").splitlines()
    # Front matter of our own, one line a key: no reader of YAML is needed for it.
    closing = lines.index("---", 1) if lines[:1] == ["---"] and "---" in lines[1:] else 0
    facts = dict(line.split(": ", 1) for line in lines[1:closing] if ": " in line)
    if facts.get("name") != entry.parent.name or not facts.get("description"):
        raise TrimtabError(
            f"{entry} does not begin with its name, {entry.parent.name}, and a description. Install Trimtab again, "
            "from a wheel or from a clone."
        )
    files = sorted(
        path.relative_to(entry.parent)
        for path in entry.parent.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    return Skill(facts["name"], facts["description"], entry.parent, tuple(files))


def _plan(skill: Skill, folder: Path) -> list[_Copy]:
    """What a copy of a skill into a folder would do to each of its files.

    Raises:
        UsageError: Something is in the way that is no file of the skill's.
        OSError: A file that stands there cannot be read.
    """
    copies = []
    for name in skill.files:
        place = folder / name
        _refuse_what_is_no_folder(place.parent, below=folder.parent)
        if place.is_dir():
            raise UsageError(f"{place} is a folder, where a file of the skill belongs. Move it, or name another DIR.")
        source = skill.folder / name
        copies.append(_Copy(source, place, _state(source, place)))
    return copies


def _state(source: Path, place: Path) -> Literal["written", "unchanged", "replaced"]:
    if not place.exists():
        # A link that leads nowhere is somebody's too. The link itself is replaced: what it leads to is never written.
        return "replaced" if place.is_symlink() else "written"
    return "unchanged" if place.read_bytes() == source.read_bytes() else "replaced"


def _refuse_what_is_no_folder(place: Path, *, below: Path) -> None:
    """Refuses a file where a folder is needed, and a link below DIR; DIR itself is as the user named it."""
    parts = (place, *place.parents)
    link = next((part for part in parts if below in part.parents and part.is_symlink()), None)
    if link is not None:
        raise UsageError(f"{link} is a symbolic link, and would be written through. Remove it, or name another DIR.")
    nearest = next(part for part in parts if part.exists() or part.is_symlink())
    if not nearest.is_dir():
        raise UsageError(f"{nearest} is no folder, and {place} cannot be made in it. Name another DIR.")


def _refuse_changed(copies: Sequence[_Copy]) -> None:
    if not copies:
        return
    names = ", ".join(str(copy.place) for copy in copies)
    differ = "differs" if len(copies) == 1 else "differ"
    raise UsageError(
        f"{names} {differ} from what comes with Trimtab {trimtab.__version__}; nothing was written. Keep your copy "
        "elsewhere if it is yours, then give --force to replace it."
    )


def _write(copy: _Copy) -> None:
    if copy.state == "unchanged":
        return
    copy.place.parent.mkdir(parents=True, exist_ok=True)
    with write_file(copy.place) as file:
        file.write(copy.source.read_bytes())


def _draw(skill: Skill, place: Path, copies: Sequence[_Copy], *, console: Console) -> None:
    for copy in copies:
        if copy.state == "unchanged":
            tell(console, f"Unchanged: {plain(str(copy.place))}")
        else:
            say_written(console, str(copy.place), what="replaced another version" if copy.state == "replaced" else "")
    tell(console, f"Ask your agent to use the skill {skill.name}; it begins with {plain(str(place / ENTRY_NAME))}.")
