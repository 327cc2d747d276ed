"""`trimtab calibrate`, as a person or a script calls it."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

CURVES = Path(__file__).parents[2] / "data" / "curves"
CODE = 'trimtab.GuardConfig(rule="robust", k=10.0, window_size=100)'


def test_it_ends_in_a_setting_to_paste(trimtab):
    result = trimtab("calibrate", CURVES / "nanogpt_valueembed_d884.csv")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"\n    {CODE}\n" in result.stdout
    assert "losses of 1,530 steps, 2 findings of the loss" in result.stdout


def test_json_on_standard_output_stands_there_alone(trimtab):
    result = trimtab("calibrate", CURVES / "nanogpt_valueembed_d884.csv", "--top", 1, "--json", "-")
    document = json.loads(result.stdout)
    assert (document["version"], document["code"], document["unit"]) == (1, CODE, "step")
    assert document["recommended"] == {"rule": "robust", "k": 10.0, "window_size": 100}
    assert max(len(outcome["first_steps"]) for outcome in document["outcomes"]) == 1


def test_json_is_written_to_a_file_beside_the_table(trimtab, spiky, here):
    result = trimtab("calibrate", spiky, "--json", "out.json")
    assert result.exit_code == 0
    assert "micro-batches" in result.stdout
    assert json.loads((here / "out.json").read_text())["num_losses"] == 60


def test_without_a_name_the_newest_run_is_replayed(trimtab, record):
    record("r1")
    result = trimtab("calibrate")
    assert result.exit_code == 0
    assert result.stdout.startswith("Run r1: losses of 40 micro-batches")


def test_a_log_is_never_written_over(trimtab, spiky):
    before = spiky.read_bytes()
    result = trimtab("calibrate", spiky, "--json", spiky.name)
    assert result.exit_code == 2
    assert spiky.read_bytes() == before


def test_of_a_folder_with_two_logs_one_is_read_and_the_other_named(trimtab, write_log, here):
    write_log()
    write_log("rewind.jsonl.1")
    result = trimtab("calibrate", here)
    assert result.exit_code == 0
    assert "rewind.jsonl.1 is another run: name the file to read it" in result.stdout


def test_what_is_no_log_is_one_line_and_exit_code_1(trimtab, here):
    result = trimtab("calibrate", here)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no log in ")


def test_settings_that_make_no_sense_are_exit_code_2(trimtab, spiky):
    assert trimtab("calibrate", spiky, "--top", 0).exit_code == 2
    assert trimtab("calibrate", spiky, spiky).exit_code == 2


def test_a_large_log_shows_its_progress_on_a_terminal_alone(write_log):
    # given
    log = write_log(num_steps=200)
    program = (
        "import trimtab.cli.progress as progress; progress.FROM_BYTES = 1;"
        f"from trimtab.cli import main; main(['calibrate', {str(log)!r}])"
    )

    # when
    leader, follower = pty.openpty()
    watched = subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=follower, check=False)
    os.close(follower)
    shown = os.read(leader, 1 << 20).decode()
    os.close(leader)
    unwatched = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)

    # then
    assert watched.returncode == 0
    assert "replaying" in shown
    assert "%" in shown
    assert (unwatched.returncode, unwatched.stderr) == (0, b"")
