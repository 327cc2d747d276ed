"""Which entries are not finite, told by a look at every one of them; and what became worse, by sets of indices."""

import json
import math
import subprocess
import sys
import textwrap

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trimtab.errors import CheckpointError
from trimtab.torch import health
from trimtab.torch.health import (
    Nonfinite,
    merged,
    nonfinite_from_state,
    nonfinite_to_state,
    worse_than,
)

BAD = [math.nan, math.inf, -math.inf]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]


class Held(nn.Module):
    """A model of one buffer, which is saved with it."""

    def __init__(self, values):
        super().__init__()
        self.register_buffer("x", values)


def find_nonfinite(model, optimizer=None):
    """Of the weights alone where no optimizer is given."""
    none = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    return health.find_nonfinite(model, none if optimizer is None else optimizer)


def entries(count, ranges):
    return Nonfinite(count, None if ranges is None else torch.tensor(ranges, dtype=torch.int64).reshape(-1, 2))


def spelled(found):
    """What can be compared."""
    return {
        name: (one.count, None if one.ranges is None else [tuple(bounds) for bounds in one.ranges.tolist()])
        for name, one in found.items()
    }


def by_looking(values):
    """Flat indices of what is not finite, one by one."""
    flat = values.reshape(-1) if values.is_complex() else values.double().reshape(-1)
    return [index for index, value in enumerate(flat.tolist()) if not _finite(value)]


def _finite(value):
    return math.isfinite(value.real) and math.isfinite(value.imag)


def indices(found):
    return [index for first, behind in found.ranges.tolist() for index in range(first, behind)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", ["contiguous", "transposed", "strided", "one row"])
def test_every_kind_of_tensor_is_looked_at(dtype, form):
    values = torch.arange(35, dtype=torch.float32).reshape(5, 7).to(dtype)
    for place, bad in zip([(0, 1), (0, 2), (4, 6)], [math.nan, math.nan, math.nan], strict=True):
        values[place] = torch.tensor(bad).to(dtype)
    shaped = {
        "contiguous": values,
        "transposed": values.t(),
        "strided": values[:, ::2],
        "one row": values[0],
    }[form]

    found = find_nonfinite(Held(shaped))

    expected = by_looking(shaped)
    assert expected
    assert indices(found["model's x"]) == expected
    assert found["model's x"].count == len(expected)


@pytest.mark.parametrize("bad", BAD)
def test_nan_and_both_infinities_are_found(bad):
    values = torch.ones(10)
    values[3] = bad
    assert spelled(find_nonfinite(Held(values))) == {"model's x": (1, [(3, 4)])}


def test_large_numbers_are_finite():
    assert find_nonfinite(Held(torch.tensor([1e300, -1e300], dtype=torch.float64))) == {}
    assert find_nonfinite(Held(torch.tensor([3e38, -3e38]))) == {}


def test_what_has_no_such_entries_is_passed_over():
    model = Held(torch.tensor([1, 2]))
    model.register_buffer("empty", torch.zeros(0))
    model.register_buffer("meta", torch.zeros(3, device="meta"))
    model.register_buffer("mask", torch.tensor([-math.inf]), persistent=False)
    assert find_nonfinite(model) == {}


def test_moments_are_named_by_their_parameter_whatever_the_model_is_wrapped_in():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.state[model[1].bias]["exp_avg"][0] = math.nan

    found = find_nonfinite(torch.compile(model, backend="eager"), optimizer)

    assert spelled(found) == {"exp_avg of 1.bias": (1, [(0, 1)])}


def test_tied_weights_are_told_once():
    model = nn.Module()
    model.a = nn.Linear(2, 2, bias=False)
    model.b = nn.Linear(2, 2, bias=False)
    model.b.weight = model.a.weight
    with torch.no_grad():
        model.a.weight[0, 0] = math.nan
    assert list(find_nonfinite(model)) == ["model's a.weight"]


def test_ranges_go_over_the_edges_of_pieces(monkeypatch):
    monkeypatch.setattr(health, "_PIECE", 4)
    values = torch.ones(20)
    values[2:9] = math.nan
    values[19] = math.inf
    assert spelled(find_nonfinite(Held(values))) == {"model's x": (8, [(2, 9), (19, 20)])}


def test_an_entry_that_moved_is_seen_among_a_hundred_thousand():
    values = torch.ones(200_000)
    values[::2] = math.nan
    before = find_nonfinite(Held(values))
    values[500], values[501] = 1.0, math.nan
    assert worse_than(before, find_nonfinite(Held(values))) == (
        "model's x: 1 entry is NaN or infinite and was finite at the run's beginning, the first at flat index 501",
    )


def test_too_many_ranges_are_only_counted(monkeypatch):
    monkeypatch.setattr(health, "MAX_RANGES", 100)
    values = torch.ones(400)
    values[::2] = math.nan
    assert spelled(find_nonfinite(Held(values))) == {"model's x": (200, None)}


def test_the_bound_is_that_of_ranges_and_not_of_their_pieces(monkeypatch):
    monkeypatch.setattr(health, "MAX_RANGES", 1)
    monkeypatch.setattr(health, "_PIECE", 4)
    assert spelled(find_nonfinite(Held(torch.full((40,), math.nan)))) == {"model's x": (40, [(0, 40)])}


@pytest.mark.parametrize("as_text", [False, True])
def test_all_tensors_together_keep_a_bounded_number_of_ranges(as_text, monkeypatch):
    monkeypatch.setattr(health, "_MAX_RANGES_IN_TEXT" if as_text else "MAX_RANGES", 500)
    found = {f"b{number:03}": entries(100, [(2 * at, 2 * at + 1) for at in range(100)]) for number in range(10)}
    if as_text:
        kept = nonfinite_from_state(json.loads(json.dumps(nonfinite_to_state(found, as_text=True))), where="here")
    else:
        monkeypatch.setattr(health._bounded, "__kwdefaults__", {"most": 500})
        kept = merged([found])
    assert [one.ranges is not None for one in kept.values()] == [True] * 5 + [False] * 5
    assert all(one.count == 100 for one in kept.values())


sets = st.frozensets(st.integers(0, 30), max_size=31)


def as_entries(wanted):
    ranges = []
    for index in sorted(wanted):
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return entries(len(wanted), ranges)


@given(before=sets, now=sets)
def test_what_is_new_is_the_difference_of_the_sets(before, now):
    sentences = worse_than({"model's x": as_entries(before)}, {"model's x": as_entries(now)})
    new = sorted(now - before)
    if not new:
        assert sentences == ()
    else:
        assert f"{len(new)} entr" in sentences[0]
        assert sentences[0].endswith(f"the first at flat index {new[0]}")


@given(parts=st.lists(sets, min_size=1, max_size=4))
def test_several_ranks_together_are_the_union_of_the_sets(parts):
    together = merged({"model's x": as_entries(part)} if part else {} for part in parts)
    union = frozenset().union(*parts)
    assert spelled(together) == spelled({"model's x": as_entries(union)} if union else {})


@settings(max_examples=20)
@given(values=st.lists(st.sampled_from([1.0, math.nan, math.inf]), min_size=1, max_size=40))
def test_ranges_are_those_of_the_tensor(values):
    tensor = torch.tensor(values)
    expected = as_entries(frozenset(by_looking(tensor)))
    assert spelled(find_nonfinite(Held(tensor))) == spelled({"model's x": expected} if expected.count else {})


def test_what_is_only_counted_is_compared_by_its_count():
    many, more = {"model's x": Nonfinite(500, None)}, {"model's x": Nonfinite(501, None)}
    assert worse_than(many, many) == ()
    assert worse_than(more, many) == ()
    assert worse_than(many, more) == ("model's x: 1 entry is NaN or infinite and was finite at the run's beginning",)


def test_many_tensors_make_few_sentences():
    found = {f"weight {number}": entries(2, [(0, 2)]) for number in range(20)}
    sentences = worse_than({}, found)
    assert len(sentences) == 9
    assert sentences[-1] == "and so in 12 more weights and moments"


def test_a_name_from_a_stranger_is_shown_plainly():
    assert "\x1b" not in worse_than({}, {"weight \x1b[31m": entries(1, [(0, 1)])})[0]


@pytest.mark.parametrize("as_text", [False, True])
def test_the_list_comes_back_from_plain_values(as_text):
    found = {"a": entries(3, [(1, 2), (5, 7)]), "b": entries(9, None), "c": entries(0, [])}
    assert spelled(nonfinite_from_state(nonfinite_to_state(found, as_text=as_text), where="here")) == spelled(found)


@pytest.mark.parametrize(
    "state",
    [None, 3, {"a": 1}, {"a": [1]}, {"a": ["x", None]}]
    + [{"a": [1, said]} for said in ([[1]], [["x", 1]], [[2, 1]], [[-1, 1]], [[1, 3], [2, 4]], [[1, 2**70]], "x")]
    + [{"a": [1, torch.zeros(1, 2)]}, {"a": [1, torch.zeros(1, dtype=torch.int64)]}]
    + [{"a": [1, torch.zeros(1, dtype=torch.int64).expand(2**40, 2)]}],
    ids=repr,
)
def test_a_damaged_list_is_refused(state):
    with pytest.raises(CheckpointError, match="here: the list"):
        nonfinite_from_state(state, where="here")


def test_looking_takes_no_memory_of_the_tensor_s_size():
    # 256 MB of weights; a mask of them would be 64 MB.
    script = textwrap.dedent("""
        import re, torch
        from pathlib import Path
        from torch import nn
        from trimtab.torch.health import find_nonfinite as find
        find_nonfinite = lambda model: find(model, torch.optim.SGD(model.parameters()))
        peak_mb = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
        model = nn.Linear(8192, 8192, bias=False)
        model.weight.data[5, 5] = float("nan")
        find_nonfinite(nn.Linear(8, 8))
        before = peak_mb()
        found = find_nonfinite(model)
        assert found["model's weight"].count == 1
        print(peak_mb() - before)
    """)
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(said.stdout) < 32, said.stdout
