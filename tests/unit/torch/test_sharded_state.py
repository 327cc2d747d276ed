"""Sharded state: every bit comes back, on as many ranks as there are then, and saving changes nothing."""

import importlib.util
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from trimtab.errors import CheckpointError
from trimtab.torch import loaded_state, sharded_state

WORKER = Path(__file__).with_name("sharded_of_a_rank.py")


@pytest.fixture(scope="module")
def pair(rank_pair: Any) -> Any:
    return rank_pair(WORKER)


@pytest.fixture(scope="module")
def alone() -> ModuleType:
    """The same functions in this process, which is in no process group."""
    spec = importlib.util.spec_from_file_location("sharded_of_a_rank", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KINDS = ["adamw", "fused", "sgd"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_steps", [0, 3])
def test_every_bit_comes_back_on_both_ranks_and_the_training_goes_on_alike(
    pair: Any, tmp_path: Path, kind: str, num_steps: int
) -> None:
    saved = pair.call("save", folder=str(tmp_path), num_steps=num_steps, kind=kind)
    loaded = pair.call("load", folder=str(tmp_path), num_steps=num_steps, kind=kind)
    for rank in range(2):
        assert loaded[rank]["after"] == saved[rank]["before"]
        assert loaded[rank]["losses"] == saved[rank]["losses"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_before_the_first_step_steps_nothing(pair: Any, tmp_path: Path, kind: str) -> None:
    # get_optimizer_state_dict of torch makes the state by a step, which an AdamW counts.
    saved = pair.call("save", folder=str(tmp_path), num_steps=0, kind=kind)
    assert saved[0]["after"] == saved[0]["before"]
    assert not any("step of" in name or "momentum" in name for name in saved[0]["after"])


def test_bfloat16_comes_back_in_its_own_bits(pair: Any, tmp_path: Path) -> None:
    saved = pair.call("save", folder=str(tmp_path), num_steps=2, dtype="bfloat16")
    loaded = pair.call("load", folder=str(tmp_path), num_steps=2, dtype="bfloat16")
    assert loaded[0]["after"] == saved[0]["before"]
    assert any("bfloat16" in mark for mark in saved[0]["before"].values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_model_without_a_process_group_loads_what_two_ranks_saved(
    pair: Any, alone: ModuleType, tmp_path: Path, kind: str
) -> None:
    saved = pair.call("save", folder=str(tmp_path), num_steps=3, kind=kind)
    loaded = alone.load(str(tmp_path), num_steps=3, kind=kind, shard=False)
    assert loaded["after"] == saved[0]["before"]
    assert loaded["losses"] == pytest.approx(saved[0]["losses"], abs=1e-12)


def test_two_ranks_load_what_a_plain_model_saved(pair: Any, alone: ModuleType, tmp_path: Path) -> None:
    model = alone.built(seed=1)
    optimizer = alone.optimizer_of(model)
    alone.train(model, optimizer, first=0, behind=3)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "plain.pt")
    before = alone.fingerprint(model, optimizer)
    losses = alone.train(model, optimizer, first=3, behind=6)
    for loaded in pair.call("load_whole", path=str(tmp_path / "plain.pt"), num_steps=3):
        assert loaded["after"] == before
        assert loaded["losses"] == pytest.approx(losses, abs=1e-12)


def test_entries_name_every_file_with_its_size_and_checksum(pair: Any, tmp_path: Path) -> None:
    saved = pair.call("save", folder=str(tmp_path), num_steps=1)
    entries = {path: (size, crc) for rank in saved for path, size, crc in rank["entries"]}
    on_disk = {
        str(path.relative_to(tmp_path)): (path.stat().st_size, zlib.crc32(path.read_bytes()))
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert entries == on_disk
    assert set(entries) == {f"sharded/{name}" for name in ("__0_0.distcp", "__1_0.distcp", "index.pt", ".metadata")}


def test_torch_itself_reads_what_was_written(pair: Any, alone: ModuleType, tmp_path: Path) -> None:
    saved = pair.call("save", folder=str(tmp_path), num_steps=2)
    dcp_to_torch_save(tmp_path / "sharded", tmp_path / "whole.pt")
    found = torch.load(tmp_path / "whole.pt", weights_only=True)
    marks = {name: alone.mark(tensor) for name, tensor in found["model"].items()}
    assert marks == {name: saved[0]["before"][name] for name in marks}
    assert "head.weight" not in marks  # tied to embed.weight, whose bytes are there once
    assert alone.mark(found["optimizer"]["state"]["single"]["exp_avg"]) == saved[0]["before"]["exp_avg of single"]


def test_steps_after_a_copy_do_not_reach_the_checkpoint(pair: Any, alone: ModuleType, tmp_path: Path) -> None:
    saved = pair.call("save_while_it_trains", folder=str(tmp_path))
    assert saved[0]["later"] != saved[0]["before"]
    assert alone.load(str(tmp_path), num_steps=2, shard=False)["after"] == saved[0]["before"]


def test_a_model_that_shows_its_parameters_whole_is_saved_as_the_sharded_one_it_is(pair: Any, tmp_path: Path) -> None:
    assert pair.call("is_sharded_at_any_time") == [[False, True, False, True]] * 2
    saved = pair.call("save_after_a_forward", folder=str(tmp_path))
    model = torch.nn.Linear(4, 3, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters())
    loaded_state.read(tmp_path / "sharded", model=model, optimizer=optimizer).put()
    assert optimizer.state[model.weight]["step"] == 1
    assert saved[0]["weight"].startswith("torch.float64 (3, 4)")


def test_no_rank_waits_for_the_one_whose_disk_is_full(pair: Any, tmp_path: Path) -> None:
    said = pair.call("save_where_one_disk_is_full", folder=str(tmp_path))
    assert said == ["", "OSError: [Errno 28] No space left on device"]


def test_ranks_that_do_not_hold_the_same_tensors_are_refused(pair: Any, tmp_path: Path) -> None:
    first, second = pair.call("save_other_names_on_one_rank", folder=str(tmp_path))
    assert "rank 1 and rank 0 do not hold the same tensors: model.only_here is on one of them only" in first
    assert second == ""


def test_plain_moments_of_sharded_weights_are_refused_for_nobody_knows_what_they_are_of(
    pair: Any, tmp_path: Path
) -> None:
    # torch takes what ranks hold plainly for the same, and would write that of one of them.
    for said in pair.call("save_plain_parts_of_shards", folder=str(tmp_path)):
        assert "the optimizer keeps own of single as a plain tensor" in said


def test_of_a_buffer_that_each_rank_has_otherwise_the_first_one_is_saved(
    pair: Any, alone: ModuleType, tmp_path: Path
) -> None:
    pair.call("save_a_buffer_of_its_own", folder=str(tmp_path))
    model = alone.built(seed=2)
    loaded_state.read(tmp_path / "sharded", model=model).put()
    assert int(model.num_seen) == 100


def test_the_parts_of_uneven_rows_are_placed_where_they_belong(pair: Any) -> None:
    first, second = pair.call("parts_of_whole")
    assert first == [[[[0.0, 1.0], [2.0, 3.0]], [3, 2], [0, 0]], [[[0.0, 1.0]], [1, 2], [0, 0]]]
    assert second == [[[[4.0, 5.0]], [3, 2], [2, 0]], [[], [1, 2], [1, 0]]]


def test_a_model_of_the_first_fsdp_is_refused_by_name(pair: Any) -> None:
    for said in pair.call("sharded_by_fsdp1"):
        assert "FSDP1" in said
        assert "fully_shard" in said


@pytest.fixture(scope="module")
def good(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two ranks that nobody may change."""
    folder = tmp_path_factory.mktemp("good")
    pair.call("save", folder=str(folder), num_steps=2)
    return folder / "sharded"


def test_another_model_is_refused_by_name_and_shape_and_stays_as_it_was(alone: ModuleType, good: Path) -> None:
    model = alone.built(seed=2)
    model.single = torch.nn.Parameter(torch.zeros(1, 4, dtype=torch.float64))
    model.more = torch.nn.Linear(2, 2, dtype=torch.float64)
    del model.frozen
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError) as refused:
        loaded_state.read(good, model=model).put()
    said = str(refused.value)
    assert "it lacks more.bias and more.weight" in said
    assert "the model has no frozen" in said
    assert "single is of shape (1, 5) there and of shape (1, 4) in the model" in said
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_optimizer_with_other_groups_is_refused_and_stays_as_it_was(alone: ModuleType, good: Path) -> None:
    model = alone.built(seed=2)
    before = alone.fingerprint(model, torch.optim.AdamW(model.parameters()))
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(CheckpointError, match="it has 2 parameter groups and this optimizer 1"):
        loaded_state.read(good, model=model, optimizer=optimizer).put()
    swapped = alone.optimizer_of(model)
    swapped.param_groups[0]["params"].append(swapped.param_groups[1]["params"].pop())
    with pytest.raises(CheckpointError, match=r"its parameter group 0 differs in embed\.weight"):
        loaded_state.read(good, model=model, optimizer=swapped).put()
    assert alone.fingerprint(model, optimizer) == before


def test_parameters_in_another_order_inside_a_group_get_their_own_moments(alone: ModuleType, good: Path) -> None:
    model = alone.built(seed=2)
    optimizer = alone.optimizer_of(model)
    optimizer.param_groups[0]["params"].reverse()
    loaded_state.read(good, model=model, optimizer=optimizer).put()
    straight = alone.built(seed=2)
    straight_optimizer = alone.optimizer_of(straight)
    loaded_state.read(good, model=straight, optimizer=straight_optimizer).put()
    assert alone.fingerprint(model, optimizer) == alone.fingerprint(straight, straight_optimizer)


def test_weights_alone_load_without_an_optimizer(alone: ModuleType, good: Path) -> None:
    model = alone.built(seed=2)
    loaded_state.read(good, model=model).put()
    assert int(model.num_seen) == 2 * 4 * 6


def test_what_only_a_pickle_could_bring_back_is_refused_by_name() -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    with pytest.raises(CheckpointError, match=r"model\.sparse is a Tensor of layout torch\.sparse_coo"):
        sharded_state.capture(model, torch.optim.SGD(model.parameters()), copy=False)
