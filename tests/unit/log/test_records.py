"""What is handed to the recorder becomes blocks; a bad item costs itself only."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.log import records
from trimtab.log.blocks import MicroColumns, decode_events, decode_rows, decode_steps
from trimtab.log.columns import StepColumns
from trimtab.values import Event, MicroBatch, StepRow


def recorded(*items: MicroBatch) -> tuple[MicroColumns, list[str]]:
    blocks, refused = records.row_blocks(items)
    parts = [decode_rows(b"".join(block.parts)) for block in blocks]
    return MicroColumns(*(np.concatenate(column) for column in zip(*parts, strict=True))), refused


def micro(rows, sums, tokens, **fields) -> MicroBatch:
    return MicroBatch(**({"step": 1, "micro": 0} | fields), rows=rows, loss_sums=sums, num_tokens=tokens)


@pytest.mark.parametrize(
    "make",
    [
        lambda numbers, dtype: np.array(numbers, dtype),
        lambda numbers, dtype: np.array(numbers, dtype)[::-1].copy()[::-1],
        lambda numbers, dtype: torch.tensor(numbers, dtype=getattr(torch, dtype)),
        lambda numbers, dtype: list(numbers),
    ],
    ids=["numpy", "strided", "tensor", "list"],
)
def test_arrays_of_any_kind_are_taken(make) -> None:
    columns, refused = recorded(
        micro(make([5, 5, 9], "int64"), make([1.5, 2.0, 3.25], "float32"), make([3, 0, 7], "int32"))
    )

    assert refused == []
    assert columns.row.tolist() == [5, 5, 9]
    assert columns.loss_sum.tolist() == [1.5, 0.0, 3.25]
    assert columns.num_tokens.tolist() == [3, 0, 7]


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.integers(-(2**63), 2**63 - 1),
                st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, -0.0]),
                st.sampled_from([0, 1, 2**31 - 1]),
            ),
            max_size=6,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_micro_batches_come_back(batches) -> None:
    items = [
        micro(
            np.array([row for row, _, _ in batch], np.int64),
            np.array([loss for _, loss, _ in batch], np.float32),
            np.array([tokens for _, _, tokens in batch], np.int64),
            step=place + 1,
            reason=place % 8,
            keep=place % 2 == 0,
        )
        for place, batch in enumerate(batches)
    ]

    columns, refused = recorded(*items)

    entries = [entry for batch in batches for entry in batch]
    assert refused == []
    assert columns.row.tolist() == [row for row, _, _ in entries]
    expected = np.array([loss if tokens else 0.0 for _, loss, tokens in entries], np.float32)
    assert columns.loss_sum.tobytes() == expected.tobytes()
    assert columns.num_rows.tolist() == [len(batch) for batch in batches]
    assert columns.reason.tolist() == [place % 8 for place in range(len(batches))]
    assert columns.keep.tolist() == [place % 2 == 0 for place in range(len(batches))]


def test_packed_entries_are_summed_into_one_occurrence_a_row_in_the_order_they_begin() -> None:
    # Row 7: 1.5 + 2.5 over two tokens. Row 3: not supervised at all. Row 9: one token, and a NaN that is not.
    rows = [7, 3, 7, 9, 9, 3]
    sums = [1.5, math.nan, 2.5, 4.0, math.nan, 8.0]
    tokens = [1, 0, 1, 1, 0, 0]

    columns, refused = recorded(micro(np.array(rows), np.array(sums, np.float32), np.array(tokens), packed=True))

    assert refused == []
    assert columns.row.tolist() == [7, 3, 9]
    assert columns.loss_sum.tolist() == [4.0, 0.0, 4.0]
    assert columns.num_tokens.tolist() == [2, 0, 1]
    assert columns.num_rows.tolist() == [3]


def test_packed_losses_keep_their_kind_of_infinity() -> None:
    columns, _ = recorded(micro([1, 1, 2, 2, 3], [math.inf, 1.0, math.inf, -math.inf, 1.0], [1] * 5, packed=True))

    assert columns.loss_sum[0] == math.inf
    assert math.isnan(columns.loss_sum[1])
    assert columns.loss_sum[2] == 1.0


def test_a_mask_may_stand_for_the_counts() -> None:
    columns, refused = recorded(micro([1, 1, 2], [1.0, 2.0, 3.0], np.array([True, False, True]), packed=True))

    assert refused == []
    assert columns.num_tokens.tolist() == [1, 1]


GOOD = micro(np.array([1, 2]), np.array([1.0, 2.0], np.float32), np.array([1, 1]))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (micro([1, 2, 3], [1.0], [1]), "expected three of the same length"),
        (micro([[1]], [[1.0]], [[1]]), "expected three of the same length"),
        (micro([1.0], [1.0], [1]), "rows are float64"),
        (micro([1], [1.0], [1.5]), "tokens float64"),
        (micro([1], ["a"], [1]), "losses <U1"),
        (micro(np.array([2**64 - 1], np.uint64), [1.0], [1]), "above int64"),
        (micro([1], [1.0], [-1]), "num_tokens from -1"),
        (micro([1], [1.0], [-1], packed=True), "num_tokens -1"),
        (micro([1], [1.0], [2**31]), "not 0 to 2147483647"),
        (micro([1], [1.0], [1], step=2.5), "TypeError"),
        (micro([1], [1.0], [1], step=None), "TypeError"),
        (micro([1], [1.0], [1], step=2**63), "step from"),
        (micro([1], [1.0], [1], micro=2**31), "micro from"),
        (micro([1], [1.0], [1], reason=8), "reason from"),
        (micro([1], [1.0], [1], reason=-1), "reason -1"),
        (micro(torch.tensor([1]), torch.tensor([1.0], requires_grad=True), torch.tensor([1])), "requires grad"),
        (micro(object(), [1.0], [1]), "expected three of the same length"),
    ],
)
def test_a_bad_item_costs_itself_and_none_of_its_neighbours(bad: MicroBatch, says: str) -> None:
    columns, refused = recorded(GOOD, bad, GOOD)

    assert columns.row.tolist() == [1, 2, 1, 2]
    assert len(refused) == 1
    assert says in refused[0]


def test_uint64_rows_within_int64_are_taken() -> None:
    columns, refused = recorded(GOOD, micro(np.array([2**63 - 1], np.uint64), [1.0], np.array([1], np.uint8)))

    assert refused == []
    assert columns.row.tolist() == [1, 2, 2**63 - 1]


def test_a_float64_sum_beyond_float32_becomes_infinite() -> None:
    columns, refused = recorded(micro([1], np.array([1e300]), [1]))

    assert refused == []
    assert columns.loss_sum[0] == math.inf


def test_the_arrays_that_were_handed_over_are_left_alone() -> None:
    sums = np.array([math.nan], np.float32)

    recorded(micro([1], sums, [0]))

    assert math.isnan(sums[0])


def test_a_micro_batch_over_the_bound_goes_on_in_the_next_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORDS", 4)
    items = [micro(list(range(6)), [1.0] * 6, [1] * 6, micro=0), micro([6, 7, 8], [1.0] * 3, [1] * 3, micro=1)]

    blocks, refused = records.row_blocks(items)

    parts = [decode_rows(b"".join(block.parts)) for block in blocks]
    assert refused == []
    assert [part.row.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert [part.micro.tolist() for part in parts] == [[0], [0, 1], [1]]
    assert [part.num_rows.tolist() for part in parts] == [[4], [2, 2], [1]]


def steps_of(*items: StepRow) -> tuple[StepColumns, list[str]]:
    blocks, refused = records.step_blocks(items)
    assert len(blocks) >= 1
    return decode_steps(b"".join(blocks[0].parts), attempt=1, rank=0), refused


def test_a_step_keeps_what_is_unknown_apart_from_what_is_not_a_number() -> None:
    unknown = StepRow(1, math.nan, None, None)
    full = StepRow(
        2, torch.tensor(2.5), np.float32(math.inf), 1e-3, 4, torch.tensor(True), 65536.0, 0.25, np.int64(9), 1, 4
    )

    steps, refused = steps_of(unknown, full)

    assert refused == []
    assert steps.has_grad_norm.tolist() == [False, True]
    assert steps.has_lr.tolist() == [False, True]
    assert steps.clipped.tolist() == [-1, 1]
    assert steps.lr[1] == 1e-3
    assert (steps.loss[1], steps.grad_norm[1], steps.loss_scale[1], steps.wall_s[1]) == (2.5, math.inf, 65536.0, 0.25)
    assert math.isnan(steps.loss_scale[0])
    assert (steps.reason[1], steps.num_tokens[1], steps.num_skipped_micros[1], steps.num_skipped_tokens[1]) == (
        4,
        9,
        1,
        4,
    )


@pytest.mark.parametrize(
    "bad",
    [
        StepRow(2, "x", 1.0, 1.0),
        StepRow(2, 1.0, np.array([1.0]), 1.0),
        StepRow(2.5, 1.0, 1.0, 1.0),
        StepRow(2, 1.0, 1.0, 1.0, reason=6),
        StepRow(2, 1.0, 1.0, 1.0, reason=-1),
        StepRow(2, 1.0, 1.0, 1.0, num_tokens=2**63),
        StepRow(2, 1.0, 1.0, 1.0, num_tokens=1.5),
        StepRow(2, 1.0, 1.0, 1.0, clipped=np.zeros(2)),
    ],
)
def test_a_bad_step_costs_itself(bad: StepRow) -> None:
    blocks, refused = records.step_blocks([StepRow(1, 1.0, 1.0, 1.0), bad, StepRow(3, 1.0, None, 1)])

    assert [decode_steps(b"".join(block.parts), attempt=1, rank=0).step.tolist() for block in blocks] == [[1], [3]]
    assert len(refused) == 1


def test_facts_become_strict_json() -> None:
    loop: dict = {}
    loop["self"] = loop
    facts = {
        "nan": math.nan,
        "inf": -math.inf,
        "scalar": np.float32(0.5),
        "array": np.array([1, 2]),
        "tensor": torch.tensor(3),
        "text": "\x1b[31m \u202e",
        "odd": object,
        "big": 10**30,
        4: (1, [None, True]),
        "loop": loop,
    }

    blocks, refused = records.event_blocks([Event("evaluation", 7, 1.0, facts)])

    assert refused == []
    (event,) = decode_events(b"".join(blocks[0].parts))
    assert event.facts["nan"] == "nan"
    assert event.facts["inf"] == "-inf"
    assert event.facts["scalar"] == 0.5
    assert event.facts["array"] == [1, 2]
    assert event.facts["tensor"] == 3
    assert event.facts["text"] == "\x1b[31m \u202e"
    assert event.facts["big"] == str(10**30)
    assert event.facts["4"] == [1, [None, True]]


@pytest.mark.parametrize(
    "bad", [Event("a", 1, math.nan), Event("a", None, 1.0), Event("a", 2**64, 1.0), Event("a", 1, 1.0, None)]
)
def test_a_bad_event_costs_itself(bad: Event) -> None:
    blocks, refused = records.event_blocks([bad, Event("good", 1, 1.0)])

    assert [event.kind for block in blocks for event in decode_events(b"".join(block.parts))] == ["good"]
    assert len(refused) == 1


def test_nothing_gives_no_blocks() -> None:
    assert records.row_blocks([]) == records.step_blocks([]) == records.event_blocks([]) == ([], [])
