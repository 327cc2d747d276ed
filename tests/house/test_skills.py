"""What a skill tells an agent is true: its commands, options, files and names exist, and its factory is proven."""

import ast
import dataclasses
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

import trimtab
from trimtab import moe
from trimtab.cli import VERBS
from trimtab.proof import Loop
from trimtab.proof.written_tests import write_tests

ROOT = Path(__file__).resolve().parents[2]
SKILLS = sorted(path.parent for path in (ROOT / "skills").glob("*/SKILL.md"))
GUARD_SKILL = ROOT / "skills" / "loss-spike-guard"

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

OBJECTS = {
    "Loop": (Loop,),
    "kit": (trimtab.LossKit(), trimtab.TokenNormedLossKit()),
    "run": (trimtab.Run,),
    "window": (trimtab.WindowResult,),
    "guard": (trimtab.GuardConfig(), trimtab.PerTokenLossGuard(rule="robust")),
    "moe": (moe,),
    "audit": (moe.AuxAudit(weights=(), findings=(), notes=()),),
}
"""What the names in the skill's code stand for."""

FACTORIES = ("build", "build_run", "build_trainer")
FACTORY_LINE = 'FACTORY = "module:factory"\n'
ROOT_LINE = "ROOT = Path(__file__).resolve().parents[{}]\n"

NOT_OURS = {"no_sync", "zero_grad", "nan_to_num", "loss_mask", "forward_step", "backward_step", "optimizer_step"}
"""Names with an underscore that are torch's, a batch's or an engine's."""


def texts_of(folder):
    return {path: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}


def fenced(folder, *languages):
    return [
        code for text in texts_of(folder).values() for language, code in FENCE.findall(text) if language in languages
    ]


def spans(folder):
    return [span for text in texts_of(folder).values() for span in SPAN.findall(FENCE.sub("", text))]


def python_of(folder):
    """Every piece of Python in a skill's texts, parsed: whole blocks, and what stands in a line of text."""
    trees = [ast.parse(code) for code in fenced(folder, "python")]
    for span in spans(folder):
        try:
            trees.append(ast.parse(span))
        except SyntaxError:
            continue  # a command, a path, a part of a line
    return trees


def resolved(dotted):
    """The object behind `trimtab.a.b`; AttributeError where there is none."""
    value, name = trimtab, "trimtab"
    for part in dotted.split(".")[1:]:
        name = f"{name}.{part}"
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(name)
            except ModuleNotFoundError:
                raise AttributeError(f"there is no {name}") from None
    return value


def meant_by(node):
    """The objects of ours that an expression may stand for; none where it is none of ours."""
    dotted = ast.unparse(node)
    if dotted.split(".")[0] == "trimtab":
        return [resolved(dotted)]
    if dotted in trimtab.__all__:
        return [getattr(trimtab, dotted)]
    if dotted == "Loop":
        return [Loop]
    if isinstance(node, ast.Attribute):
        return [getattr(kind, node.attr) for kind in OBJECTS.get(owner(node.value), ()) if hasattr(kind, node.attr)]
    return []


def owner(node):
    """What an attribute is taken of: `kit` in both `kit.x` and `self.kit.x`."""
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)


@pytest.mark.parametrize("folder", SKILLS, ids=lambda path: path.name)
def test_a_skill_begins_as_agents_read_it(folder):
    # given
    text = (folder / "SKILL.md").read_text(encoding="ascii")
    _, front, body = text.split("---\n", 2)
    # when
    facts = yaml.safe_load(front)
    # then
    assert set(facts) == {"name", "description"}
    assert facts["name"] == folder.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", facts["name"])
    assert 100 < len(facts["description"]) <= 1024
    assert len(body.splitlines()) < 300


@pytest.mark.parametrize("folder", SKILLS, ids=lambda path: path.name)
def test_a_skill_is_plain_ascii_and_whole_where_it_is_copied_to(folder):
    for path, text in texts_of(folder).items():
        assert text.isascii()
        outside = [link for link in LINK.findall(text) if not (path.parent / link).resolve().is_relative_to(folder)]
        missing = [link for link in LINK.findall(text) if not (path.parent / link).exists()]
        assert (path.name, outside, missing) == (path.name, [], [])


@pytest.mark.parametrize("folder", SKILLS, ids=lambda path: path.name)
def test_every_command_and_option_exists(folder):
    # given: `trimtab VERB ...` in a line or a block; `--option ...` alone is an option of one of its verbs
    pieces = [*spans(folder), *(line for code in fenced(folder, "", "sh") for line in code.splitlines())]
    calls = [piece.split()[1:] for piece in pieces if piece.split()[:1] == ["trimtab"]]
    named = {call[0] for call in calls}
    assert named <= set(VERBS)
    # when
    context = click.Context(click.Command("trimtab"))
    commands = {verb: importlib.import_module(VERBS[verb].module).command for verb in named}
    options = {
        verb: {name for parameter in command.get_params(context) for name in parameter.opts}
        for verb, command in commands.items()
    }
    # then
    for verb, *words in calls:
        if isinstance(commands[verb], click.Group) and words and not words[0].startswith("-"):
            assert words[0] in commands[verb].commands
            continue
        assert {word for word in words if word.startswith("--")} <= options[verb] | {"--help"}
    alone = {piece.split()[0] for piece in pieces if piece.startswith("--")}
    assert alone <= set().union(*options.values())


@pytest.mark.parametrize("folder", SKILLS, ids=lambda path: path.name)
def test_every_name_of_ours_exists(folder):
    texts = [*texts_of(folder).values(), *(path.read_text() for path in folder.glob("*.py"))]
    dotted = {f"trimtab{found}" for text in texts for found in re.findall(r"\btrimtab((?:\.[A-Za-z_]\w*)+)", text)}
    assert dotted
    for name in dotted:
        resolved(name)


@pytest.mark.parametrize("folder", SKILLS, ids=lambda path: path.name)
def test_every_call_in_its_code_can_be_made(folder):
    nodes = [node for tree in python_of(folder) for node in ast.walk(tree)]
    members = [node for node in nodes if isinstance(node, ast.Attribute) and owner(node.value) in OBJECTS]
    wrong = [ast.unparse(node) for node in members if not meant_by(node)]
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        given = {keyword.arg for keyword in call.keywords}
        functions = meant_by(call.func)
        if functions and not any(given <= set(inspect.signature(function).parameters) for function in functions):
            wrong.append(ast.unparse(call))
    assert members
    assert wrong == []


def test_every_name_with_an_underscore_is_one_of_ours_or_known():
    # given: what the guard's skill may name: members, fields of the factory's loop, keys, settings
    ours = {name for kinds in OBJECTS.values() for kind in kinds for name in dir(kind)}
    ours |= {field.name for field in dataclasses.fields(Loop)}
    named = {span for span in spans(GUARD_SKILL) if re.fullmatch(r"[a-z]+(_[a-z]+)+", span)}
    assert named - ours - NOT_OURS == set()
    # then: the fields that a comment lists are a window's
    listed = [name for code in fenced(GUARD_SKILL, "python") for name in re.findall(r"(?<=[# ])\.(\w+)(?=[ \n])", code)]
    assert listed
    assert all(hasattr(trimtab.WindowResult, name) for name in listed)


def test_the_settings_it_shows_are_those_that_a_guard_reads():
    (shown,) = [yaml.safe_load(code)["optim"] for code in fenced(GUARD_SKILL, "yaml")]
    config = trimtab.GuardConfig.from_optim(shown)
    assert config.enabled
    for key in shown:  # each is read: without it the settings differ
        assert trimtab.GuardConfig.from_optim({name: shown[name] for name in shown if name != key}) != config


def test_the_table_of_the_factory_lists_what_a_loop_holds():
    text = (GUARD_SKILL / "factory.md").read_text()
    table = text.partition("| field | what it is |\n")[2].partition("\n\n")[0]
    listed = {name for row in table.splitlines()[1:] for name in SPAN.findall(row.split("|")[1])}
    assert listed == {field.name for field in dataclasses.fields(Loop)}


# The factories that it shows, under the proof that it describes.


@pytest.fixture
def write_recipe(tmp_path):
    """Writes the factories of factory.md as a module `recipe`, with a replacement in the code or without."""

    def write(old="", new=""):
        # Its first block is the signature.
        _, *blocks = (code for language, code in FENCE.findall((GUARD_SKILL / "factory.md").read_text()) if language)
        code = "\n\n".join(blocks)
        assert old in code
        (tmp_path / "recipe.py").write_text(code.replace(old, new))
        return tmp_path

    return write


def prove(folder, factory):
    """What `trimtab prove` says of it in one process, and its exit code."""
    command = [Path(sys.executable).with_name("trimtab"), "prove", factory, "--processes", "1", "--json", "-"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return result.returncode, json.loads(result.stdout)


def run_asserts(folder, factory):
    """Runs the skill's asserts.py as an agent has copied it, with its line FACTORY set."""
    code = (GUARD_SKILL / "asserts.py").read_text()
    assert code.count(FACTORY_LINE) == 1
    place = folder / "tests" / "skills" / "loss-spike-guard" / "asserts.py"
    place.parent.mkdir(parents=True)
    place.write_text(code.replace(FACTORY_LINE, f'FACTORY = "{factory}"\n'))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", place]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    "factory", [FACTORIES[0], *(pytest.param(name, marks=pytest.mark.long) for name in FACTORIES[1:])]
)
def test_a_factory_that_it_shows_is_proven_in_one_process(write_recipe, factory):
    code, document = prove(write_recipe(), f"recipe:{factory}")
    assert (code, document["proven"]) == (0, True)
    # then: every fault was planted, those that take supervised tokens away too
    assert {case["outcome"] for case in document["cases"]} == {"proven"}


@pytest.mark.long
def test_the_proof_it_describes_fails_without_the_guard_it_describes(write_recipe):
    # given: the kit of the engine, and nobody who asks for its guard
    folder = write_recipe("self.kit.build_loss_guard(optim)", "self.kit.build_loss_guard({})")
    # when
    code, document = prove(folder, "recipe:build")
    # then
    assert (code, document["proven"]) == (3, False)


@pytest.mark.long
@pytest.mark.parametrize("factory", FACTORIES[:2])  # the trainer's has its two processes in the tests of the proof
def test_asserts_py_passes_on_a_factory_that_it_shows(write_recipe, factory):
    result = run_asserts(write_recipe(), f"recipe:{factory}")
    assert result.returncode == 0, result.stdout


@pytest.mark.long
def test_asserts_py_fails_where_backward_is_called_on_the_loss_that_went_in(write_recipe):
    accumulated = "self.kit.accumulate_microbatch(loss_sum, num_tokens)"
    folder = write_recipe(f"{accumulated}.backward()", f"{accumulated}\n            (loss_sum / 4096.0).backward()")
    result = run_asserts(folder, "recipe:build")
    assert result.returncode == 1
    assert " Found " in result.stdout
    assert "no fault" not in result.stdout.partition("short test summary")[2]


def test_the_recipe_of_this_repository_proves_itself_by_the_same_file():
    ours = (GUARD_SKILL / "asserts.py").read_text()
    copied = (ROOT / "recipes" / "sft" / "tests" / "skills" / "loss-spike-guard" / "asserts.py").read_text()
    ours = ours.replace(ROOT_LINE.format(3), ROOT_LINE.format(5))  # its tests lie two folders deeper
    assert copied == ours.replace(FACTORY_LINE, 'FACTORY = "recipes.sft.engine:build"\n')


def test_asserts_py_is_the_proof_that_write_tests_writes_but_for_its_docstring_and_its_place(tmp_path, monkeypatch):
    # given
    monkeypatch.chdir(tmp_path)
    written, *_ = write_tests(Path("tests"), factory="module:factory").written
    # then
    ours, theirs = (path.read_text().split('"""\n', 1)[1] for path in (GUARD_SKILL / "asserts.py", written))
    assert ours == theirs.replace(ROOT_LINE.format(1), ROOT_LINE.format(3))
