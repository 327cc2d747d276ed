"""Which checkpoint is picked among those that nobody wrote a manifest for: files and folders as torch leaves them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.errors import CheckpointError
from trimtab.resume.select import pick
from trimtab.resume.verify import verify


def trained() -> dict[str, Any]:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}


def save(path: Path, **entries: Any) -> Path:
    torch.save({**trained(), "step": int("".join(filter(str.isdigit, path.name))), **entries}, path)
    return path


def test_a_collapse_a_recovery_and_a_draft_are_not_picked(tmp_path: Path) -> None:
    # C069
    path = save(tmp_path / "step_p_003000.pt")
    others = ("step_p_003500_postcollapse.pt", "recovery_step002500.pt", "step_p_900.pt.tmp")
    for name in others:
        save(tmp_path / name)

    info = pick(tmp_path)

    assert (info.path, info.step, info.saver, info.promise, info.healthy) == (path, 3000, "file", "structure", None)
    assert sorted(entry.path.name for entry in info.ignored) == sorted(others)
    assert "no manifest of Trimtab" in info.notices[0]


def test_a_file_without_random_numbers_is_picked_and_that_is_said(tmp_path: Path) -> None:
    # nanoGPT's keys, and those of most loops
    state = trained()
    kept = {"model": state["model"], "optimizer": state["optimizer"], "iter_num": 900, "config": {}}
    torch.save(kept, tmp_path / "step_900.pt")

    info = pick(tmp_path)

    assert (info.step, info.missing) == (900, ())
    assert info.notices[1].startswith("step_900.pt: it holds no random numbers: a run that goes on from it is not bit-")


def test_a_model_alone_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    # C079
    save(tmp_path / "step_900.pt")
    torch.save({"step": 1000, "model": trained()["model"], "cfg": {}}, tmp_path / "step_1000.pt")

    info = pick(tmp_path)

    assert info.step == 900
    assert info.refused[0].reason.startswith("lacks optimizer, which a resume needs; as an explicit fresh start")
    assert verify(tmp_path / "step_1000.pt").ok


def test_an_empty_file_of_one_rank_makes_a_checkpoint_incomplete(tmp_path: Path) -> None:
    # C076, in the folder of a Trainer with DeepSpeed.
    save(tmp_path / "step_900.pt")
    folder = tmp_path / "checkpoint-1000"
    (folder / "global_step1000").mkdir(parents=True)
    (folder / "global_step1000" / "mp_rank_00_model_states.pt").touch()
    save(folder / "global_step1000" / "mp_rank_01_model_states.pt")

    info = pick(tmp_path)

    assert info.step == 900
    assert any("mp_rank_00_model_states.pt is empty" in problem for problem in verify(folder).problems)


def test_a_truncated_file_falls_back_to_the_next_older_one(tmp_path: Path) -> None:
    save(tmp_path / "step_900.pt")
    path = save(tmp_path / "step_1000.pt")
    path.write_bytes(path.read_bytes()[:-100])

    info = pick(tmp_path)

    assert info.step == 900
    assert info.refused[0].path == path


def test_a_file_under_the_name_of_another_step_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "step_900.pt")
    save(tmp_path / "step_1000.pt", step=800)

    info = pick(tmp_path)

    assert info.step == 900
    assert info.refused[0].reason.startswith("step_1000.pt says step 800 inside: it was copied or renamed")


def test_nobody_knows_whether_a_file_is_healthy(tmp_path: Path) -> None:
    save(tmp_path / "step_900.pt")

    with pytest.raises(
        CheckpointError, match=r"step_900\.pt: no trimtab_manifest\.json, so that its health is not known"
    ):
        pick(tmp_path, healthy=True)
