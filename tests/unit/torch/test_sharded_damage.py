"""A sharded checkpoint from other people's hands: nothing in it runs, and what does not fit is refused whole."""

import importlib.util
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from trimtab.errors import CheckpointError
from trimtab.torch import loaded_state

WORKER = Path(__file__).with_name("sharded_of_a_rank.py")


@pytest.fixture(scope="module")
def alone() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sharded_of_a_rank", WORKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def good(rank_pair: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of two ranks that nobody may change."""
    folder = tmp_path_factory.mktemp("good")
    pair = rank_pair(WORKER)
    pair.call("save", folder=str(folder), num_steps=2)
    return folder / "sharded"


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(good, tmp_path / "sharded"))


@pytest.fixture
def refused(alone: ModuleType, folder: Path) -> Callable[[], str]:
    """Loads the copy, which must be refused and change nothing; gives the message."""
    model = alone.built(seed=2)
    optimizer = alone.optimizer_of(model)
    alone.train(model, optimizer, first=0, behind=1)
    before = alone.fingerprint(model, optimizer)

    def load() -> str:
        with pytest.raises(CheckpointError) as error:
            loaded_state.read(folder, model=model, optimizer=optimizer)
        assert alone.fingerprint(model, optimizer) == before
        return str(error.value)

    return load


class Attack:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def changed_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrites the index as somebody would who knows its format."""
    index = torch.load(folder / "index.pt", weights_only=True)
    change(index)
    torch.save(index, folder / "index.pt")


@pytest.mark.parametrize("as_archive", [True, False])
@pytest.mark.parametrize("name", ["index.pt", "__0_0.distcp", "__1_0.distcp"])
def test_a_pickle_in_a_files_place_never_runs(
    folder: Path, refused: Callable[[], str], tmp_path: Path, name: str, as_archive: bool
) -> None:
    attack = Attack(tmp_path / "it-ran")
    if as_archive:
        torch.save({"version": 1, "x": attack}, folder / name)
    else:
        (folder / name).write_bytes(pickle.dumps(attack))
    assert name in refused()
    assert not (tmp_path / "it-ran").exists()


def test_a_pickle_in_a_pieces_place_never_runs(folder: Path, refused: Callable[[], str], tmp_path: Path) -> None:
    torch.save(Attack(tmp_path / "it-ran"), tmp_path / "attack.pt")
    said = _with_a_piece(folder, refused, (tmp_path / "attack.pt").read_bytes())
    assert said == f"{folder / '__0_0.distcp'}: a piece of it needs a pickle to load. Use an older checkpoint"
    assert not (tmp_path / "it-ran").exists()


def _with_a_piece(folder: Path, refused: Callable[[], str], content: bytes) -> str:
    """What is said of an archive whose file, place and length are those that the index expects."""
    path = folder / "__0_0.distcp"
    start = path.stat().st_size
    path.write_bytes(path.read_bytes() + content)

    def points_at_it(index: dict[str, Any]) -> None:
        index["model"]["frozen"]["pieces"] = [((0, 0), (5, 5), path.name, start, len(content))]

    changed_index(folder, points_at_it)
    return refused()


def test_the_index_of_torch_is_a_pickle_and_is_never_opened(alone: ModuleType, folder: Path, tmp_path: Path) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(Attack(tmp_path / "it-ran")))
    loaded_state.read(folder, model=alone.built(seed=2)).put()
    assert not (tmp_path / "it-ran").exists()


def test_an_inflated_piece_is_refused_before_it_is_inflated(
    folder: Path, refused: Callable[[], str], tmp_path: Path
) -> None:
    torch.save(torch.zeros(5, 5, dtype=torch.float64), tmp_path / "flat.pt")
    with (
        zipfile.ZipFile(tmp_path / "flat.pt") as flat,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in flat.namelist():
            bomb.writestr(name, flat.read(name))
    said = _with_a_piece(folder, refused, (tmp_path / "bomb.pt").read_bytes())
    assert "__0_0.distcp" in said
    assert "compress" in said


@pytest.mark.parametrize(
    "file", ["../__0_0.distcp", "/etc/passwd", "..", "a/__0_0.distcp", "__0_0.distcp\n", ".metadata"]
)
def test_a_name_that_leads_out_of_the_folder_is_refused(folder: Path, refused: Callable[[], str], file: str) -> None:
    def climbs(index: dict[str, Any]) -> None:
        offsets, sizes, _, start, size = index["model"]["single"]["pieces"][0]
        index["model"]["single"]["pieces"][0] = (offsets, sizes, file, start, size)

    changed_index(folder, climbs)
    said = refused()
    assert "is no name of a file with pieces" in said
    assert said.isprintable()


def _of_frozen(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["model"]["frozen"].update(changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_of_frozen(shape=(5, 10**18)), "leads out|not as many elements|no sizes"),
        (_of_frozen(shape=(5, -5)), "no sizes"),
        (_of_frozen(shape=(True, 5)), "no sizes"),
        (_of_frozen(shape=(10**400, 5)), "no sizes"),
        (_of_frozen(dtype="load"), "no type of tensor"),
        (_of_frozen(dtype="float32"), "something else than a tensor"),
        (_of_frozen(pieces=[]), "not as many elements"),
        (_of_frozen(pieces=[((0, 0), (5, 5), "__0_0.distcp", 10**17, 999)]), "__0_0.distcp"),
        (_of_frozen(pieces=[((0, 0), (5, 5), "__0_0.distcp", 0, 0)]), "more elements than bytes"),
        (_of_frozen(pieces=[((4, 0), (5, 5), "__0_0.distcp", 0, 9)]), "leads out"),
        (lambda index: index.update(version=2), "its version is 2"),
        (lambda index: index.update(model=[]), "a list"),
        (lambda index: index.pop("moments"), "moments"),
        (lambda index: index["aliases"].update({"head.weight": "nowhere"}), "it lacks head.weight"),
        (lambda index: index["aliases"].update({"head.weight": 3}), "a name is a int"),
        (lambda index: index["optimizer"]["groups"].pop(), "not as many as their options"),
        (lambda index: index["optimizer"]["groups"].append(3), "int"),
        (lambda index: index["optimizer"]["state"].update({"nobody": {}}), "not of this optimizer"),
        (
            lambda index: index["moments"].append(("nobody", "exp_avg", index["moments"][0][2])),
            "moments of a parameter",
        ),
        (_of_frozen(shape=(10**12,), pieces=[((0,), (10**12,), "__0_0.distcp", 0, 10**14)]), "__0_0.distcp"),
        (_of_frozen(shape=(10**12,), pieces=[((0,), (10**12,), "__0_0.distcp", 0, 999)]), "more elements than bytes"),
    ],
)
def test_an_index_that_says_what_cannot_be_is_refused(
    folder: Path, refused: Callable[[], str], change: Callable[[dict[str, Any]], Any], words: str
) -> None:
    changed_index(folder, change)
    said = refused()
    assert any(word in said for word in words.split("|")), said


@pytest.mark.parametrize("name", ["index.pt", "__0_0.distcp", "__1_0.distcp"])
@pytest.mark.parametrize("damage", ["removed", "emptied", "halved", "a folder"])
def test_a_file_that_is_missing_or_cut_is_named(
    folder: Path, refused: Callable[[], str], name: str, damage: str
) -> None:
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage != "removed":
        path.write_bytes(b"" if damage == "emptied" else content[: len(content) // 2])
    assert name in refused()


def test_a_flipped_byte_of_the_index_is_refused_or_harmless(alone: ModuleType, folder: Path) -> None:
    path = folder / "index.pt"
    content = path.read_bytes()
    for place in range(0, len(content), 41):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x21]) + content[place + 1 :])
        model = alone.built(seed=2)
        optimizer = alone.optimizer_of(model)
        try:
            loaded_state.read(folder, model=model, optimizer=optimizer)
        except CheckpointError as error:
            assert str(folder) in str(error)  # noqa: PT017 - most are refused, some flips change nothing that is read
