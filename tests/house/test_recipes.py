"""A recipe is what somebody copies: it imports what is public, and nothing that may move."""

import ast
import importlib

import pytest

import trimtab

ROOMS = ("trimtab.checkpoint", "trimtab.memory", "trimtab.moe", "trimtab.proof")
"""The rooms that are used by their own names; each says in `__all__` what is public of it."""


@pytest.fixture(scope="module")
def recipes(root):
    """The files that a reader copies: not the tests, and not the study, which looks into logs as Trimtab does."""
    files = [path.relative_to(root / "recipes") for path in sorted((root / "recipes").rglob("*.py"))]
    copied = [path for path in files if {"tests", "study"}.isdisjoint(path.parts)]
    assert len(copied) > 15
    return {str(path): ast.parse((root / "recipes" / path).read_text(encoding="ascii")) for path in copied}


def used(tree):
    """What a module takes of Trimtab, by its dotted name: imports, and attributes of the package itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "trimtab":
            yield f"trimtab.{node.attr}"


def public():
    of_rooms = {f"{room}.{name}" for room in ROOMS for name in importlib.import_module(room).__all__}
    return {"trimtab", *ROOMS, *of_rooms, *(f"trimtab.{name}" for name in trimtab.__all__)}


def test_recipes_import_public_names_only(recipes):
    names = public()
    private = {
        file: found
        for file, tree in recipes.items()
        if (found := sorted({name for name in used(tree) if name.partition(".")[0] == "trimtab"} - names))
    }
    assert private == {}


@pytest.mark.parametrize(
    "line",
    ["from trimtab.text import plain", "import trimtab.values", "x = trimtab.errors", "from trimtab.moe import torch"],
)
def test_what_is_not_public_is_recognised(line):
    assert set(used(ast.parse(line))) - public()


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_of_a_room_is_there(room):
    module = importlib.import_module(room)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
