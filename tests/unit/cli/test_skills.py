"""`trimtab skills`, as a person or an agent calls it."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NAME = "loss-spike-guard"
NAMES = [NAME, "moe-router-stability"]


def ours(name=NAME):
    """The files of a skill in the clone, by their path in it."""
    folder = ROOT / "skills" / name
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def files_below(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_skill_is_listed_with_what_it_is_for(trimtab):
    result = trimtab("skills")
    assert result.exit_code == 0
    assert [line for line in result.stdout.splitlines() if line in NAMES] == NAMES
    assert "trimtab skills install DIR" in result.stdout


def test_the_list_is_there_as_json(trimtab):
    document = json.loads(trimtab("skills", "--json", "-").stdout)
    assert document["version"] == 1
    (skill,) = [skill for skill in document["skills"] if skill["name"] == NAME]
    assert sorted(skill["files"]) == sorted(ours())
    assert skill["description"].startswith("Wire ")
    assert Path(skill["folder"]) == ROOT / "skills" / NAME


def test_a_skill_is_copied_whole_into_a_folder_that_is_made_for_it(trimtab, here):
    result = trimtab("skills", "install", "agents/of/mine")
    assert result.exit_code == 0, result.output
    assert files_below(here / "agents" / "of" / "mine" / NAME) == ours()
    assert [line for line in result.stdout.splitlines() if line.startswith("Wrote ")] == [
        f"Wrote agents/of/mine/{skill}/{name}" for skill in NAMES for name in sorted(ours(skill))
    ]


def test_a_folder_outside_of_the_current_one_may_be_named(trimtab, here, monkeypatch):
    (here / "project").mkdir()
    monkeypatch.chdir(here / "project")
    assert trimtab("skills", "install", here / "home").exit_code == 0
    assert files_below(here / "home" / NAME) == ours()


def test_a_second_copy_changes_nothing_and_says_so(trimtab, here):
    trimtab("skills", "install", "agents")
    before = {path: path.stat().st_mtime_ns for path in (here / "agents").rglob("*")}
    result = trimtab("skills", "install", "agents")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("Unchanged: ") == sum(len(ours(skill)) for skill in NAMES)
    assert {path: path.stat().st_mtime_ns for path in (here / "agents").rglob("*")} == before


def test_a_changed_file_is_named_and_nothing_is_written(trimtab, here):
    # given: one file changed, one missing
    trimtab("skills", "install", "agents")
    entry, asserts = here / "agents" / NAME / "SKILL.md", here / "agents" / NAME / "asserts.py"
    entry.write_text("mine")
    asserts.unlink()
    # when
    result = trimtab("skills", "install", "agents")
    # then
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"agents/{NAME}/SKILL.md differs from what comes with Trimtab" in result.stderr
    assert "asserts.py" not in result.stderr
    assert "--force" in result.stderr
    assert entry.read_text() == "mine"
    assert not asserts.exists()


def test_force_replaces_what_was_changed_and_leaves_alone_what_is_not_ours(trimtab, here):
    trimtab("skills", "install", "agents")
    (here / "agents" / NAME / "SKILL.md").write_text("mine")
    (here / "agents" / NAME / "notes.md").write_text("notes")
    result = trimtab("skills", "install", "agents", "--force")
    assert result.exit_code == 0
    assert f"Wrote agents/{NAME}/SKILL.md: replaced another version" in result.stdout
    assert files_below(here / "agents" / NAME) == {**ours(), "notes.md": b"notes"}


def test_what_was_done_is_there_as_json(trimtab, here):
    trimtab("skills", "install", "agents")
    (here / "agents" / NAME / "asserts.py").write_text("mine")
    (here / "agents" / NAME / "SKILL.md").unlink()
    result = trimtab("skills", "install", "agents", "--force", "--json", "-")
    document = json.loads(result.stdout)
    (skill,) = [skill for skill in document["skills"] if skill["name"] == NAME]
    states = {Path(file["path"]).name: file["state"] for file in skill["files"]}
    assert (document["version"], skill["folder"]) == (1, f"agents/{NAME}")
    assert states.pop("asserts.py") == "replaced"
    assert states.pop("SKILL.md") == "written"
    assert set(states.values()) <= {"unchanged"}
    # then: beside a file for it, a person is told too
    told = trimtab("skills", "install", "agents", "--json", "done.json")
    assert "Wrote done.json" in told.stdout
    assert json.loads((here / "done.json").read_text())["skills"]


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("file", "file is no folder"),
        ("file/below", "file is no folder"),
        ("dangling", "dangling is no folder"),
        ("linked", f"linked/{NAME} is a symbolic link"),
        ("blocked", f"blocked/{NAME}/SKILL.md is a folder"),
        ("taken", f"taken/{NAME} is no folder"),
        ("a\0b", "cannot be the name"),
        ("", "cannot be the name"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--force",)])
def test_what_is_in_the_way_is_named_with_force_or_without(trimtab, here, folder, reason, more):
    # given
    (here / "file").write_text("mine")
    (here / "elsewhere").mkdir()
    (here / "dangling").symlink_to(here / "nowhere")
    for name in ("linked", "blocked", "taken"):
        (here / name).mkdir()
    (here / "linked" / NAME).symlink_to(here / "elsewhere")
    (here / "blocked" / NAME / "SKILL.md").mkdir(parents=True)
    (here / "taken" / NAME).write_text("mine")
    before = sorted(here.rglob("*"))
    # when
    result = trimtab("skills", "install", folder, *more)
    # then
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("target", ["mine.md", "nowhere.md"])
def test_force_replaces_a_link_and_not_what_it_leads_to(trimtab, here, target):
    # given
    entry = here / "agents" / NAME / "SKILL.md"
    entry.parent.mkdir(parents=True)
    (here / "mine.md").write_text("mine")
    entry.symlink_to(here / target)
    # when, then
    assert trimtab("skills", "install", "agents").exit_code == 2
    assert entry.readlink() == here / target
    assert trimtab("skills", "install", "agents", "--force").exit_code == 0
    assert not entry.is_symlink()
    copied = {f"agents/{skill}/{name}": data for skill in NAMES for name, data in ours(skill).items()}
    assert files_below(here) == {**copied, "mine.md": b"mine"}


@pytest.mark.skipif(os.geteuid() == 0, reason="whoever may write everywhere is refused nowhere")
def test_a_folder_that_may_not_be_written_is_one_line(trimtab, here):
    (here / "agents").mkdir(mode=0o555)
    result = trimtab("skills", "install", "agents")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert "Check the path, its permissions" in result.stderr


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a place where nobody makes a folder")
def test_a_place_where_no_folder_can_be_made_is_one_line(trimtab):
    result = trimtab("skills", "install", "/proc/agents")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_the_report_does_not_write_over_what_is_installed(trimtab, here):
    trimtab("skills", "install", "agents")
    result = trimtab("skills", "install", "agents", "--json", f"agents/{NAME}/SKILL.md")
    assert (result.exit_code, "would both write" in result.stderr) == (2, True)
    assert files_below(here / "agents" / NAME) == ours()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("instal", "agents"), "instal"),
        (("install",), "DIR"),
        (("--json", "-", "install", "agents"), "Write: trimtab skills install ... --json FILE"),
    ],
)
def test_a_wrong_call_is_told_what_is_right(trimtab, here, arguments, said):
    result = trimtab("skills", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert not list(here.iterdir())


@pytest.fixture
def unpacked(here):
    """The package where a wheel would put it, without what the build puts into it; and its command, as a process."""
    shutil.copytree(ROOT / "src" / "trimtab", here / "site" / "trimtab", ignore=shutil.ignore_patterns("__pycache__"))

    def run(*arguments):
        program = "import sys; from trimtab.cli import main; main(sys.argv[1:])"
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=here,
            env={**os.environ, "PYTHONPATH": str(here / "site")},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_an_installed_wheel_has_the_skills_with_it(unpacked, here):
    # given: what the build is told to put into the package
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    for source, place in build["wheel"]["force-include"].items():
        shutil.copytree(ROOT / source, here / "site" / place, ignore=shutil.ignore_patterns("__pycache__"))
    # when
    result = unpacked("skills", "install", "agents")
    # then
    assert (result.returncode, result.stderr) == (0, "")
    assert files_below(here / "agents" / NAME) == ours()
    # then: a wheel is built from the source archive, which must hold them too
    assert "skills" in build["sdist"]["include"]


def test_an_installation_without_skills_says_what_to_do(unpacked):
    result = unpacked("skills", "install", "agents")
    assert (result.returncode, result.stdout) == (1, "")
    assert "no skill came with this installation of Trimtab" in result.stderr
    assert "Install it again" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_skill_that_does_not_say_its_name_is_not_installed(unpacked, here):
    folder = here / "site" / "trimtab" / "skills" / "nameless"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: other\ndescription: something\n---\n")
    result = unpacked("skills", "install", "agents")
    assert (result.returncode, "does not begin with its name, nameless" in result.stderr) == (1, True)
    assert not (here / "agents").exists()
