"""`trimtab prove`, as a person or a script calls it: exit codes, what is said, what is written."""

import json
import shutil
import sys
from pathlib import Path

import pytest

LOOP = Path(__file__).resolve().parents[2] / "proof" / "scalar_loop.py"


@pytest.fixture
def loop(here, monkeypatch):
    """A module of the current folder whose name no other test has imported."""
    monkeypatch.setattr(sys, "path", list(sys.path))  # which the folder is put on
    name = f"loop_of_{here.name.replace('-', '_')}"
    shutil.copy(LOOP, here / f"{name}.py")
    return name


def test_a_sound_loop_is_proven_case_by_case(trimtab, loop, here):
    result = trimtab("prove", f"{loop}:build", "--processes", "1", "--json", "proof.json")
    # then: a person sees each case while it runs, then all of them together
    assert result.exit_code == 0, result.output
    assert "proven  NaN, last micro-batch\n" in result.stderr
    assert result.stdout.startswith(f"{loop}:build: proven. 22 cases in ")
    assert result.stdout.endswith("Wrote proof.json\n")
    assert "a word of the loop" not in result.output
    # then: and a program gets the same
    document = json.loads((here / "proof.json").read_text())
    assert (document["version"], document["factory"], document["proven"]) == (1, f"{loop}:build", True)
    assert len(document["cases"]) == 22
    assert document["mistakes"] == []


def test_a_batch_without_labels_is_told_and_proves_the_rest(trimtab, loop):
    result = trimtab("prove", f"{loop}:build", "--processes", "1", "--json", "-")
    document = json.loads(result.stdout)
    outcomes = {case["case"]: case["outcome"] for case in document["cases"]}
    assert [name for name, outcome in outcomes.items() if outcome == "not_applicable"] == [
        name for name in outcomes if name.startswith("no tokens")
    ]
    assert result.exit_code == 0


def test_a_loop_that_ignores_its_guard_fails_with_the_mistake_and_two_numbers(trimtab, loop):
    result = trimtab("prove", f"{loop}:unguarded", "--processes", "1", "--json", "-")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert not document["proven"]
    failed = [case for case in document["cases"] if case["outcome"] == "failed"]
    assert len(failed) == 16
    assert all(case["check"] and case["mistake"] and case["text"] for case in failed)
    assert all(case["found"] != case["expected"] for case in failed)
    assert document["mistakes"] == list(dict.fromkeys(case["mistake"] for case in failed))


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("nosuchmodule:build", "there is no module nosuchmodule in "),
        ("{loop}.inner:build", "there is no module {loop}.inner in "),
        ("{loop}:nosuch", "has no nosuch; it has build, unguarded,"),
        ("{loop}:number", "found an object of type int, expected a function build(guard)"),
        ("{loop}:unbuildable", "FileNotFoundError: no rows.jsonl here"),
        ("{loop}:no_loop", "The factory gave an object of type int"),
        ("{loop}:dying", "the loop ended the process: SystemExit: 4"),
        ("broken_module:build", "importing its module failed: NameError: name 'undefined' is not defined"),
        (
            "lacking_module:build",
            "importing its module failed: ModuleNotFoundError: No module named 'not_installed_here'",
        ),
    ],
)
def test_a_factory_that_cannot_be_loaded_or_built_is_one_line_and_exit_code_1(trimtab, loop, here, factory, said):
    (here / "broken_module.py").write_text("undefined\n")
    (here / "lacking_module.py").write_text("import not_installed_here\n")
    result = trimtab("prove", factory.format(loop=loop), "--processes", "1")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert said.format(loop=loop) in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("no_colon",),
        ("a:b:c",),
        ("../escape:build",),
        ("m:build", "--processes", "3"),
        ("m:build", "--json", "../proof.json"),
        ("m:build", "--write-tests", "../tests"),
    ],
)
def test_a_call_that_makes_no_sense_is_exit_code_2(trimtab, arguments):
    assert trimtab("prove", *arguments).exit_code == 2


def test_nothing_is_proven_while_trimtab_is_switched_off(trimtab, loop, monkeypatch):
    monkeypatch.setenv("TRIMTAB", "off")
    result = trimtab("prove", f"{loop}:build")
    assert result.exit_code == 2
    assert "TRIMTAB=off is set" in result.stderr


def test_the_factory_that_the_documentation_shows_is_proven(trimtab, loop, here):
    page = Path(__file__).resolve().parents[3] / "docs" / "prove.md"
    name = f"{loop}_of_the_page"
    (here / f"{name}.py").write_text(page.read_text().partition("```python\n")[2].partition("```")[0])
    result = trimtab("prove", f"{name}:build", "--processes", "1")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{name}:build: proven. 22 cases in ")
    assert "22 proven" in result.stdout
