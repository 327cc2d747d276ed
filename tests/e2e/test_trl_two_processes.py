"""An `SFTTrainer` in two real processes under DDP: one guard, one log with the documents of both ranks.

The oracle is a trainer without Trimtab that computes the loss of a harmless micro-batch at the place of a bad one, and
multiplies it by zero.
"""

from pathlib import Path

import pytest

import trimtab

GUARD = dict(multiplier=2.0)
SETTINGS = {
    "padded": dict(num_train_epochs=2),
    "packed": dict(packing=True, per_device_train_batch_size=1, num_train_epochs=2),
    "padding-free": dict(padding_free=True, num_train_epochs=2),
}


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("trainers_of_a_rank.py"))


@pytest.fixture
def train(pair, tmp_path):
    def train(name, **settings):
        return pair.call("train", out=str(tmp_path / name), name=name, kind="sft", **settings)

    return train


@pytest.fixture
def difference(pair):
    """Largest difference between two trainings, of weights, moments and step counts, over both ranks."""

    def difference(found, expected):
        assert pair.call("ranks_differ", found=found) == [0.0, 0.0]
        return max(pair.call("compare", found=found, expected=expected))

    return difference


def places_of(trained, document):
    """(step, micro) of every micro-batch that holds the document, on either rank; a step counts from 1."""
    return {
        (step, micro)
        for rank in trained
        for step, micros in enumerate(rank["seen"], start=1)
        for micro, seen in enumerate(micros)
        if document in seen
    }


def recorded(folder):
    """rank -> step -> micro-batches -> documents with tokens; and (step, micro) of what was left out."""
    rows, left_out = {}, set()
    for block in trimtab.open_log(folder).row_blocks():
        columns = (block.rank, block.step, block.micro, block.row, block.num_tokens, block.keep)
        for rank, step, micro, row, count, keep in zip(*(column.tolist() for column in columns), strict=True):
            rows.setdefault(rank, {}).setdefault(step, {}).setdefault(micro, set()).update([row] if count else [])
            if not keep:
                left_out.add((step, micro))
    told = [[[sorted(found) for found in micros.values()] for micros in steps.values()] for steps in rows.values()]
    return told, left_out


@pytest.mark.long
@pytest.mark.parametrize("decide", ["host", "device"])
@pytest.mark.parametrize("how", SETTINGS)
def test_a_guard_that_leaves_nothing_out_changes_nothing(train, difference, how, decide):
    plain = train("plain", **SETTINGS[how])
    guard = dict(multiplier=20.0, decide=decide)
    trained = train("guarded", attach=dict(guard=guard), **SETTINGS[how])
    assert difference("guarded", "plain") == 0.0
    for found, expected in zip(trained, plain, strict=True):
        assert found["logged"] == expected["logged"]


@pytest.mark.parametrize("decide", ["host", pytest.param("device", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "how", [how if how == "packed" else pytest.param(how, marks=pytest.mark.long) for how in SETTINGS]
)
def test_a_bad_document_on_one_rank_is_left_out_on_both_and_named(train, difference, how, decide):
    # given a document that rank 1 meets when the guard has its history, and not before
    plan = train("plan", **SETTINGS[how])
    bad = next(
        document for micros in plan[1]["seen"][3:] for document in micros[0] if min(places_of(plan, document)) >= (3, 0)
    )
    places = places_of(plan, bad)
    faults = dict(costly=[bad])
    oracle = train("oracle", faults=faults, oracle_at=sorted(places), **SETTINGS[how])
    # when
    guard = GUARD | dict(decide=decide)
    trained = train("guarded", faults=faults, attach=dict(guard=guard), **SETTINGS[how])
    # then
    assert difference("guarded", "oracle") == 0.0
    assert [rank["logged"] for rank in trained] == [rank["logged"] for rank in oracle]
    # and the log holds the documents of both ranks, also where they share a sequence, and what was left out
    told, left_out = recorded(trained[0]["folder"])
    assert told == [rank["seen"] for rank in plan]
    assert left_out == places
    # and rewind names it
    findings = trimtab.rewind(trained[0]["folder"])
    assert findings.rows[0].row == bad
    assert findings.rows[0].share > 0.5
    assert len(findings.rows) > 1
