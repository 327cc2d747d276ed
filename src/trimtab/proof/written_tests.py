"""The proof of a training loop as pytest files in its own repository.

Enters: a folder, the name of a factory. Leaves: `test_trimtab_proof.py` there, one test a case, and beside it
`test_structure.py` and `test_smoke.py`. Invariant: a file that is there already stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEAD: Final = """
FACTORY = "{factory}"
ROOT = {root}
\"\"\"The folder that FACTORY is imported from.\"\"\"
"""

_BUILD: Final = '''

@pytest.fixture(scope="module")
def build():
    """The factory, imported with ROOT as the current folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield load_factory(FACTORY)
'''

_PROOF: Final = (
    '''"""The proof that the loss guard works in this training loop, as it is wired; written by `trimtab prove`.

It trains the loop of FACTORY under planted faults, and compares with a training that never saw them. One test a case.
"""

from pathlib import Path

import pytest

from trimtab.proof import case_names, prove
'''
    + _HEAD
    + '''PROCESSES = {processes}


@pytest.fixture(scope="module")
def cases():
    """Every case of one proof, by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        proof = prove(FACTORY, processes=PROCESSES)
    return {{case.case: case for case in proof.cases}}


@pytest.mark.parametrize("name", case_names(processes=PROCESSES))
def test_a_case_is_proven(cases, name):
    """A case that the loop has nothing to plant in is skipped, with the reason."""
    case = cases[name]
    if case.outcome == "not_applicable":
        pytest.skip(case.text)
    assert case.outcome == "proven", f"{{case.text}} Found {{case.found}}, expected {{case.expected}}."
'''
)

_STRUCTURE: Final = (
    '''"""The parts of the training loop that FACTORY builds are there; that they work is for the proof to show."""

from pathlib import Path

import pytest
import torch

import trimtab
from trimtab.proof import Loop
from trimtab.proof.factory import load_factory
'''
    + _HEAD
    + _BUILD
    + '''

@pytest.mark.parametrize("guard", [None, trimtab.GuardConfig()], ids=["no guard", "a guard that is off"])
def test_the_factory_builds_a_loop(build, guard):
    """It takes None as well as the settings of a guard."""
    torch.manual_seed(0)
    assert isinstance(build(guard), Loop)


def test_the_optimizer_holds_every_trainable_parameter(build):
    """A parameter that nobody steps would be proven whatever the guard does."""
    torch.manual_seed(0)
    loop = build(None)
    stepped = {{id(parameter) for group in loop.optimizer.param_groups for parameter in group["params"]}}
    names = [name for name, parameter in loop.model.named_parameters() if parameter.requires_grad]
    assert [name for name in names if id(loop.model.get_parameter(name)) not in stepped] == []


def test_the_windows_are_as_a_proof_needs_them(build):
    """At least 6 windows of at least 3 micro-batches."""
    torch.manual_seed(0)
    windows = build(None).windows
    assert len(windows) >= 6
    assert min(len(window) for window in windows) >= 3
'''
)

_SMOKE: Final = (
    '''"""Two windows of the training loop that FACTORY builds run, and move the model; no more is shown here."""

from pathlib import Path

import pytest
import torch

import trimtab
from trimtab.proof.factory import load_factory
'''
    + _HEAD
    + """GUARDS = {{
    "no guard": None,
    "a guard that is off": trimtab.GuardConfig(),
    "a guard that is on": trimtab.GuardConfig(multiplier=10.0, min_history=3),
}}
"""
    + _BUILD
    + '''

@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_two_windows_train(build, guard):
    """Every parameter stays finite, and one at least has moved."""
    torch.manual_seed(0)
    loop = build(guard)
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    loop.train(loop.windows[:2])
    after = [parameter.detach() for parameter in loop.model.parameters()]
    assert all(bool(parameter.isfinite().all()) for parameter in after)
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
'''
)

_FILES: Final = {"test_trimtab_proof.py": _PROOF, "test_structure.py": _STRUCTURE, "test_smoke.py": _SMOKE}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTests:
    """What became of each file.

    Attributes:
        written: Files that were not there before.
        left: Files that were, and are what they were.
    """

    written: tuple[Path, ...]
    left: tuple[Path, ...]


def write_tests(folder: Path, *, factory: str, processes: Sequence[int] = (1, 2)) -> WrittenTests:
    """Leaves the proof of a loop as pytest files.

    Args:
        folder: Where, below the current folder; made if it is not there.
        factory: `module:factory`, as it is imported from the current folder.
        processes: How many processes the proof trains in: 1, 2 or both.

    Returns:
        Which files were written, and which were left.

    Raises:
        OSError: The folder or a file cannot be written.
    """
    folder.mkdir(exist_ok=True)
    written, left = [], []
    for name, template in _FILES.items():
        path = folder / name
        text = template.format(factory=factory, root=_root_from(folder), processes=tuple(processes))
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            left.append(path)
        else:
            written.append(path)
    return WrittenTests(written=tuple(written), left=tuple(left))


def _root_from(folder: Path) -> str:
    """The current folder, as code in a file of `folder`: the repository may be moved."""
    num_up = len(folder.resolve().relative_to(Path.cwd().resolve()).parts)
    return f"Path(__file__).resolve().parents[{num_up}]"
