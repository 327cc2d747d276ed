"""What a device holds for the host to hear of: the newest decisions, in order, and where some are missing."""

import pytest
import torch

from trimtab.torch.decided import SIZE, Decided, DecidedMicro, unheard


def decided_after(num_micros: int) -> Decided:
    decided = Decided(device=torch.device("cpu"))
    for place in range(1, num_micros + 1):
        figures = torch.tensor([place * 0.5, place % 3, place % 2], dtype=torch.float64)
        decided.add(figures, keep=torch.tensor(place % 5 != 0), reason=torch.tensor(place % 7))
    return decided


def expected_micro(place: int) -> DecidedMicro:
    return DecidedMicro(place, place * 0.5, place % 3, place % 2, place % 7)


def heard_from(decided: Decided, num: int, *, heard: int) -> list[DecidedMicro]:
    return unheard(decided.newest(num).flatten().tolist(), heard=heard)


@pytest.mark.parametrize(("num", "heard", "first"), [(2, 5, 6), (7, 3, 4), (SIZE, 0, 1), (2, 3, 6)])
def test_the_newest_come_oldest_first_and_none_that_was_heard_of(num: int, heard: int, first: int) -> None:
    found = heard_from(decided_after(7), num, heard=heard)

    assert found == [expected_micro(place) for place in range(first, 8)]


def test_nothing_new_is_nothing_to_hear() -> None:
    assert heard_from(decided_after(0), 1, heard=0) == []
    assert heard_from(decided_after(7), 3, heard=7) == []
    assert heard_from(decided_after(7), 3, heard=9) == []  # an old copy, after a later one


def test_what_came_since_has_overwritten_the_oldest() -> None:
    found = heard_from(decided_after(SIZE + 40), SIZE, heard=10)

    assert found == [expected_micro(place) for place in range(41, SIZE + 41)]


def test_a_copy_is_not_changed_by_what_is_decided_later() -> None:
    decided = decided_after(4)
    copy = decided.newest(4)
    before = copy.clone()

    decided.add(torch.ones(3, dtype=torch.float64), keep=torch.tensor(True), reason=torch.tensor(0))

    assert torch.equal(copy, before)


def test_what_is_counted_is_judged_kept_with_tokens_and_skipped() -> None:
    # given 15 micro-batches: each third has no token, each fifth is skipped
    assert decided_after(15).counts.tolist() == [15, 8, 3]
