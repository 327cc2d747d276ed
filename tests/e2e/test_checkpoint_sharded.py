"""Checkpoints of a model under `fully_shard` on two real ranks: in the background, unhealthy, cut, on a full disk."""

from pathlib import Path
from typing import Any

import pytest

from trimtab.checkpoint import verify
from trimtab.resume.manifest import read_manifest

WORKER = Path(__file__).with_name("checkpoint_shards_of_a_rank.py")


@pytest.fixture(scope="module")
def pair(rank_pair: Any) -> Any:
    return rank_pair(WORKER)


def test_a_save_in_the_background_holds_the_values_of_its_call(pair: Any, tmp_path: Path) -> None:
    first, second = pair.call("save_while_it_trains", folder=str(tmp_path))
    assert first["marks"] == second["marks"]
    assert first["later"] not in first["marks"].values()
    for step, marks in first["marks"].items():
        assert verify(tmp_path / f"step_{step}").ok
        assert pair.call("loaded", folder=str(tmp_path), name=f"step_{step}") == [marks, marks]


def test_weights_that_a_load_rounds_are_told(pair: Any, tmp_path: Path) -> None:
    pair.call("save", folder=str(tmp_path), layout="fsdp2", num_steps=1)
    for remarks in pair.call("load_into_bfloat16", folder=str(tmp_path)):
        assert "8 weights were saved as torch.float64 and are torch.bfloat16 here: they are not bit-equal" in remarks


def test_a_shard_that_is_not_finite_on_one_rank_makes_the_checkpoint_unhealthy_on_all(
    pair: Any, tmp_path: Path
) -> None:
    first, second = pair.call("save_a_nonfinite_shard", folder=str(tmp_path))
    assert first == second
    assert first["healthy"] is False
    assert "embed.weight" in first["because"][0]
    assert "flat index 65" in first["because"][0], "of the whole weight of 11 x 6, not of the shard"
    assert "step_1" in first["said"]
    assert first["last_healthy"] == 1


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("num_writes", [0, 3, 30])
def test_a_full_disk_on_one_rank_costs_the_save_and_nothing_else(
    pair: Any, tmp_path: Path, num_writes: int, wait: bool
) -> None:
    first, second = pair.call("save_on_a_full_disk", folder=str(tmp_path), num_writes=num_writes, wait=wait)
    assert first == second
    assert first["said"].startswith("the checkpoint of step 2 was not saved: rank 1: ")
    assert first["said"].endswith("No space left on device")
    assert first["unchanged"]
    assert first["picked"] == 1
    assert first["left"] == ["step_1"]


@pytest.mark.parametrize("name", ["sharded/__0_0.distcp", "sharded/__1_0.distcp", "sharded/index.pt", "rank_1.pt"])
@pytest.mark.parametrize("damage", ["missing", "emptied", "cut", "flipped"])
def test_one_damaged_file_of_two_ranks_refuses_the_whole_and_the_older_one_is_picked(
    pair: Any, tmp_path: Path, saved_twice: Path, name: str, damage: str
) -> None:
    folder = tmp_path / "copy"
    copy_tree(saved_twice, folder)
    # The second save of step 2 lies in a folder of its own.
    manifest = read_manifest(folder / "step_2")
    path = next(folder / "step_2" / entry.path for entry in manifest.files if entry.path.endswith(name))
    content = path.read_bytes()
    path.unlink()
    middle = len(content) // 2
    if damage == "flipped":
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif damage != "missing":
        path.write_bytes(b"" if damage == "emptied" else content[:middle])
    first, second = pair.call("load_damaged", folder=str(folder))
    assert first == second
    assert path.name in first["said"]
    assert "step_1" in first["said"], "it says which one to use instead"
    assert first["unchanged"]
    assert first["picked"] == 1


def copy_tree(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            to = target / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())


@pytest.fixture(scope="module")
def saved_twice(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 1 and 2, and step 2 once more over itself."""
    folder = tmp_path_factory.mktemp("twice")
    pair.call("save_twice", folder=str(folder))
    return folder


def test_a_step_that_is_saved_again_loads_from_where_its_manifest_says(pair: Any, saved_twice: Path) -> None:
    manifest = read_manifest(saved_twice / "step_2")
    assert all(entry.path.startswith("again-") for entry in manifest.files)
    assert verify(saved_twice / "step_2").ok
    assert len(pair.call("loaded", folder=str(saved_twice), name="step_2")) == 2
