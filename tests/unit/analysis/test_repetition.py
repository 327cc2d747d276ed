"""How repetitive a row is, against a count by plain Python."""

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.analysis.repetition import MAX_NUMBERS, repetition


def counted(numbers):
    """The same by a dictionary: score, count, where the commonest begins."""
    grams = [tuple(numbers[at : at + 8]) for at in range(len(numbers) - 7)]
    if not grams:
        return 0.0, 0, 0
    times = Counter(grams)
    most = max(times.values())
    begin = min(at for at, gram in enumerate(grams) if times[gram] == most)
    return (min(1.0, 8 * most / len(numbers)) if most > 1 else 0.0), most, begin


@given(st.lists(st.integers(0, 2), max_size=60))
def test_bytes_agree_with_a_count(numbers):
    assert tuple(repetition(np.array(numbers, np.uint8))) == counted(numbers)


@given(st.lists(st.sampled_from([-100, 0, 7, 2**62]), max_size=40).map(lambda part: part * 2))
def test_token_ids_agree_with_a_count(numbers):
    assert tuple(repetition(np.array(numbers, np.int64))) == counted(numbers)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (b"", 0.0),
        (b"abcdefgh", 0.0),
        (b"abcdefghi", 0.0),
        (b"aaaaaaaaa", 1.0),
        (b"\\" * 500, 1.0),
        (b"abcdefgh" * 10, 1.0),
        (b"abcdefgh" + b"12345678" + b"abcdefgh" + b"zyxwvuts", 0.5),
    ],
)
def test_worked_examples(text, score):
    assert repetition(np.frombuffer(text, np.uint8)).score == score


def test_a_page_of_one_sign_stands_out_of_prose():
    prose = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want"
    assert repetition(np.frombuffer(prose.encode(), np.uint8)).score < 0.2
    assert repetition(np.frombuffer(b"Return the value of the object. " * 40, np.uint8)).score > 0.2


def test_a_megabyte_takes_a_fifth_of_a_second_and_more_takes_no_more_than_four():
    # given
    draw = np.random.default_rng(0)
    text, ids = draw.integers(0, 256, 1 << 20).astype(np.uint8), draw.integers(0, 50_000, 1 << 18)
    for numbers in (text, ids):
        # when
        began = time.process_time()
        repetition(numbers)
        # then: 0.13 s and 0.18 s measured
        assert time.process_time() - began < 1.0
    # then: of a long row the beginning counts
    long = np.concatenate([np.zeros(MAX_NUMBERS, np.uint8), np.ones(MAX_NUMBERS, np.uint8)])
    assert repetition(long).num_times == MAX_NUMBERS - 7
