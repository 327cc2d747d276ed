"""The examples do what their first lines say: each runs by itself, offline, on the CPU, and within a minute."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 80


@pytest.fixture(scope="module")
def examples() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.py"))


def run_program(*command: str | Path, folder: Path, home: Path) -> str:
    environment = {**os.environ, "TRIMTAB_HOME": str(home), "TMPDIR": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_example_fits_on_a_page(examples: list[Path]) -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in examples}
    assert {name: length for name, length in lengths.items() if length >= MAX_LINES} == {}


@pytest.mark.long
def test_the_document_planted_among_packed_ones_is_the_first_row_that_rewind_names(
    tmp_path: Path, trimtab_home: Path
) -> None:
    # when
    said = run_program(sys.executable, ROOT / "examples" / "trl_packing.py", folder=tmp_path, home=trimtab_home)
    trimtab = Path(sys.executable).with_name("trimtab")
    command = (trimtab, "rewind", "--json", "-", "--data", "examples.trl_packing:load_rows")
    # then
    report = json.loads(run_program(*command, folder=ROOT, home=trimtab_home))
    assert report["source"] in said
    assert f"Document {report['rows'][0]['row']} was planted" in said
    assert report["spikes"][0]["kind"] == "spike"
    assert report["spikes"][0]["score"] > 20  # a spike begins at 10: other versions of torch may come out lower
    assert report["rows"][0]["share"] > 0.9
    assert report["rows"][0]["preview"].startswith("\\u0")
    # and it shared its sequence
    assert len(report["rows"]) > 1


def test_an_example_without_its_packages_says_which_to_install() -> None:
    # given
    program = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path('examples/trl_packing.py')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    # then
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "-m pip install '.[trl]'" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_a_row_planted_on_one_rank_is_left_out_on_both_and_named(tmp_path: Path, trimtab_home: Path, name: str) -> None:
    # when
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    said = run_program(*torchrun, ROOT / "examples" / f"{name}.py", folder=tmp_path, home=trimtab_home)
    # then
    assert re.findall(r"^Left out: .*", said, re.MULTILINE) == ["Left out: 1 of 2 micro-batches; row 1341 was planted"]
    weights = re.findall(r"ends with weights (\w{8})", said)
    assert len(weights) == 2
    assert len(set(weights)) == 1
    # and the one log of both ranks
    trimtab = Path(sys.executable).with_name("trimtab")
    command = (trimtab, "rewind", "--json", "-", "--data", f"examples.{name}:make_rows")
    report = json.loads(run_program(*command, folder=ROOT, home=trimtab_home))
    assert report["rows"][0]["row"] == 1341
    assert report["rows"][0]["rank"] == 1


@pytest.mark.long
def test_a_row_planted_on_one_rank_of_a_trainer_is_skipped_on_both_and_named(
    tmp_path: Path, trimtab_home: Path
) -> None:
    # when
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    said = run_program(*torchrun, ROOT / "examples" / "hf_ddp.py", folder=tmp_path, home=trimtab_home)
    # then
    assert "Row 229 was planted" in said
    trimtab = Path(sys.executable).with_name("trimtab")
    command = (trimtab, "rewind", "--json", "-", "--data", "examples.hf_ddp:make_rows")
    report = json.loads(run_program(*command, folder=ROOT, home=trimtab_home))
    assert report["spikes"][0]["kind"] == "spike"
    assert report["spikes"][0]["score"] > 20  # a spike begins at 10: other versions of torch may come out lower
    assert (report["rows"][0]["row"], report["rows"][0]["rank"]) == (229, 1)
    assert report["rows"][0]["share"] > 0.9
    assert any("every row of step" in notice and "left out of the update" in notice for notice in report["notices"])


@pytest.mark.long
def test_a_checkpoint_goes_on_at_the_rate_that_was_asked_for(tmp_path: Path, trimtab_home: Path) -> None:
    # when: a second time over its own checkpoints
    program = (sys.executable, ROOT / "examples" / "resume_new_lr.py")
    first, again = (run_program(*program, folder=tmp_path, home=trimtab_home) for _ in range(2))
    # then: 3e-4 x 0.5 x (1 + cos(pi x 200 / 1000)) and so on
    assert "LR re-base: 5e-04 -> 3e-04 on resume (schedule phase preserved)" in first.splitlines()
    assert re.findall(r"  step 20\d: (\S+)", first)[:3] == ["2.7135e-04", "2.7107e-04", "2.7080e-04"]
    assert again == first
    trimtab = Path(sys.executable).with_name("trimtab")
    listed = run_program(trimtab, "ckpt", "ls", "runs/", folder=tmp_path, home=trimtab_home)
    assert "step_100" in listed
    picked = run_program(
        trimtab, "ckpt", "pick", "--healthy", "--json", "-", "runs/", folder=tmp_path, home=trimtab_home
    )
    assert (json.loads(picked)["step"], json.loads(picked)["healthy"]) == (200, True)


@pytest.mark.long
def test_routers_that_go_wrong_are_told_while_they_do_and_by_rewind(tmp_path: Path, trimtab_home: Path) -> None:
    # when
    said = run_program(sys.executable, ROOT / "examples" / "mixtral_watch.py", folder=tmp_path, home=trimtab_home)
    # then: the middle layer's logits grow, and the last one leaves experts without a token
    found = re.search(r"^Found: (.*); the run is in", said, re.MULTILINE)
    assert found is not None
    told = [tuple(one.split(" at step ")) for one in found[1].split(", ")]
    kinds = {kind for kind, _ in told}
    assert {"logits_growing", "dead_experts"} <= kinds
    assert len(re.findall(r"^step +\d+ model\.layers\.1\.mlp\.gate: z", said, re.MULTILINE)) == 4
    # and the log alone says the same
    trimtab = Path(sys.executable).with_name("trimtab")
    report = json.loads(run_program(trimtab, "rewind", "--json", "-", folder=tmp_path, home=trimtab_home))
    assert kinds - {"grad_norm_jump"} <= {one["kind"] for one in report["health"]}
    layers = {layer for one in report["health"] if one["kind"] == "logits_growing" for layer in one["layers"]}
    assert layers == {"model.layers.1.mlp.gate"}


@pytest.mark.long
def test_chunks_pass_their_gates_until_one_is_trained_at_another_rate_than_was_asked_for(
    tmp_path: Path, trimtab_home: Path
) -> None:
    # when
    said = run_program(sys.executable, ROOT / "examples" / "chunk_gate.py", folder=tmp_path, home=trimtab_home)
    # then: 10 gates are not about routers
    verdicts = re.findall(r"^\d+ of \d+ gates passed.*", said, re.MULTILINE)
    assert verdicts == [
        *["10 of 10 gates passed. The next chunk may start."] * 2,
        "9 of 10 gates passed; 1 failed: learning_rate. Do not start the next chunk.",
    ]
    assert "resume keeps 4e-03; pass lr=0.002 to use 2e-03" in said.splitlines()
    # and the log alone says the same
    trimtab = Path(sys.executable).with_name("trimtab")
    environment = {**os.environ, "TRIMTAB_HOME": str(trimtab_home)}
    done = subprocess.run((trimtab, "gate", "--json", "-"), env=environment, capture_output=True, text=True)
    gates = {gate["name"]: gate for gate in json.loads(done.stdout)["gates"]}
    assert done.returncode == 3
    assert [name for name, gate in gates.items() if gate["status"] == "failed"] == ["learning_rate"]
    rates = gates["learning_rate"]["figures"]
    assert (rates["step"], rates["num_wrong"]) == (81, 40)
    assert rates["found"] == pytest.approx(2 * rates["expected"])


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "hf_ddp"])
def test_an_example_for_two_processes_says_how_to_start_them(name: str) -> None:
    # when
    done = subprocess.run([sys.executable, f"examples/{name}.py"], cwd=ROOT, capture_output=True, text=True)
    # then
    assert done.returncode == 1
    assert f"torchrun --nproc-per-node 2 examples/{name}.py" in done.stderr
    assert "Traceback" not in done.stderr
