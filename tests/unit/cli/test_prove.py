"""`trimtab prove`, as a person or a script calls it: exit codes, what is said, what is written."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from trimtab.proof import case_names

LOOP = Path(__file__).resolve().parents[2] / "proof" / "scalar_loop.py"


HOSTILE = """import os
import sys
import torch
from {loop} import build as sound


def exits(guard):
    os._exit(0)


def base(guard):
    raise BaseException("neither error nor exit.")


def unseeded(guard):
    loop = sound(guard)
    loop.windows = [[(x + float.fromhex("0x" + os.urandom(4).hex()) / 2**32, y) for x, y in w] for w in loop.windows]
    return loop


ONE = sound(None)


def one_for_all(guard):
    return ONE


def changing(guard):
    assert sys.argv == ["prove-loop"]
    os.write(1, b"beneath\\n")
    os.chdir("/")
    os.environ.clear()
    sys.argv[:] = []
    sys.argv.append("prove-loop")
    return sound(guard)
"""


REFUSED = {
    "nosuchmodule:build": "there is no module nosuchmodule in ",
    "{loop}.inner:build": "there is no module {loop}.inner in ",
    "{loop}:nosuch": "has no nosuch; it has build, unguarded,",
    "{loop}:number": "found an object of type int, expected a function build(guard)",
    "{loop}:unbuildable": "FileNotFoundError: no rows.jsonl here ({loop}.py:",
    "{loop}:no_loop": "The factory gave an object of type int",
    "{loop}:dying": "SystemExit: 4 ({loop}.py:",
    "broken_module:build": "failed: NameError: name 'undefined' is not defined (broken_module.py:1)",
    "lacking_module:build": "failed: ModuleNotFoundError: No module named 'not_installed_here' (lacking_module",
    "out_module:build": "in one process: the process ended with exit code 0; the last it said: by itself. Make",
    "hostile_module:exits": "one process: the process ended with exit code 0; the last it said: a word of the loop. ",
    "hostile_module:base": "BaseException: neither error nor exit (hostile_module.py:12). Make",
    "hostile_module:unseeded": "gives another loop each time, in one process: of two trainings by build(None), ",
    "hostile_module:one_for_all": "before the first window, expected 0. Seed its data",
}
QUICK = ("{loop}:nosuch", "hostile_module:exits", "hostile_module:base", "hostile_module:unseeded")


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
    num_cases = len(case_names(processes=(1,)))
    told = result.stderr.splitlines()
    assert told[0] == f"{num_cases} cases of {loop}:build"
    assert told[1] == f" 1/{num_cases}  proven  guard off, no fault"
    assert any(line.endswith("proven  NaN, last micro-batch") for line in told)
    assert len(told) == 1 + num_cases
    assert result.stdout.startswith(f"{loop}:build: proven. {num_cases} cases in ")
    assert result.stdout.endswith("Wrote proof.json\n")
    assert "a word of the loop" not in result.output
    # then: and a program gets the same
    document = json.loads((here / "proof.json").read_text())
    assert (document["version"], document["factory"], document["proven"]) == (1, f"{loop}:build", True)
    assert len(document["cases"]) == num_cases
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
    assert {case["fault"] for case in failed} >= {"finite spike", "NaN", "Inf", "inf derivative"}
    assert all(case["check"] and case["mistake"] and case["text"] for case in failed)
    assert all(case["found"] != case["expected"] for case in failed)
    assert document["mistakes"] == list(dict.fromkeys(case["mistake"] for case in failed))


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        pytest.param(factory, said, marks=[] if factory in QUICK else pytest.mark.long)
        for factory, said in REFUSED.items()
    ],
)
def test_a_factory_that_cannot_be_loaded_or_built_is_one_line_and_exit_code_1(trimtab, loop, here, factory, said):
    (here / "hostile_module.py").write_text(HOSTILE.format(loop=loop))
    (here / "out_module.py").write_text('import os\nprint("by itself", flush=True)\nos._exit(0)\n')
    (here / "broken_module.py").write_text("undefined\n")
    (here / "lacking_module.py").write_text("import not_installed_here\n")
    result = trimtab("prove", factory.format(loop=loop), "--processes", "1")
    assert result.exit_code == 1
    assert result.stdout == ""
    _, error = result.stderr.splitlines()
    assert error.startswith("Error: ")
    assert ".." not in error
    assert said.format(loop=loop) in error


def test_a_loop_that_would_change_this_process_changes_its_own(trimtab, loop, here):
    (here / "hostile_module.py").write_text(HOSTILE.format(loop=loop))
    before = (dict(os.environ), list(sys.argv))
    arguments = ("--processes", "1", "--json", "proof.json", "--write-tests", "checks")
    result = trimtab("prove", "hostile_module:changing", *arguments)
    assert result.exit_code == 0, result.output
    assert (dict(os.environ), list(sys.argv), Path.cwd()) == (*before, here)
    assert "beneath" not in result.output
    # then: what was asked for lies where it was asked for
    assert json.loads((here / "proof.json").read_text())["proven"]
    assert (here / "checks" / "test_trimtab_proof.py").exists()


def test_beside_a_document_on_standard_output_what_was_written_is_told_on_the_other(trimtab, loop, here):
    result = trimtab("prove", f"{loop}:build", "--processes", "1", "--json", "-", "--write-tests", "checks")
    assert json.loads(result.stdout)["proven"]
    assert "Wrote checks/test_trimtab_proof.py" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("no_colon",),
        ("a:b:c",),
        ("../escape:build",),
        ("loop.py:build",),
        ("module:factory",),
        ("m:build", "--processes", "3"),
        ("m:build", "--json", "../proof.json"),
        ("m:build", "--write-tests", "../tests"),
    ],
)
def test_a_call_that_makes_no_sense_is_exit_code_2(trimtab, arguments):
    assert trimtab("prove", *arguments).exit_code == 2


@pytest.mark.parametrize(
    ("factory", "said"),
    [("recipes.loop.py:build", "write recipes.loop:build."), ("module:factory", "set the line FACTORY")],
)
def test_a_name_that_is_nearly_right_is_told_what_it_should_be(trimtab, factory, said):
    assert said in trimtab("prove", factory).stderr


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
    assert "not applicable" not in result.stdout
