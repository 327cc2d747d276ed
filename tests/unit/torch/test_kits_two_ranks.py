"""Kits on two real ranks: for any split of a window the gradients are those of one process that has it in one piece.

The oracle is plain torch on the concatenated window, without what was skipped.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

FAULTS = ["nan", "spike", "infinite derivative"]
WAYS = ["itself", "zero", "constant", "nan", "leaf"]


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("kits_of_a_rank.py"))


@st.composite
def splits(draw):
    """Micro-batches of two ranks: tokens, which of them are supervised, and what is wrong, on one rank or on both."""
    micros = []
    for _ in range(draw(st.integers(1, 4))):
        broken = draw(st.sampled_from([(), (), (0,), (1,), (0, 1)]))
        ignored = draw(st.sampled_from([(), (), (), (0,), (1,), (0, 1)]))
        micros.append(
            [
                {
                    "mask": [rank not in ignored]
                    + [rank not in ignored and keep for keep in draw(st.lists(st.booleans(), max_size=4))],
                    "fault": draw(st.sampled_from(FAULTS)) if rank in broken else None,
                }
                for rank in range(2)
            ]
        )
    return with_data(micros, seed=draw(st.integers(0, 2**16)))


def with_data(micros, *, seed):
    source = torch.Generator().manual_seed(seed)

    def random(*shape):
        return (torch.rand(*shape, generator=source, dtype=torch.float64) - 0.5).tolist()

    for ranks in micros:
        for batch in ranks:
            batch |= {"x": random(len(batch["mask"]), 3), "y": random(len(batch["mask"]))}
    return {"micros": micros, "weights": [random(4, 3), random(4), random(1, 4), random(1)]}


# The oracle.


def oracle(kit, skipped_tokens, *, micros, weights):
    """What every rank must end with, in one process: gradients, and whether each micro-batch is kept."""
    parameters = [torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in weights]

    def losses_of(batch):
        x, y = (torch.tensor(batch[key], dtype=torch.float64) for key in ("x", "y"))
        hidden = torch.tanh(x @ parameters[0].T + parameters[1])
        return ((hidden @ parameters[2].T + parameters[3]).squeeze(1) - y) ** 2

    def is_seen(batch):  # of a fault where no token is supervised nobody hears
        return batch["fault"] is not None and (kit == "mean" or any(batch["mask"]))

    kept = [skipped_tokens is None or not any(map(is_seen, ranks)) for ranks in micros]
    in_divisor = kept if skipped_tokens == "removed" else [True] * len(micros)
    if kit == "mean":
        items = [[losses_of(batch).mean() for batch in ranks] for ranks in micros]
        sizes = [2 for _ in micros]
    else:
        items = [[losses_of(batch)[torch.tensor(batch["mask"])].sum() for batch in ranks] for ranks in micros]
        sizes = [sum(sum(batch["mask"]) for batch in ranks) for ranks in micros]
    total = sum((sum(parts) for parts, keep in zip(items, kept, strict=True) if keep), start=parameters[3].sum() * 0.0)
    divisor = sum(size for size, counts in zip(sizes, in_divisor, strict=True) if counts)
    total = total / max(divisor, 1) + sum((parameter * 0.0).sum() for parameter in parameters)
    gradients = [gradient.flatten() for gradient in torch.autograd.grad(total, parameters)]
    if skipped_tokens is not None and not any(s for s, keep in zip(sizes, kept, strict=True) if keep):
        gradients = None
    return gradients, kept


def own_loss(kit, skipped_tokens, *, micros, weights, rank, kept):
    """The mean of one rank's own losses, what was skipped left out; None where nothing of it is left."""
    parameters = [torch.tensor(values, dtype=torch.float64) for values in weights]
    total, divisor, is_left = 0.0, 0, False
    for ranks, keep in zip(micros, kept, strict=True):
        batch = ranks[rank]
        x, y = (torch.tensor(batch[key], dtype=torch.float64) for key in ("x", "y"))
        out = (torch.tanh(x @ parameters[0].T + parameters[1]) @ parameters[2].T + parameters[3]).squeeze(1)
        losses = (out - y) ** 2
        size = 1 if kit == "mean" else sum(batch["mask"])
        if keep and size:
            total, is_left = total + float(losses.mean() if kit == "mean" else losses[batch["mask"]].sum()), True
        divisor += size if keep or skipped_tokens == "counted" else 0
    return total / divisor if is_left else None


def check(pair, kit, wrapping, skipped_tokens, split, **how):
    # given
    micros = split["micros"]
    if skipped_tokens is None:
        micros = [[batch | {"fault": None} for batch in ranks] for ranks in micros]
    gradients, kept = oracle(kit, skipped_tokens, micros=micros, weights=split["weights"])
    # when
    answers = pair.call(
        "window",
        kit=kit,
        wrapping=wrapping,
        skipped_tokens=skipped_tokens,
        micros=micros,
        weights=split["weights"],
        **how,
    )
    # then
    for rank, answer in enumerate(answers):
        assert answer["verdicts"] == kept
        if gradients is None:
            assert answer["gradients"] == [None] * 4
            assert not answer["moved"]
            assert answer["reason"] == ("no_tokens" if all(kept) else "all_skipped")
        else:
            for found, expected in zip(answer["gradients"], gradients, strict=True):
                torch.testing.assert_close(
                    torch.tensor(found, dtype=torch.float64), expected, rtol=1e-12, atol=1e-12, equal_nan=False
                )
            assert answer["reason"] == "stepped"
        loss = own_loss(kit, skipped_tokens or "counted", micros=micros, weights=split["weights"], rank=rank, kept=kept)
        assert answer["loss"] == (None if loss is None else pytest.approx(loss, rel=1e-12, abs=1e-12))
        sizes = [1 if kit == "mean" else sum(ranks[rank]["mask"]) for ranks in micros]
        skipped = [size for size, keep in zip(sizes, kept, strict=True) if not keep]
        assert answer["counts"] == [sum(sizes), len(skipped), sum(skipped)]


WINDOWS = {"split": splits(), "way": st.sampled_from(WAYS), "sync_last": st.booleans()}

KITS = pytest.mark.parametrize(
    ("kit", "wrapping", "skipped_tokens"),
    [
        (kit, wrapping, mode)
        for kit in ("tokens", "mean")
        for wrapping in ("ddp", "fsdp2")
        for mode in ("counted", "removed", None)
    ],
)


@KITS
@settings(max_examples=8)
@given(**WINDOWS)
def test_any_split_of_a_window_has_the_gradients_of_one_process(pair, kit, wrapping, skipped_tokens, split, **how):
    check(pair, kit, wrapping, skipped_tokens, split, **how)


@pytest.mark.long
@KITS
@settings(max_examples=60)
@given(**WINDOWS)
def test_any_of_many_splits_has_the_gradients_of_one_process(pair, kit, wrapping, skipped_tokens, split, **how):
    check(pair, kit, wrapping, skipped_tokens, split, **how)


def spiked(*, place):
    micros = [[{"mask": [True, False, True], "fault": None} for _ in range(2)] for _ in range(3)]
    micros[place][1]["fault"] = "spike"
    return with_data(micros, seed=7)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("sync_last", [False, True])
@pytest.mark.parametrize("way", ["zero", "leaf"])
def test_a_skip_of_which_nothing_has_a_graph_is_exact_under_ddp(pair, place, sync_last, way):
    micros = spiked(place=place)
    gradients, _ = oracle("tokens", "counted", **micros)
    for answer in pair.call(
        "window",
        kit="tokens",
        wrapping="ddp",
        skipped_tokens="counted",
        way=way,
        detached=True,
        sync_last=sync_last,
        **micros,
    ):
        for found, expected in zip(answer["gradients"], gradients, strict=True):
            assert found == pytest.approx(expected.tolist(), rel=1e-12, abs=1e-12)


def test_a_skip_of_which_nothing_has_a_graph_is_refused_under_fsdp2(pair):
    first, second = pair.call("refusal_without_any_graph", **spiked(place=1))
    assert first == second
    assert "Hand guard_loss the loss tensor itself" in first


@pytest.mark.parametrize("kit", ["mean", "tokens"])
@pytest.mark.parametrize(
    ("saved", "here", "said"), [(False, True, "holds no guard history"), (True, False, "holds a guard history")]
)
def test_one_rank_tells_what_a_state_lacks(pair, kit, saved, here, said):
    (line,), others = pair.call("said_of_a_state", kit=kit, saved=saved, here=here)
    assert said in line
    assert others == []
