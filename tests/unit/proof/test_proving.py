"""What a proof refuses before it begins, and whose errors it leaves as they are."""

import sys

import pytest

from trimtab.errors import TrimtabError
from trimtab.proof import proving

LOOP = """
import torch
from tests.proof.by_hand import by_hand


def build(guard):
    loop = by_hand(guard)
    with torch.no_grad():
        next(loop.model.parameters())[:] = float("nan")
    return loop


def raising(guard):
    raise ValueError("the rows are gone.")
"""


@pytest.fixture
def prove(loops, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    name = f"unsound_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(LOOP)
    return lambda factory: proving.prove(factory.format(loop=name), processes=(1,))


def test_a_loop_that_is_not_finite_without_a_guard_is_refused_in_one_sentence_of_its_own(prove):
    with pytest.raises(
        TrimtabError, match=r"^\w+:build: without a guard and on healthy data .* in one process: "
    ) as error:
        prove("{loop}:build")
    assert "cannot be built" not in str(error.value)


def test_a_loop_that_raises_without_a_guard_is_refused_with_the_last_line_of_its_error(prove):
    with pytest.raises(TrimtabError, match=r"process: ValueError: the rows are gone \(unsound_\w+\.py:14\)\. Make"):
        prove("{loop}:raising")


def test_an_error_of_our_own_is_not_said_to_be_one_of_the_loop(prove, monkeypatch):
    def judge(case, run):
        return list(zip([1], [], strict=True))

    monkeypatch.setattr(proving, "judge", judge)
    with pytest.raises(ValueError, match=r"zip\(\)"):
        prove("tests.proof.by_hand:by_hand")
