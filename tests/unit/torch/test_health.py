"""Which entries are not finite, told by a look at every one of them; and what became worse, by sets of indices."""

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
    find_nonfinite,
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


def by_looking(values):
    """Flat indices of what is not finite, one by one."""
    flat = values.reshape(-1) if values.is_complex() else values.double().reshape(-1)
    return [index for index, value in enumerate(flat.tolist()) if not _finite(value)]


def _finite(value):
    return math.isfinite(value.real) and math.isfinite(value.imag)


def indices(entries):
    return [index for first, behind in entries.ranges for index in range(first, behind)]


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
    assert indices(found["weight x"]) == expected
    assert found["weight x"].count == len(expected)


@pytest.mark.parametrize("bad", BAD)
def test_nan_and_both_infinities_are_found(bad):
    values = torch.ones(10)
    values[3] = bad
    assert find_nonfinite(Held(values)) == {"weight x": Nonfinite(1, ((3, 4),))}


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

    assert found == {"exp_avg of 1.bias": Nonfinite(1, ((0, 1),))}


def test_tied_weights_are_told_once():
    model = nn.Module()
    model.a = nn.Linear(2, 2, bias=False)
    model.b = nn.Linear(2, 2, bias=False)
    model.b.weight = model.a.weight
    with torch.no_grad():
        model.a.weight[0, 0] = math.nan
    assert list(find_nonfinite(model)) == ["weight a.weight"]


def test_ranges_go_over_the_edges_of_pieces(monkeypatch):
    monkeypatch.setattr(health, "_PIECE", 4)
    values = torch.ones(20)
    values[2:9] = math.nan
    values[19] = math.inf
    assert find_nonfinite(Held(values)) == {"weight x": Nonfinite(8, ((2, 9), (19, 20)))}


def test_too_many_ranges_are_only_counted():
    values = torch.ones(4 * health.MAX_RANGES)
    values[::2] = math.nan
    assert find_nonfinite(Held(values)) == {"weight x": Nonfinite(2 * health.MAX_RANGES, None)}


def test_all_tensors_together_keep_a_bounded_number_of_ranges():
    model = nn.Module()
    for number in range(100):
        values = torch.ones(2 * health.MAX_RANGES)
        values[::2] = math.nan
        model.register_buffer(f"b{number:03}", values)
    found = find_nonfinite(model)
    assert sum(len(entries.ranges or ()) for entries in found.values()) <= health.MAX_RANGES_IN_ALL
    assert all(entries.count == health.MAX_RANGES for entries in found.values())


sets = st.frozensets(st.integers(0, 30), max_size=31)


def as_entries(wanted):
    ranges = []
    for index in sorted(wanted):
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return Nonfinite(len(wanted), tuple(ranges))


@given(before=sets, now=sets)
def test_what_is_new_is_the_difference_of_the_sets(before, now):
    sentences = worse_than({"weight x": as_entries(before)}, {"weight x": as_entries(now)})
    new = sorted(now - before)
    if not new:
        assert sentences == ()
    else:
        assert f"{len(new)} entr" in sentences[0]
        assert sentences[0].endswith(f"the first at flat index {new[0]}")


@given(parts=st.lists(sets, min_size=1, max_size=4))
def test_several_ranks_together_are_the_union_of_the_sets(parts):
    together = merged({"weight x": as_entries(part)} if part else {} for part in parts)
    union = frozenset().union(*parts)
    assert together == ({"weight x": as_entries(union)} if union else {})


@settings(max_examples=20)
@given(values=st.lists(st.sampled_from([1.0, math.nan, math.inf]), min_size=1, max_size=40))
def test_ranges_are_those_of_the_tensor(values):
    tensor = torch.tensor(values)
    expected = as_entries(frozenset(by_looking(tensor)))
    assert find_nonfinite(Held(tensor)) == ({"weight x": expected} if expected.count else {})


def test_what_is_only_counted_is_compared_by_its_count():
    many, more = {"weight x": Nonfinite(500, None)}, {"weight x": Nonfinite(501, None)}
    assert worse_than(many, many) == ()
    assert worse_than(more, many) == ()
    assert worse_than(many, more) == ("weight x: 1 entry is NaN or infinite and was finite at the run's beginning",)


def test_many_tensors_make_few_sentences():
    found = {f"weight {number}": Nonfinite(2, ((0, 2),)) for number in range(20)}
    sentences = worse_than({}, found)
    assert len(sentences) == 9
    assert sentences[-1] == "and so in 12 more weights and moments"


def test_a_name_from_a_stranger_is_shown_plainly():
    assert "\x1b" not in worse_than({}, {"weight \x1b[31m": Nonfinite(1, ((0, 1),))})[0]


def test_the_list_comes_back_from_plain_values():
    found = {"a": Nonfinite(3, ((1, 2), (5, 7))), "b": Nonfinite(9, None)}
    assert nonfinite_from_state(nonfinite_to_state(found), where="here") == found


@pytest.mark.parametrize("state", [None, 3, {"a": 1}, {"a": [1]}, {"a": ["x", None]}, {"a": [1, [[1]]]}])
def test_a_damaged_list_is_refused(state):
    with pytest.raises(CheckpointError, match="here: the list"):
        nonfinite_from_state(state, where="here")


def test_looking_takes_no_memory_of_the_tensor_s_size():
    # 256 MB of weights; a mask of them would be 64 MB.
    script = textwrap.dedent("""
        import re, torch
        from pathlib import Path
        from torch import nn
        from trimtab.torch.health import find_nonfinite
        peak_mb = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
        model = nn.Linear(8192, 8192, bias=False)
        model.weight.data[5, 5] = float("nan")
        find_nonfinite(nn.Linear(8, 8))
        before = peak_mb()
        found = find_nonfinite(model)
        assert found["weight weight"].count == 1
        print(peak_mb() - before)
    """)
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(said.stdout) < 32, said.stdout
