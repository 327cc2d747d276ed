"""Checkpoints of somebody who means harm, with the right checksums: refused by name, and nothing in them is run.

Whoever can write payload can write a manifest too, so every one here holds.
"""

import io
import json
import os
import pickle
import resource
import time
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from trimtab.checkpoint import Checkpointer
from trimtab.cli import main
from trimtab.errors import CheckpointError
from trimtab.resume.select import pick
from trimtab.resume.verify import verify

PAYLOAD = ["model.pt", "optimizer.pt", "run.pt", "rank_0.pt"]


class Training:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.model(torch.ones(1, 4)).sum().backward()
        self.optimizer.step()
        self.parts = {"model": self.model, "optimizer": self.optimizer}


@pytest.fixture
def folder(tmp_path):
    """Two good checkpoints; the tests turn the newer one into another."""
    checkpoints = Checkpointer(tmp_path / "run", run_id="run-a")
    for step in (100, 200):
        checkpoints.save(step, **Training().parts, loss=1.5)
    return tmp_path / "run"


@pytest.fixture
def marker(tmp_path):
    """What a pickle that is run makes."""
    marker = tmp_path / "it ran"
    yield marker
    assert not marker.exists()


def canonical(document):
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def forge(checkpoint, **changes):
    """Writes the manifest anew: for the files that are there now, and with the fields that are given."""
    path = checkpoint / "trimtab_manifest.json"
    document = json.loads(path.read_bytes())["manifest"]
    for entry in document["files"]:
        data = (checkpoint / entry["path"]).read_bytes()
        entry |= {"size_bytes": len(data), "crc32": zlib.crc32(data)}
    spelled = canonical(document | changes)
    path.write_bytes(b'{"manifest": %s, "crc32": %d}' % (spelled, zlib.crc32(spelled)))


class Runs:
    """A pickle of it calls `os.system`."""

    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return os.system, (f"touch '{self._marker}'",)


class Opens:
    """A pickle of it opens a file to write."""

    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return open, (str(self._marker), "w")


class Evaluates:
    """A pickle of it evaluates Python."""

    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return eval, (f"open({str(self._marker)!r}, 'w')",)


class Builds:
    """A pickle of it holds another one where its state should be."""

    def __init__(self, marker):
        self.state = Runs(marker)


def archived(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def legacy(value):
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def bare(value):
    return pickle.dumps(value, protocol=2)


def in_a_list(value):
    return archived({"state": [torch.ones(2), {"deep": (value,)}]})


@pytest.mark.parametrize("file", PAYLOAD)
@pytest.mark.parametrize("spell", [archived, legacy, bare, in_a_list])
@pytest.mark.parametrize("kind", [Runs, Opens, Evaluates, Builds])
def test_a_pickle_in_any_file_is_refused_by_name_and_not_run(folder, marker, file, spell, kind):
    # given
    (folder / "step_200" / file).write_bytes(spell(kind(marker)))
    forge(folder / "step_200")
    training = Training()
    before = [parameter.detach().clone() for parameter in training.model.parameters()]

    # when
    checkpoints = Checkpointer(folder)
    with pytest.raises(CheckpointError, match=file.replace(".", r"\.")) as refusal:
        checkpoints.load(checkpoints.pick(), **training.parts)

    # then
    assert str(refusal.value).isascii()
    assert "step_200" in str(refusal.value)
    assert all(torch.equal(old, new) for old, new in zip(before, training.model.parameters(), strict=True))
    assert not marker.exists()


@contextmanager
def little_memory(more_bytes):
    """What asks for much more memory than there is now gets none."""
    kept = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes, kept[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, kept)


def rewritten(data, change):
    """A torch archive with each entry as `change(name, content)` gives it: name, content, method."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(result, "w") as new:
        for name in old.namelist():
            new_name, content, method = change(name, old.read(name))
            new.writestr(zipfile.ZipInfo(new_name), content, method)
    return result.getvalue()


@pytest.mark.parametrize("file", ["model.pt", "rank_0.pt"])
def test_an_archive_that_unpacks_to_a_thousand_times_its_size_is_refused_before_that(folder, file):
    # given 256 MB of zeros in 256 KB
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with zipfile.ZipFile(folder / "step_200" / file) as old:
            for name in old.namelist():
                if not name.endswith("/data/0"):
                    archive.writestr(name, old.read(name))
        with archive.open(name.partition("/")[0] + "/data/0", "w") as entry:
            for _ in range(256):
                entry.write(bytes(1 << 20))
    (folder / "step_200" / file).write_bytes(bomb.getvalue())
    assert (folder / "step_200" / file).stat().st_size < 2_000_000
    forge(folder / "step_200")

    # when
    checkpoints, training = Checkpointer(folder), Training()
    with little_memory(200_000_000), pytest.raises(CheckpointError, match=file.replace(".", r"\.")):
        checkpoints.load(checkpoints.pick(), **training.parts)


def test_names_that_climb_in_an_archive_write_nothing_anywhere(folder):
    # given
    before = sorted(folder.parent.rglob("*"))
    path = folder / "step_200" / "model.pt"
    path.write_bytes(
        rewritten(path.read_bytes(), lambda name, content: (f"../../../{name}", content, zipfile.ZIP_STORED))
    )
    forge(folder / "step_200")

    # when
    checkpoints = Checkpointer(folder)
    with pytest.raises(CheckpointError, match=r"model\.pt"):
        checkpoints.load(checkpoints.pick(), **Training().parts)

    # then
    assert sorted(folder.parent.rglob("*")) == before


def test_a_tensor_that_says_it_is_huge_asks_for_no_memory(folder):
    # given 4 bytes that call themselves 4 TB
    state = torch.load(folder / "step_200" / "optimizer.pt", weights_only=True)

    def blown_up(value):
        if isinstance(value, torch.Tensor) and value.dim():
            return torch.zeros(1).as_strided((10**12,), (0,))
        return {key: blown_up(entry) for key, entry in value.items()} if isinstance(value, dict) else value

    torch.save(blown_up(state), folder / "step_200" / "optimizer.pt")
    forge(folder / "step_200")

    # when
    checkpoints, training = Checkpointer(folder), Training()
    with little_memory(1_000_000_000), pytest.raises(CheckpointError, match=r"step_200.* exp_avg"):
        checkpoints.load(checkpoints.pick(), **training.parts)


@pytest.mark.parametrize(
    "path", ["../step_100/model.pt", "/etc/hostname", "a/../../x", "..", "\x1b[2J", "a\0b", "x" * 5000]
)
def test_a_manifest_with_a_path_that_leads_out_is_refused(folder, path):
    # given
    (folder / "x").write_text("outside")
    manifest = json.loads((folder / "step_200" / "trimtab_manifest.json").read_bytes())["manifest"]
    files = [*manifest["files"], {"path": path, "size_bytes": 7, "crc32": zlib.crc32(b"outside")}]
    manifest["files"] = files
    spelled = canonical(manifest)
    document = b'{"manifest": %s, "crc32": %d}' % (spelled, zlib.crc32(spelled))
    (folder / "step_200" / "trimtab_manifest.json").write_bytes(document)

    # when
    info = pick(folder)

    # then
    assert info.step == 100
    assert "trimtab_manifest.json" in info.refused[0].reason
    check_speakable(info.refused[0].reason)


@pytest.mark.parametrize("target", ["/etc/hostname", "../../mine.pt", "/dev/zero"])
def test_a_link_out_of_the_checkpoint_is_not_followed(folder, target):
    # given
    (folder.parent / "mine.pt").write_bytes((folder / "step_200" / "model.pt").read_bytes())
    (folder / "step_200" / "model.pt").unlink()
    (folder / "step_200" / "model.pt").symlink_to(target)
    if target.startswith(".."):
        forge(folder / "step_200")

    # when
    info = pick(folder)

    # then
    assert info.step == 100
    assert "model.pt is a link that leads out of the checkpoint" in info.refused[0].reason
    with pytest.raises(CheckpointError, match="leads out of the checkpoint"):
        Checkpointer(folder).load(folder / "step_200", **Training().parts)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(folder):
    for name in ("model.pt", "trimtab_manifest.json"):
        (folder / "step_200" / name).unlink()
        os.mkfifo(folder / "step_200" / name)

        assert pick(folder).step == 100


def test_a_manifest_of_a_gigabyte_is_refused_without_reading_it(folder):
    with (folder / "step_200" / "trimtab_manifest.json").open("r+b") as file:
        file.truncate(1 << 30)  # a hole: it takes no room here

    begin = time.perf_counter()
    with little_memory(400_000_000):
        info = pick(folder)

    assert info.step == 100
    assert time.perf_counter() - begin < 5
    assert "trimtab_manifest.json" in info.refused[0].reason


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200_000,
        b'{"manifest":' * 50_000,
        b'{"manifest": {"step": ' + b"9" * 100_000 + b'}, "crc32": 1}',
        b'{"manifest": {"step": 1e999}, "crc32": 1}',
        b'{"manifest": {}, "manifest": {}, "crc32": 0}',
        b'{"manifest": {}, "crc32": ' + b"9" * 100_000 + b"}",
        b"\xff\xfe{\x00}\x00",
        b"null",
        b"",
    ],
    ids=range(9),
)
def test_json_that_is_deep_huge_double_or_none_is_refused(folder, text):
    (folder / "step_200" / "trimtab_manifest.json").write_bytes(text)

    info = pick(folder)

    assert info.step == 100
    check_speakable(info.refused[0].reason)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 10**400},
        {"step": -1},
        {"step": True},
        {"step": "200"},
        {"serial": 10**30},
        {"serial": 0},
        {"world_size": 10**30},
        {"run_id": "a\x1b[31m"},
        {"run_id": "../../a"},
        {"run_id": ["a"]},
        {"saver": "pickle"},
        {"healthy": "yes"},
        {"lr": [10**400]},
        {"loss": [1]},
        {"parts": {"model": ["/etc/passwd"]}},
        {"parts": {"model": "model.pt"}},
        {"files": {}},
        {"files": [[]]},
        {"versions": {"torch": {}}},
        {"facts": []},
        {"unhealthy_because": "a"},
        {"version": 10**9},
    ],
    ids=str,
)
def test_a_field_that_is_not_what_it_should_be_is_refused(folder, changes):
    forge(folder / "step_200", **changes)

    info = pick(folder)

    assert info.step == 100
    check_speakable(info.refused[0].reason)
    assert not verify(folder / "step_200").ok


def test_control_characters_never_reach_the_terminal(folder, capfd):
    # given
    evil = "\x1b[2J\x1b]0;title\x07\u202ereversed\n\r\x9b"
    forge(folder / "step_200", unhealthy_because=[evil], healthy=False, versions={"torch": evil}, facts={evil: evil})
    (folder / evil.replace("/", "")).mkdir()

    # when
    for words in (["ls"], ["pick"], ["pick", "--healthy"], ["verify"]):
        target = folder / "step_200" if words == ["verify"] else folder
        with pytest.raises(SystemExit):
            main(["ckpt", *words, str(target)])

    # then
    told = capfd.readouterr()
    assert "step_200" in told.out
    for text in (told.out, told.err):
        assert not {"\x1b", "\x07", "\u202e", "\r", "\x9b"} & set(text)


def test_a_manifest_that_says_it_replaced_the_files_of_others_removes_none(folder):
    # given
    mine = folder.parent / "thesis.txt"
    mine.write_text("all of it")
    forge(folder / "step_200", facts={"replaces": ["../../thesis.txt", str(mine)]})
    (folder / "step_200" / "again-01234567").mkdir()

    # when
    assert Checkpointer(folder, run_id="run-a").save(200, **Training().parts) is not None

    # then
    assert mine.read_text() == "all of it"


def check_speakable(text):
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 3000
