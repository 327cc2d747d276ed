"""Rows: what is taken from a tree of sources, and that it is the same every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trimtab.demo.rows import MAX_CHARS, MIN_CHARS, MIN_ROWS, NUM_ROWS, Row, rows_from_modules, rows_from_sources

SOURCE = '''
def wide(first, /, second, *rest, third=None, **more):
    """Return the first of two values, whatever they are."""

async def later():
    """Wait for what comes later and return it then."""

def _private():
    """Nobody outside of this module should call this function."""

def undocumented():
    pass

def terse():
    """Too short."""

class Box:
    """A box that holds one thing and gives it back when asked."""

    def open(self, key):
        """Open the box with the key, or raise KeyError."""
        def inner():
            """A function inside of a function is nobody's question."""

    def __len__(self):
        """Return the number of things that are in the box."""

class _Hidden:
    """A class that nobody outside of this module should use."""

    def shown(self):
        """A method of a hidden class is as hidden as the class."""

if True:
    def conditional():
        """Return what this platform has to offer, if anything."""
else:
    def alternative():
        """Return what the other platforms have to offer, if anything."""

try:
    def tried():
        """Return what the C accelerator would have returned."""
except ImportError:
    def fallback():
        """Return the same, in Python, only a good deal slower."""
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "shop/__init__.py": SOURCE,
        "shop/till.py": '"""Module text is no row of its own, long as it may be."""\n\ndef count(coins):\n'
        '    """Return   the first of two values,\n    whatever they are."""\n\ndef close(self):\n'
        '    """Close the till, and refuse every coin from then on."""\n',
        "shop/_safe.py": 'def lock():\n    """A public function of a private module is private."""\n',
        "test/check.py": 'def check():\n    """A test of the library is no text worth learning."""\n',
        "site-packages/other.py": 'def other():\n    """What was installed beside the library is not the library."""\n',
        "broken.py": "def broken(:\n",
        "binary.py": "\0\0\0",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_public_functions_classes_and_methods_with_a_docstring_of_the_right_length_become_rows(tree: Path) -> None:
    questions = {row.question for row in rows_from_sources(tree)}

    assert questions == {
        "shop: def wide(first, second)",
        "shop: def later()",
        "shop: class Box",
        "shop.Box: def open(self, key)",
        "shop: def conditional()",
        "shop: def alternative()",
        "shop: def tried()",
        "shop: def fallback()",
        "shop.till: def close(self)",
    }


def test_a_text_that_stands_twice_is_one_row_whatever_its_white_space(tree: Path) -> None:
    answers = [" ".join(row.answer.split()) for row in rows_from_sources(tree)]

    assert answers.count("Return the first of two values, whatever they are.") == 1


def test_a_limit_takes_the_first_rows_of_the_same_order(tree: Path) -> None:
    everything = rows_from_sources(tree)

    assert rows_from_sources(tree, limit=3) == everything[:3]


def test_a_folder_without_sources_gives_no_rows(tmp_path: Path) -> None:
    assert rows_from_sources(tmp_path) == []
    assert rows_from_sources(tmp_path / "absent") == []


def test_the_standard_library_gives_a_whole_demo_of_short_distinct_rows() -> None:
    rows = rows_from_sources()

    assert MIN_ROWS <= len(rows) <= NUM_ROWS
    assert all(MIN_CHARS <= len(row.answer) <= MAX_CHARS for row in rows)
    assert len({row.answer for row in rows}) == len(rows)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_reads_the_same_rows_in_the_same_order_and_imports_no_module_it_reads(hash_seed: str) -> None:
    code = (
        "import sys\n"
        "from trimtab.demo.rows import rows_from_sources\n"
        "rows = rows_from_sources(limit=50)\n"
        "assert not {'antigravity', 'this', 'turtle', 'asyncio', 'email'} & set(sys.modules)\n"
        "print(ascii([tuple(row) for row in rows]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == ascii([tuple(row) for row in rows_from_sources(limit=50)])


def test_loaded_modules_of_the_standard_library_give_rows_without_their_sources() -> None:
    # Given a stand-in for a module of the standard library, and one of somebody else with the same content.
    def borrow(book: str) -> None:
        """Take a book home, and bring it back within a month."""

    class Shelf:
        """A shelf on which books stand side by side, in order."""

        def add(self) -> None:
            """Put one more book at the right end of the shelf."""

        def _shake(self) -> None:
            """Nobody outside of this class should shake the shelf."""

    module = ModuleType("json")
    vars(module).update(borrow=borrow, Shelf=Shelf, SIZE=3)

    # When rows are taken from both.
    rows = rows_from_modules({"json": module, "not_the_library": module, "json._private": module})

    # Then only the library's public names are there.
    assert sorted(rows) == [
        Row("json.Shelf: def add", "Put one more book at the right end of the shelf."),
        Row("json: class Shelf", "A shelf on which books stand side by side, in order."),
        Row("json: def borrow", "Take a book home, and bring it back within a month."),
    ]
