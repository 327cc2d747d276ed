"""Every byte of a small checkpoint changed, every file cut at every place: what is picked is what was saved."""

import shutil

import pytest

from trimtab.errors import CheckpointError
from trimtab.resume.manifest import MANIFEST_NAME, Manifest, read_manifest
from trimtab.resume.select import pick
from trimtab.resume.verify import verify
from trimtab.resume.writing import Draft

PAYLOAD = {"model.pt": bytes(range(60)), "optimizer.pt": b"\0" * 40, "run.pt": b"step", "rank_0.pt": b"\xff" * 9}
PARTS = {"model": ("model.pt",), "optimizer": ("optimizer.pt",), "step": ("run.pt",), "rng": ("rank_0.pt",)}


def save(folder, step):
    draft = Draft.begin(folder, f"step_{step}")
    for relative, data in PAYLOAD.items():
        with draft.file(relative) as stream:
            stream.write(data)
    return draft.commit(
        Manifest(
            saver="trimtab",
            step=step,
            run_id="run-a",
            serial=step // 100,
            parts=PARTS,
            files=draft.entries,
            loss=1.5,
            lr=(3e-4, 1e-5),
            versions={"torch": "2.13"},
            facts={"rows": [1, 2]},
        )
    )


@pytest.fixture
def newest(tmp_path):
    """The newer of two checkpoints, which the test may damage."""
    save(tmp_path, 100)
    save(tmp_path, 200)
    # As a run has one that goes over its steps again.
    return save(tmp_path, 200)


def content(checkpoint):
    return {path.relative_to(checkpoint): path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}


def check_damage(checkpoint, file, damaged, saved, manifest):
    """Step 200 only as it was saved, else step 100; True where the damage was noticed."""
    whole = file.read_bytes()
    file.write_bytes(damaged)
    try:
        info = pick(checkpoint.parent)
        report = verify(checkpoint)
        if info.step == 100:
            assert not report.ok
            (refused,) = info.refused
            assert refused.path == checkpoint
            assert refused.reason
            return True
        # A byte that changes nothing, such as the line's end after the manifest.
        assert (info.step, info.healthy, info.run_id, info.loss) == (200, True, "run-a", 1.5)
        assert report.ok
        assert file.name == MANIFEST_NAME
        assert read_manifest(checkpoint) == manifest
        assert {path: data for path, data in content(checkpoint).items() if path.name != MANIFEST_NAME} == saved
        return False
    finally:
        file.write_bytes(whole)


def check_all(checkpoint, damages):
    manifest = read_manifest(checkpoint)
    files = content(checkpoint)
    saved = {path: data for path, data in files.items() if path.name != MANIFEST_NAME}
    assert len(saved) == len(PAYLOAD)
    num = num_unnoticed = 0
    for relative, whole in files.items():
        for damaged in damages(whole):
            num += 1
            num_unnoticed += not check_damage(checkpoint, checkpoint / relative, damaged, saved, manifest)
    return num, num_unnoticed


def flips(every, *patterns):
    def damages(whole):
        for place in range(0, len(whole), every):
            for pattern in patterns:
                yield whole[:place] + bytes([whole[place] ^ pattern]) + whole[place + 1 :]

    return damages


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_byte_that_changed_is_noticed_or_changes_nothing(newest, every):
    num, num_unnoticed = check_all(newest, flips(every, 0x01, 0x80, 0xFF))

    assert num > 300
    assert num_unnoticed < 4


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_file_that_was_cut_anywhere_is_noticed(newest, every):
    num, num_unnoticed = check_all(newest, lambda whole: (whole[:length] for length in range(0, len(whole) - 1, every)))

    assert num > 100
    assert num_unnoticed == 0


@pytest.mark.parametrize(
    "damage", [lambda whole: b"", lambda whole: whole * 2, lambda whole: whole[::-1], lambda whole: b"\0" * len(whole)]
)
def test_a_file_that_was_emptied_doubled_reversed_or_zeroed_is_noticed(newest, damage):
    saved_alike = {b"\0" * 40, b"\xff" * 9}

    def damages(whole):
        return [damaged for damaged in [damage(whole)] if damaged not in saved_alike]

    assert check_all(newest, damages)[1] == 0


def test_a_file_that_is_gone_or_became_a_folder_is_noticed(newest):
    for relative, whole in content(newest).items():
        (newest / relative).unlink()
        assert pick(newest.parent).step == 100
        (newest / relative).mkdir()
        assert pick(newest.parent).step == 100
        (newest / relative).rmdir()
        (newest / relative).write_bytes(whole)
    assert pick(newest.parent).step == 200


def test_two_files_that_changed_places_are_noticed(newest):
    files = list(newest.rglob("*.pt"))
    for one in files:
        for other in files:
            if one == other:
                continue
            first, second = one.read_bytes(), other.read_bytes()
            one.write_bytes(second)
            other.write_bytes(first)
            assert pick(newest.parent).step == 100
            one.write_bytes(first)
            other.write_bytes(second)


def test_the_manifest_of_another_checkpoint_is_noticed(newest):
    shutil.copyfile(newest.with_name("step_100") / MANIFEST_NAME, newest / MANIFEST_NAME)

    assert pick(newest.parent).step == 100


def test_where_every_checkpoint_is_damaged_there_is_none(newest):
    for file in newest.parent.rglob("*.pt"):
        file.write_bytes(file.read_bytes()[:-1])

    with pytest.raises(CheckpointError, match=r"step_200.*step_100"):
        pick(newest.parent)
