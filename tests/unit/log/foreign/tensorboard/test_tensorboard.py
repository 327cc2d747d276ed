"""TensorBoard's event files: what its own writers wrote, and what became of it since."""

import itertools
import math
import random
import struct
import time

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event as EventProto
from tensorboard.compat.proto.event_pb2 import SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard import SummaryWriter

import trimtab.log.foreign.tensorboard as module
import trimtab.log.foreign.tensorboard.frames as frames_module
from trimtab.errors import LogError
from trimtab.log import foreign
from trimtab.log.reader import open_log
from trimtab.log.steps import UNKNOWN_REASON

DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64, DT_BFLOAT16, DT_HALF, DT_STRING = 1, 2, 3, 9, 14, 19, 7


def frame(data, *, size=None, head_crc=None, data_crc=None):
    head = struct.pack("<Q", len(data) if size is None else size)
    crc = struct.pack("<I", masked_crc32c(head) if head_crc is None else head_crc)
    return head + crc + data + struct.pack("<I", masked_crc32c(data) if data_crc is None else data_crc)


def scalar(step, value, tag="train/loss", *, wall_time=None):
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    return EventProto(wall_time=1000.0 + step if wall_time is None else wall_time, step=step, summary=summary)


VERSION = frame(EventProto(wall_time=1.0, file_version="brain.Event:2").SerializeToString())


@pytest.fixture
def write(tmp_path):
    """Writes an event file of events, or of raw bytes, and gives its path."""

    def make(*parts, name="events.out.tfevents.1700000000.host.1.0", version=VERSION):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = [part if isinstance(part, bytes) else frame(part.SerializeToString()) for part in parts]
        path.write_bytes(version + b"".join(raw))
        return path

    return make


def losses(path):
    """Step and loss of each step, NaN as a word so that it equals itself."""
    columns = open_log(path).step_columns()
    return [(step, "nan" if math.isnan(loss) else loss) for step, loss in zip(columns.step, columns.loss, strict=True)]


def by_tensorboard(path):
    """Step and loss as TensorBoard's own loader reads them."""
    events = (EventProto.FromString(raw) for raw in RawEventFileLoader(str(path)).Load())
    return [(event.step, value.simple_value) for event in events for value in event.summary.value]


# ------------------------------------------------------------------------------------------------------- real writers


@pytest.mark.parametrize("new_style", [False, True], ids=["simple value", "tensor"])
def test_what_torchs_writer_writes_is_read_as_it_was_written(tmp_path, new_style):
    # given
    given = [2.5, 0.1, math.nan, math.inf, -math.inf, 0.0, 1e-42, 3.4e38]
    with SummaryWriter(str(tmp_path)) as writer:
        for step, value in enumerate(given, start=1):
            writer.add_scalar("train/loss", value, step, new_style=new_style)
            writer.add_scalar("train/grad_norm", value * 2, step, new_style=new_style)
            writer.add_scalar("train/learning_rate", 1e-3 / step, step, new_style=new_style)
        writer.add_histogram("weights", np.arange(10.0), 3)
        writer.add_text("note", "train/loss", 3)
        writer.add_hparams({"lr": 0.1}, {"hparam/metric": 1.0})
    # when
    log = open_log(tmp_path)
    columns = log.step_columns()
    # then
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(columns.loss, np.array(given, np.float32).astype(np.float64))
        doubled = np.array([value * 2 for value in given], np.float32)
        np.testing.assert_array_equal(columns.grad_norm, doubled.astype(np.float64))
    np.testing.assert_allclose(columns.lr, [1e-3 / step for step in range(1, 9)], rtol=1e-6)
    assert columns.step.tolist() == list(range(1, 9))
    assert columns.has_grad_norm.all()
    assert set(columns.reason.tolist()) == {UNKNOWN_REASON}
    assert not log.has_rows
    assert log.notices() == []


def test_tensorboards_own_writer_and_its_loader_agree_with_what_is_read(tmp_path):
    # given
    rng = random.Random(1)
    writer = EventFileWriter(str(tmp_path))
    for step in (*range(300), 2**40, 2**62):
        writer.add_event(scalar(step, rng.gauss(2, 1)))
    writer.close()
    # then
    (path,) = tmp_path.iterdir()
    assert losses(path) == by_tensorboard(path)
    assert len(losses(path)) == 302


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (TensorProto(dtype=DT_FLOAT, float_val=[0.1]), float(np.float32(0.1))),
        (TensorProto(dtype=DT_DOUBLE, double_val=[0.1]), 0.1),
        (TensorProto(dtype=DT_INT32, int_val=[-7]), -7.0),
        (TensorProto(dtype=DT_INT64, int64_val=[2**40]), float(2**40)),
        (TensorProto(dtype=DT_HALF, half_val=[int(np.array(1.5, np.float16).view(np.uint16))]), 1.5),
        (TensorProto(dtype=DT_BFLOAT16, half_val=[0x3FC0]), 1.5),
        (TensorProto(dtype=DT_FLOAT, tensor_content=struct.pack("<f", 2.5)), 2.5),
        (TensorProto(dtype=DT_DOUBLE, tensor_content=struct.pack("<d", math.inf)), math.inf),
        (TensorProto(dtype=DT_HALF, tensor_content=np.array(0.5, np.float16).tobytes()), 0.5),
    ],
)
def test_a_scalar_as_a_tensor_is_read_in_every_type(write, tensor, expected):
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    value = Summary.Value(tag="loss", tensor=tensor, metadata=metadata)
    assert losses(write(EventProto(step=3, summary=Summary(value=[value])))) == [(3, expected)]


@pytest.mark.parametrize(
    "tensor",
    [
        TensorProto(dtype=DT_STRING, string_val=[b"2.5"]),
        TensorProto(dtype=DT_FLOAT, float_val=[1.0, 2.0]),
        TensorProto(dtype=DT_FLOAT, tensor_content=struct.pack("<ff", 1.0, 2.0)),
        TensorProto(dtype=DT_FLOAT),
        TensorProto(dtype=99, float_val=[1.0]),
    ],
)
def test_a_tensor_that_is_no_single_number_is_left_alone(write, tensor):
    odd = EventProto(step=1, summary=Summary(value=[Summary.Value(tag="loss", tensor=tensor)]))
    log = open_log(write(odd, scalar(2, 1.0)))
    assert log.step_columns().step.tolist() == [2]
    assert log.notices() == []


# --------------------------------------------------------------------------------------------- from scalars to steps


def test_tags_that_are_logged_one_after_the_other_belong_to_the_same_steps(write):
    # given: all losses, then all norms, then rates of every second step
    parts = [scalar(step, step / 10) for step in range(1, 7)]
    parts += [scalar(step, step * 2.0, "train/grad_norm") for step in range(1, 7)]
    parts += [scalar(step, 0.5, "train/lr") for step in (2, 4, 6)]
    # when
    log = open_log(write(*parts))
    columns = log.step_columns()
    # then
    assert columns.step.tolist() == [1, 2, 3, 4, 5, 6]
    assert columns.grad_norm.tolist() == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    assert columns.has_lr.tolist() == [False, True] * 3
    assert set(columns.attempt.tolist()) == {1}
    assert log.notices() == []


def test_several_scalars_in_one_event_and_an_event_without_a_step_are_read(write):
    value = [Summary.Value(tag="loss", simple_value=1.5), Summary.Value(tag="grad_norm", simple_value=0.5)]
    columns = open_log(write(EventProto(summary=Summary(value=value)))).step_columns()
    assert (columns.step.tolist(), columns.loss.tolist(), columns.grad_norm.tolist()) == ([0], [1.5], [0.5])


def test_losses_of_evaluations_are_events_and_no_steps(write):
    log = open_log(write(scalar(1, 2.0), scalar(2, 9.0, "eval/loss"), scalar(3, math.inf, "val_loss"), scalar(3, 1.0)))
    assert log.step_columns().step.tolist() == [1, 3]
    assert [(event.kind, event.step, event.time, event.facts) for event in log.event_list()] == [
        ("evaluation", 2, 1002.0, {"loss": 9.0, "eval/loss": 9.0}),
        ("evaluation", 3, 1003.0, {"loss": "inf", "val_loss": "inf"}),
    ]


def test_a_choice_among_several_losses_is_said(write):
    log = open_log(write(scalar(1, 1.0, "train/loss"), scalar(1, 5.0, "total_loss")))
    assert log.step_columns().loss.tolist() == [1.0]
    assert any("'train/loss' was read as the loss; 'total_loss'" in notice for notice in log.notices())


def test_a_file_without_a_loss_says_so(write):
    said = open_log(write(scalar(1, 1.0, "accuracy"), scalar(1, 1.0, "\x1bspeed"))).notices()
    assert "no tag is a training loss, of 'accuracy', '\\x1bspeed'" in said
    said = open_log(write(*(scalar(1, 1.0, f"tag {number}") for number in range(40)))).notices()
    assert any(notice.endswith("'tag 9' and 30 more") for notice in said)
    assert "no scalar is in it" in open_log(write()).notices()


def test_a_step_that_stands_twice_counts_once_by_its_last_value(write):
    log = open_log(write(scalar(1, 1.0), scalar(2, 5.0), scalar(2, 6.0), scalar(3, 1.0)))
    assert losses(log.path) == [(1, 1.0), (2, 6.0), (3, 1.0)]
    assert any("a step stands twice" in notice and "step 2" in notice for notice in log.notices())


def test_a_run_that_was_resumed_in_the_same_file_is_a_second_attempt(write):
    parts = [scalar(step, 1.0) for step in range(1, 11)]
    start = EventProto(step=6, session_log=SessionLog(status=SessionLog.START))
    log = open_log(write(*parts, start, *[scalar(step, 2.0) for step in range(6, 13)]))
    columns = log.step_columns()
    assert columns.attempt.tolist() == [1] * 10 + [2] * 7
    assert log.restarts() == ()


def test_a_wall_time_that_is_no_time_breaks_nothing(write):
    log = open_log(write(scalar(1, 1.0, "eval/loss", wall_time=math.nan), scalar(1, 1.0, wall_time=-math.inf)))
    assert [event.time for event in log.event_list()] == [0.0]


# ------------------------------------------------------------------------------------------------------------ folders


def test_the_files_of_a_folder_are_one_log_in_the_order_of_their_times(write, tmp_path):
    write(*[scalar(step, 2.0) for step in range(4, 9)], name="events.out.tfevents.1000000000.b.1.0")
    write(*[scalar(step, 1.0) for step in range(1, 6)], name="events.out.tfevents.999999999.b.1.0")
    log = open_log(tmp_path)
    columns = log.step_columns()
    assert columns.attempt.tolist() == [1] * 5 + [2] * 5
    assert columns.loss.tolist() == [1.0] * 5 + [2.0] * 5
    assert log.path == str(tmp_path)
    assert log.size_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_of_the_runs_below_a_folder_the_newest_is_read_and_the_others_are_said(write, tmp_path):
    write(scalar(1, 1.0), name="out/runs/May01_host/events.out.tfevents.1000.host.1.0")
    write(scalar(1, 2.0), name="out/runs/Apr02_host/events.out.tfevents.2000.host.1.0")
    log = open_log(tmp_path / "out")
    assert log.step_columns().loss.tolist() == [2.0]
    assert log.path == str(tmp_path / "out/runs/Apr02_host")
    assert any("2 folders with event files" in notice and "runs/Apr02_host" in notice for notice in log.notices())


def test_a_search_ends_and_follows_no_links(write, tmp_path, monkeypatch):
    write(scalar(1, 1.0), name="a/b/c/d/events.out.tfevents.1.host.1.0")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    with pytest.raises(LogError, match="no log in"):
        open_log(tmp_path)
    assert open_log(tmp_path / "a").step_columns().num_records == 1
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    with pytest.raises(LogError, match="no log in"):
        open_log(tmp_path / "a")


def test_a_file_is_known_by_its_content_whatever_its_name(write):
    path = write(scalar(1, 1.0), name="log.bin")
    assert foreign.format_of(path, foreign.read_head(path)).__name__ == module.__name__
    assert losses(path) == [(1, 1.0)]


def test_a_damaged_head_leaves_the_name_to_know_it_by(write):
    path = write(scalar(1, 1.0), version=b"\0" * 40)
    log = open_log(path)
    assert log.step_columns().step.tolist() == [1]
    assert any("bytes 0 to 40 are damaged" in notice for notice in log.notices())


# ------------------------------------------------------------------------------------------------------------- damage


def test_a_file_cut_at_any_byte_gives_only_whole_earlier_events(write):
    # given
    events = [scalar(step, float(step), "loss") for step in range(1, 5)]
    whole = write(*events).read_bytes()
    ends = list(itertools.accumulate((len(frame(event.SerializeToString())) for event in events), initial=len(VERSION)))
    for cut in range(len(VERSION), len(whole)):
        # when
        path = write(whole[len(VERSION) : cut])
        log = open_log(path)
        # then
        num_whole = sum(end <= cut for end in ends[1:])
        assert log.step_columns().step.tolist() == list(range(1, num_whole + 1))
        torn = [notice for notice in log.notices() if "is torn" in notice]
        assert len(torn) == (0 if cut in ends else 1)
        if torn:
            assert f"at byte {ends[num_whole]}," in torn[0]


def test_a_flipped_bit_anywhere_costs_its_record_and_is_said_with_the_byte(write):
    # given
    events = [scalar(step, float(step), "loss") for step in range(1, 6)]
    whole = bytearray(write(*events).read_bytes())
    size = len(frame(events[0].SerializeToString()))
    third = len(VERSION) + 2 * size
    for byte in range(third, third + size):
        # when
        damaged = bytearray(whole)
        damaged[byte] ^= 1 << (byte % 8)
        log = open_log(write(bytes(damaged[len(VERSION) :])))
        # then
        assert log.step_columns().step.tolist() == [1, 2, 4, 5], byte
        said = [notice for notice in log.notices() if "damaged" in notice]
        assert len(said) == 1
        assert str(third) in said[0]


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 2**40, 17 << 20])
@pytest.mark.parametrize("honest", [True, False], ids=["right checksum", "wrong checksum"])
def test_a_size_beyond_all_bounds_takes_no_memory_and_ends_nothing_but_itself(write, size, honest):
    lie = frame(b"x" * 50, size=size, head_crc=None if honest else 1)
    log = open_log(write(scalar(1, 1.0), lie, scalar(2, 2.0)))
    steps = log.step_columns().step.tolist()
    # What a right checksum says of the size is believed up to a terabyte: then the end of the file is inside a record.
    believed = honest and size < 2**40
    assert steps == ([1] if believed else [1, 2])
    assert any("torn" in notice if believed else "damaged" in notice for notice in log.notices())


def test_a_large_record_is_passed_over_unread(write, monkeypatch):
    monkeypatch.setattr(frames_module, "MAX_RECORD_BYTES", 1000)
    monkeypatch.setattr(frames_module, "BLOCK_BYTES", 300)
    image = EventProto(step=1, summary=Summary(value=[Summary.Value(tag="image", node_name="x" * 5000)]))
    log = open_log(write(scalar(1, 1.0), image, *[scalar(step, 1.0) for step in range(2, 30)]))
    assert log.step_columns().step.tolist() == list(range(1, 30))
    assert any("a record of more than" in notice for notice in log.notices())


@pytest.mark.parametrize("block_bytes", [13, 64, 1000])
def test_records_across_reads_come_out_the_same(write, monkeypatch, block_bytes):
    parts = [scalar(step, step / 7, f"loss{'x' * (step % 3)}" if step % 5 == 0 else "loss") for step in range(1, 60)]
    parts.insert(20, b"\xff" * 37)
    path = write(*parts)
    expected, notices = losses(path), open_log(path).notices()
    monkeypatch.setattr(frames_module, "BLOCK_BYTES", block_bytes)
    again = open_log(path)
    assert losses(path) == expected
    assert again.notices() == notices
    assert any("damaged" in notice for notice in notices)


def test_many_places_of_damage_are_counted_and_not_listed(write):
    parts = itertools.chain.from_iterable((scalar(step, 1.0), b"\xee" * 20) for step in range(1, 30))
    log = open_log(write(*parts))
    assert log.step_columns().num_records == 29
    said = [notice for notice in log.notices() if "damaged" in notice]
    assert len(said) == frames_module.MAX_LINES + 1
    assert "24 more places are damaged" in said[-1]


def test_damage_all_over_a_file_takes_linear_time(write):
    # given: a megabyte of frames that each claim more than there is, with right checksums of their sizes
    lies = frame(b"", size=60, data_crc=0) * 60_000
    path = write(lies, scalar(1, 1.0))
    # when
    begin = time.process_time()
    open_log(path).step_columns()
    # then
    assert time.process_time() - begin < 5


# ------------------------------------------------------------------------------------------- records that are no events


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


@pytest.mark.parametrize(
    "data",
    [
        b"\x2a\xff\xff\xff\xff\x0f",  # a summary of 4 GB
        b"\x2a" + b"\xff" * 11,  # a length without an end
        b"\x0b\x0c",  # a group, as nobody has written for fifteen years
        b"\x06\x00",  # a wire type that is none
        b"\x09\x00\x00",  # half a double
        b"\x00\x00",  # field 0
        b"\x2a\x06\x0a\x04\x0a\xff\x01\x78",  # a tag longer than its value
        b"\x10" + b"\x80" * 9,
        b"random bytes that mean nothing",
    ],
    ids=repr,
)
def test_a_record_that_is_no_event_is_counted_and_costs_no_other(write, data):
    log = open_log(write(scalar(1, 1.0), frame(data), frame(data), scalar(2, 2.0)))
    assert log.step_columns().step.tolist() == [1, 2]
    assert any("2 records are no events" in notice for notice in log.notices())


def test_deep_nesting_is_passed_over_as_the_field_it_is(write):
    deep = b""
    for _ in range(2000):
        deep = b"\x2a" + varint(len(deep)) + deep
    assert losses(write(frame(deep), scalar(1, 1.0))) == [(1, 1.0)]


def test_huge_tags_and_tags_of_control_characters_are_no_metrics_and_break_nothing(write):
    log = open_log(
        write(scalar(1, 9.0, "x" * 100_000 + "loss"), scalar(1, 2.0, "\x1b[31mevil\u202eloss"), scalar(1, 1.0, "loss"))
    )
    assert log.step_columns().loss.tolist() == [1.0]


def test_unknown_fields_of_every_wire_type_are_passed_over(write):
    more = b"\xa0\x06\x05" + b"\xa1\x06" + bytes(8) + b"\xa2\x06\x02hi" + b"\xa5\x06" + bytes(4)
    assert losses(write(frame(scalar(4, 0.5).SerializeToString() + more), scalar(5, 0.5))) == [(4, 0.5), (5, 0.5)]


def test_more_tags_than_are_told_apart_are_counted(write, monkeypatch):
    monkeypatch.setattr("trimtab.log.foreign.tensorboard.records.MAX_TAGS", 3)
    log = open_log(write(scalar(1, 1.0), *[scalar(1, 1.0, f"tag{number}") for number in range(10)]))
    assert log.step_columns().num_records == 1
    assert any("8 scalars were left out" in notice for notice in log.notices())


def test_records_known_again_are_read_as_those_read_in_full(write, monkeypatch):
    # given: tags of equal and of different lengths, steps of one to nine bytes, negative ones, floats of all kinds
    rng = random.Random(3)
    tags = ["loss", "lr", "grad_norm", "train/los", "losx"]
    parts = []
    for index in range(400):
        step = rng.choice([index, 2 ** rng.randrange(0, 62), -index])
        value = struct.unpack("<f", rng.randbytes(4))[0]
        parts.append(scalar(step, value, rng.choice(tags), wall_time=rng.random()))
    path = write(*parts)
    fast = open_log(path).step_columns()
    # when
    monkeypatch.setattr("trimtab.log.foreign.tensorboard.source.MAX_SHAPES", 0)
    slow = open_log(path).step_columns()
    # then
    for one, other in zip(fast, slow, strict=True):
        np.testing.assert_array_equal(one, other)
    assert fast.num_records > 50


def test_a_hundred_thousand_scalars_are_read_within_a_second_or_two(write):
    template = scalar(1, 1.0).SerializeToString()
    path = write(frame(template) * 100_000)
    begin = time.process_time()
    assert open_log(path).step_columns().num_records == 1
    assert time.process_time() - begin < 3
