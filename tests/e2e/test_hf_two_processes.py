"""A Hugging Face `Trainer` in two real processes under DDP: one guard, one log, nothing changed where nothing is bad.

Weights are compared bit for bit with trainers that were never told of Trimtab, and an oracle that never sees a bad
micro-batch: at its place it computes the loss of a harmless one, and multiplies that by zero.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.values import STEP_REASONS

GUARD = dict(multiplier=3.0)
DECIDERS = ["host", "device"]
TWICE = dict(num_train_epochs=2)  # 16 micro-batches, so that there is something to compare with
SETTINGS = {
    "plain": dict(),
    "workers": dict(dataloader_num_workers=2),
    "momentum, not clipped": dict(optim="sgd", optim_args="momentum=0.9", max_grad_norm=0.0),
    "tokens of one rank": dict(average_tokens_across_devices=False),
    "router": dict(model="mixtral", gradient_accumulation_steps=1),
}


def combined(*axes, quick):
    """Every combination; those that are not in `quick` run in the long tests."""
    return [
        pytest.param(*case, marks=[] if case in quick else pytest.mark.long, id=", ".join(map(str, case)))
        for case in itertools.product(*axes)
    ]


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("trainers_of_a_rank.py"))


@pytest.fixture
def train(pair, tmp_path):
    def train(name, **settings):
        return pair.call("train", out=str(tmp_path / name), name=name, **settings)

    return train


@pytest.fixture
def difference(pair):
    """Largest difference between two trainings, of weights, moments and step counts, over both ranks."""

    def difference(found, expected):
        assert pair.call("ranks_differ", found=found) == [0.0, 0.0]
        return max(pair.call("compare", found=found, expected=expected))

    return difference


def places_of(trained, documents):
    """(step, micro) of every micro-batch that has one of the documents, on either rank; a step counts from 1."""
    return sorted(
        {
            (step, micro)
            for rank in trained
            for step, micros in enumerate(rank["seen"], start=1)
            for micro, seen in enumerate(micros)
            if set(documents) & set(seen)
        }
    )


def late_document(trained, *, rank, step=3, micro=0):
    """One that a rank sees when the guard has its history."""
    return trained[rank]["seen"][step - 1][micro][0]


def recorded(folder):
    """What the log holds: rank -> step -> micro-batches -> rows with tokens; and (step, micro) of what was left out."""
    rows, left_out = {}, set()
    for block in trimtab.open_log(folder).row_blocks():
        columns = (block.rank, block.step, block.micro, block.row, block.num_tokens, block.keep)
        for rank, step, micro, row, count, keep in zip(*(column.tolist() for column in columns), strict=True):
            micros = rows.setdefault(rank, {}).setdefault(step, {})
            micros.setdefault(micro, set()).update([row] if count else [])
            if not keep:
                left_out.add((step, micro))
    return [
        [[sorted(rows[rank][step][micro]) for micro in sorted(rows[rank][step])] for step in sorted(rows[rank])]
        for rank in sorted(rows)
    ], sorted(left_out)


def reasons(folder):
    return [STEP_REASONS[code] for code in trimtab.open_log(folder).step_columns().reason]


def lines(trained, part):
    """What each rank has said that has `part` in it."""
    return [[line for line in rank["said"] if part in line] for rank in trained]


@pytest.mark.parametrize(
    ("name", "decide"), combined(SETTINGS, DECIDERS, quick=[("plain", "device"), ("momentum, not clipped", "host")])
)
def test_a_guard_that_leaves_nothing_out_changes_nothing(train, difference, name, decide):
    setting = TWICE | SETTINGS[name]
    plain = train("plain", **setting)
    guard = dict(rule="robust", min_history=3, k=100.0, decide=decide)
    trained = train("guarded", attach=dict(guard=guard), **setting)
    assert difference("guarded", "plain") == 0.0
    for found, expected in zip(trained, plain, strict=True):
        assert found["logged"] == expected["logged"]
        assert found["rates"] == expected["rates"]
        assert found["hooks_left"] == 0


@pytest.mark.parametrize(
    ("decide", "rank", "micro", "fault"),
    combined(DECIDERS, [0, 1], [0, 1], ["costly", "nan"], quick=[("device", 1, 1, "costly"), ("host", 1, 0, "nan")]),
)
def test_a_micro_batch_that_is_bad_on_one_rank_is_left_out_on_both(train, difference, decide, rank, micro, fault):
    # given a bad document on one rank, in the first or in the last micro-batch of a window
    plan = train("plan", **TWICE)
    bad = late_document(plan, rank=rank, micro=micro)
    places = places_of(plan, [bad])
    faults = {fault: [bad]}
    oracle = train("oracle", faults=faults, oracle_at=places, **TWICE)
    # when
    trained = train("guarded", faults=faults, attach=dict(guard=GUARD | dict(decide=decide)), **TWICE)
    # then
    assert difference("guarded", "oracle") == 0.0
    # and the trainer logs a loss and a norm without it
    assert [rank["logged"] for rank in trained] == [rank["logged"] for rank in oracle]
    # and both ranks' rows are in one log, which says what was left out
    rows, left_out = recorded(trained[0]["folder"])
    assert rows == [rank["seen"] for rank in plan]
    assert left_out == places
    # and rewind names the row, and the rank that trained on it
    findings = trimtab.rewind(trained[0]["folder"])
    assert findings.step in [step for step, _ in places]
    assert findings.rows[0].row == bad
    if (findings.step, micro) == places[0]:
        assert findings.rows[0].rank == rank


@pytest.mark.parametrize("decide", combined(DECIDERS, quick=[("device",)]))
def test_a_loss_that_is_a_mean_of_its_rank_and_running_statistics_are_kept_clean(train, difference, decide):
    # given a model that knows nothing of a window's tokens, and takes in every batch during forward
    setting = TWICE | dict(model="plain")
    plan = train("plan", **setting)
    bad = late_document(plan, rank=1)
    train("oracle", faults=dict(costly=[bad]), oracle_at=places_of(plan, [bad]), **setting)
    # when
    train("guarded", faults=dict(costly=[bad]), attach=dict(guard=GUARD | dict(decide=decide)), **setting)
    # then
    assert difference("guarded", "oracle") == 0.0


@pytest.mark.parametrize("decide", combined(DECIDERS, quick=[("device",)]))
def test_a_rank_without_supervised_tokens_is_blamed_for_nothing(train, difference, decide):
    # given a micro-batch that is without a supervised token on rank 1 alone, where its mean is 0/0
    setting = TWICE | dict(model="plain")
    plan = train("plan", **setting)
    step, micro = 3, 1
    empty = plan[1]["seen"][step - 1][micro]
    again = [place for place in places_of(plan, empty) if place != (step, micro)]
    faults = dict(unsupervised=empty)
    train("oracle", faults=faults, oracle_at=[(step, micro)], oracle_on=1, num_train_epochs=1, model="plain")
    # when
    guard = GUARD | dict(decide=decide)
    trained = train("guarded", faults=faults, attach=dict(guard=guard), num_train_epochs=1, model="plain")
    # then its gradient counts for nothing, that of the other rank as ever
    assert again
    assert difference("guarded", "oracle") == 0.0
    assert recorded(trained[0]["folder"])[1] == []
    assert lines(trained, "Guard") == [[], []]


@pytest.mark.parametrize(
    ("on_dropped", "decide", "scaler"),
    combined(["advance", "hold"], DECIDERS, [False, True], quick=[("hold", "device", True)]),
)
def test_a_window_wholly_left_out_moves_nothing_and_the_schedule_does_as_asked(
    train, difference, on_dropped, decide, scaler
):
    # given both micro-batches of the third step bad, each on another rank
    plan = train("plan")
    bad = [late_document(plan, rank=0, micro=0), late_document(plan, rank=1, micro=1)]
    # when
    guard = GUARD | dict(decide=decide)
    trained = train("guarded", faults=dict(costly=bad), attach=dict(guard=guard, on_dropped=on_dropped), scaler=scaler)
    # then
    assert difference("guarded", "guarded") == 0.0
    assert reasons(trained[0]["folder"])[:3] == ["stepped", "stepped", "all_skipped"]
    for rank, planned in zip(trained, plan, strict=True):
        sums, rates = rank["weight_sums"], rank["rates"]
        assert sums[2] == sums[1] != sums[0]
        expected = planned["rates"] if on_dropped == "advance" else [*planned["rates"][:2], *planned["rates"][1:3]]
        assert rates == expected


@pytest.mark.parametrize("decide", combined(DECIDERS, quick=[("device",)]))
def test_removed_tokens_leave_the_divisor_of_all_ranks(train, difference, decide):
    setting = TWICE | dict(optim="sgd", max_grad_norm=0.0)
    plan = train("plan", **setting)
    bad = late_document(plan, rank=1)
    places = places_of(plan, [bad])
    oracle = train("oracle", faults=dict(costly=[bad]), oracle_at=places, oracle_removed=True, **setting)
    guard = GUARD | dict(decide=decide, skipped_tokens="removed")
    trained = train("guarded", faults=dict(costly=[bad]), attach=dict(guard=guard), **setting)
    # one multiplication more, in float32
    assert difference("guarded", "oracle") < 1e-6
    for found, expected in zip(trained, oracle, strict=True):
        assert [entry["loss"] for entry in found["logged"]] == pytest.approx(
            [entry["loss"] for entry in expected["logged"]], rel=1e-5
        )


@pytest.mark.parametrize(
    "setting",
    [
        dict(data="stream", max_steps=4),
        dict(accelerator_config=dict(dispatch_batches=True)),
        dict(dataloader_num_workers=2, dataloader_drop_last=True),
    ],
    ids=["dispatched stream", "dispatched rows", "workers"],
)
def test_each_rank_records_the_rows_that_it_trained_on(train, difference, setting):
    train("plain", **setting)
    trained = train("recorded", attach={}, **setting)
    assert difference("recorded", "plain") == 0.0
    assert recorded(trained[0]["folder"])[0] == [rank["seen"] for rank in trained]
    # and the losses of both ranks' rows are what the trainer has logged of all
    log = trimtab.open_log(trained[0]["folder"])
    logged = pytest.approx([entry["loss"] for entry in trained[0]["logged"]], rel=1e-6)
    assert log.steps().numpy()["loss"].tolist() == logged
    # as are the losses of the steps that each rank has recorded, weighed by its tokens
    told = log.step_columns()
    by_step = [told.step == step for step in sorted(set(told.step.tolist()))]
    assert [np.average(told.loss[own], weights=told.num_tokens[own]) for own in by_step] == logged
    assert [int(own.sum()) for own in by_step] == [2] * len(by_step)


def test_what_concerns_all_ranks_is_said_once(train):
    plan = train("plan", **TWICE)
    bad = late_document(plan, rank=1)
    trained = train("guarded", faults=dict(costly=[bad]), attach=dict(guard=GUARD), **TWICE)
    for part in ("Trimtab records rows", "Trimtab records run", "trimtab rewind"):
        assert [len(found) for found in lines(trained, part)] == [1, 0]
    # and a loss over the tokens of all ranks, which the trainer multiplies by their number, holds nothing beside them
    assert lines(trained, "not that of their tokens alone") == [[], []]


def test_a_routers_term_is_found_beside_the_tokens_whatever_the_number_of_ranks(train):
    setting = dict(model="mixtral", gradient_accumulation_steps=1)
    trained = train("recorded", attach={}, **setting)
    assert [len(found) for found in lines(trained, "In 8 of 8 micro-batches")] == [1, 0]
