"""Two ranks save together: where the disk of one fails, or one is killed, both go on from the same checkpoint."""

import errno
import runpy
from pathlib import Path

import pytest

from trimtab.checkpoint import Checkpointer
from trimtab.resume.manifest import read_manifest

WORKER = Path(__file__).with_name("checkpoint_of_a_rank.py")


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(WORKER)


@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_could_not_do_both_hear_in_the_same_words(pair, rank):
    assert pair.call("of_all_where_one_fails", rank=rank) == [f"rank {rank}: OSError: planted"] * 2


@pytest.mark.parametrize(
    ("rank", "every"), [(1, 9), *(pytest.param(rank, 4, marks=pytest.mark.long) for rank in (0, 1))]
)
def test_a_disk_that_fails_on_one_rank_fails_the_save_on_both(pair, tmp_path, rank, every):
    first, second = pair.call("fail_everywhere", folder=str(tmp_path), rank=rank, what=errno.ENOSPC, every=every)

    assert len(first) > 3
    for mine, theirs in zip(first, second, strict=True):
        for told in (mine, theirs):
            # Where only the last sync fails, the new one stands although nobody promises that it outlives a power cut.
            assert told["step"] == 2 or (told["step"] == 1 and not told["saved"]), told
            assert told["exact"], told
            assert told["saved_next"], told
            assert told["saved"] or told["left"] == [], told
        assert (mine["saved"], mine["step"]) == (theirs["saved"], theirs["step"])
    # What cannot be deleted on rank 0 in the end fails no save.
    assert sum(not told["saved"] for told in first) > len(first) * 0.5


@pytest.mark.long
@pytest.mark.parametrize(("rank", "at"), [(1, 0), (1, 3), (0, 5), (0, -2)])
def test_a_rank_that_is_killed_while_it_saves_leaves_what_was_there(rank_pair, tmp_path, rank, at):
    # given
    pair = rank_pair(WORKER)
    pair.call("prepare", folder=str(tmp_path))
    num = pair.call("disturbed", folder=str(tmp_path / "counted"), rank=rank, at=-1, what="kill before")[rank]["num"]

    # when
    with pytest.raises(AssertionError, match="it died"):
        pair.call("disturbed", folder=str(tmp_path), rank=rank, at=at % num, what="kill before")

    # then
    training = runpy.run_path(str(WORKER.with_name("small_training.py")))["Training"]
    info = Checkpointer(tmp_path).pick()
    expected = training().advance(info.step)
    resumed = training()
    Checkpointer(tmp_path).load(info, model=resumed.model, optimizer=resumed.optimizer, scheduler=resumed.scheduler)
    for name, value in resumed.model.state_dict().items():
        assert value.equal(expected.model.state_dict()[name])
    assert info.step == (2 if at < 0 else 1)


def test_what_the_watch_of_any_rank_says_of_the_health_stands_in_the_manifest(pair, tmp_path):
    assert pair.call("save_what_watches_say", folder=str(tmp_path)) == [False, False]

    manifest = read_manifest(Checkpointer(tmp_path).pick().path)
    assert manifest.unhealthy_because == ("alike on all", "memory of rank 1")
