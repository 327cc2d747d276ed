"""Saved on so many ranks, loaded on so many others: every bit of weights and moments, and the training goes on."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

WORKER = Path(__file__).with_name("checkpoint_shards_of_a_rank.py")


@pytest.fixture(scope="module")
def ranks(rank_pair: Any) -> Callable[[int], Any]:
    """As many real processes as are asked for; none: this one, without a process group."""
    started: dict[int, Any] = {}

    def of(num_ranks: int) -> Any:
        if num_ranks not in started:
            started[num_ranks] = rank_pair(WORKER, num_ranks=num_ranks) if num_ranks else _Alone()
        return started[num_ranks]

    return of


class _Alone:
    def __init__(self) -> None:
        spec = importlib.util.spec_from_file_location("checkpoint_shards_of_a_rank", WORKER)
        assert spec is not None
        assert spec.loader is not None
        self.module: ModuleType = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)

    def call(self, function: str, **arguments: Any) -> list[Any]:
        return [getattr(self.module, function)(**arguments)]


@pytest.fixture(scope="module")
def twin(ranks: Callable[[int], Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """What one process does that is never interrupted."""

    def of(**arguments: Any) -> dict[str, Any]:
        folder = str(tmp_path_factory.mktemp("twin"))
        found: dict[str, Any] = ranks(0).call("save", folder=folder, layout="plain", **arguments)[0]
        return found

    return of


def check(
    ranks: Callable[[int], Any],
    twin: Callable[..., dict[str, Any]],
    folder: Path,
    *,
    saved_on: tuple[int, str],
    loaded_on: list[tuple[int, str]],
    num_steps: int = 3,
    kind: str = "adamw",
) -> None:
    arguments = {"folder": str(folder), "num_steps": num_steps, "kind": kind}
    num_ranks, layout = saved_on
    saved = ranks(num_ranks).call("save", layout=layout, **arguments)[0]
    reference = twin(num_steps=num_steps, kind=kind)
    for num_ranks, layout in loaded_on:
        for of_rank in ranks(num_ranks).call("go_on", layout=layout, **arguments):
            assert of_rank["step"] == num_steps
            assert of_rank["marks"] == saved["marks"], "every bit of what was saved is there"
            assert of_rank["losses"] == pytest.approx(reference["losses"], abs=1e-12)
            assert of_rank["state"].keys() == reference["state"].keys()
            for name, values in of_rank["state"].items():
                assert values == pytest.approx(reference["state"][name], abs=1e-12), name


def test_two_ranks_of_shards_go_on_in_one_process(ranks: Any, twin: Any, tmp_path: Path) -> None:
    check(ranks, twin, tmp_path, saved_on=(2, "fsdp2"), loaded_on=[(0, "plain")])


def test_one_process_goes_on_on_two_ranks(ranks: Any, twin: Any, tmp_path: Path) -> None:
    check(ranks, twin, tmp_path, saved_on=(0, "plain"), loaded_on=[(2, "ddp"), (2, "fsdp2")])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["adamw", "fused", "sgd"])
@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_two_ranks_go_on_on_one_and_on_four(ranks: Any, twin: Any, tmp_path: Path, layout: str, kind: str) -> None:
    on = [(0, "plain"), (1, "ddp"), (1, "fsdp2"), (4, "ddp"), (4, "fsdp2")]
    check(ranks, twin, tmp_path, saved_on=(2, layout), loaded_on=on, kind=kind)


@pytest.mark.long
def test_four_ranks_go_on_on_two_and_one_rank_of_shards_on_four(ranks: Any, twin: Any, tmp_path: Path) -> None:
    check(ranks, twin, tmp_path / "four", saved_on=(4, "fsdp2"), loaded_on=[(2, "fsdp2"), (2, "ddp"), (0, "plain")])
    check(ranks, twin, tmp_path / "one", saved_on=(1, "fsdp2"), loaded_on=[(4, "fsdp2"), (0, "plain")])


@pytest.mark.long
@pytest.mark.parametrize("layout", ["hsdp", "2d"])
def test_shards_over_two_dimensions_load_into_one_and_the_reverse(
    ranks: Any, twin: Any, tmp_path: Path, layout: str
) -> None:
    on = [(0, "plain"), (2, "fsdp2"), (4, "fsdp2"), (4, layout)]
    check(ranks, twin, tmp_path / "from", saved_on=(4, layout), loaded_on=on)
    check(ranks, twin, tmp_path / "to", saved_on=(2, "fsdp2"), loaded_on=[(4, layout)])


@pytest.mark.long
def test_a_checkpoint_from_before_the_first_step_goes_on_on_another_number_of_ranks(
    ranks: Any, twin: Any, tmp_path: Path
) -> None:
    check(ranks, twin, tmp_path, saved_on=(2, "fsdp2"), loaded_on=[(0, "plain"), (4, "fsdp2")], num_steps=0)
