"""Which cross-entropy is the loss, and which row each of its tokens belongs to."""

import pytest
import torch
import torch.nn.functional as F

from trimtab.torch.capture import CapturingLoss, TokenLosses
from trimtab.torch.tap import LossTap, row_columns

LOGITS = torch.arange(24.0).view(4, 6)
TARGET = torch.tensor([0, -100, 3, 5])


def loss():
    return F.cross_entropy(LOGITS, TARGET)


def test_a_loss_anywhere_is_found_by_watching_everything():
    tap = LossTap()
    for _ in range(2):
        result, [tokens] = tap.run(loss)
        assert torch.equal(result, loss())
        assert tokens.supervised.tolist() == [True, False, True, True]


def test_a_place_that_was_called_speaks_alone_from_the_first_micro_batch_on():
    # given a model whose loss goes through the place, and a further term beside it
    place = CapturingLoss(F.cross_entropy)
    tap = LossTap(place)

    def both():
        return place(LOGITS, TARGET) + F.cross_entropy(LOGITS, TARGET.clamp(min=0))

    # then the term is never taken for the loss
    for _ in range(3):
        _, [tokens] = tap.run(both)
        assert tokens.supervised.tolist() == [True, False, True, True]


def test_once_a_place_is_known_nothing_else_is_watched():
    # given
    place = CapturingLoss(F.cross_entropy)
    tap = LossTap(place)
    tap.run(lambda: place(LOGITS, TARGET))
    modes = []
    # when
    tap.run(lambda: modes.append(torch.overrides._len_torch_function_stack()))
    # then
    assert modes == [0]


def test_a_place_that_is_never_called_leaves_the_watch_on():
    tap = LossTap(CapturingLoss(F.cross_entropy))
    for _ in range(3):
        assert len(tap.run(loss)[1]) == 1


def test_none_and_several_are_told():
    tap = LossTap()
    assert tap.run(lambda: torch.zeros(()))[1] == []
    assert len(tap.run(lambda: loss() + loss())[1]) == 2


def test_an_exception_leaves_nothing_behind():
    # given
    place = CapturingLoss(F.cross_entropy)
    tap = LossTap(place)

    def fails():
        place(LOGITS, TARGET)
        raise MemoryError

    # when
    with pytest.raises(MemoryError):
        tap.run(fails)
    # then
    assert not place.active
    assert place.calls == []
    assert len(tap.run(lambda: place(LOGITS, TARGET))[1]) == 1


# ----------------------------------------------------------------------------------------------------- tokens to rows


def tokens(num):
    return TokenLosses(torch.arange(float(num)), torch.ones(num, dtype=torch.bool))


def test_sequences_are_rows_whether_the_last_token_was_cut_off_or_not():
    rows = torch.tensor([7, 9])
    for width in (1, 4, 5):
        losses, supervised, found = row_columns(tokens(2 * width), rows, shifted=True)
        assert losses.tolist() == torch.arange(2.0 * width).view(2, width).tolist()
        assert supervised.shape == (2, width)
        assert found.tolist() == [7, 9]


def test_in_one_concatenated_sequence_each_token_has_its_row():
    rows = torch.tensor([[7, 7, 7, 9, 9]])
    _, _, found = row_columns(tokens(5), rows, shifted=False)
    assert found.tolist() == [[7, 7, 7, 9, 9]]


def test_a_shifted_loss_belongs_to_the_row_of_the_token_that_is_predicted():
    rows = torch.tensor([[7, 7, 7, 9, 9]])
    # the last place predicts nothing, and is not supervised
    _, _, found = row_columns(tokens(5), rows, shifted=True)
    assert found.tolist() == [[7, 7, 9, 9, 9]]
    # the same where it was cut off before
    losses, _, found = row_columns(tokens(4), rows, shifted=True)
    assert found.tolist() == [[7, 7, 9, 9]]
    assert losses.tolist() == [[0.0, 1.0, 2.0, 3.0]]


def test_what_does_not_fit_is_not_guessed():
    assert row_columns(tokens(7), torch.tensor([7, 9]), shifted=False) is None
    assert row_columns(tokens(7), torch.tensor([], dtype=torch.int64), shifted=False) is None
    assert row_columns(tokens(3), torch.tensor([[7, 7, 7, 9, 9]]), shifted=True) is None
