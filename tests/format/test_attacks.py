"""The logs of `attacks/`, read in a process of their own: what README.md says must happen, happens."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

ATTACKS = Path(__file__).with_name("attacks")
KINDS = ("rows", "steps", "events", "ids")


def table() -> list[list[str]]:
    """The lines of README.md's table: attack, four counts, what is said."""
    lines = [line for line in (ATTACKS / "README.md").read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


# Each answer is a line of its own, so that one that ends the process is known by name.
READ = textwrap.dedent("""
    import importlib.util, json, resource, sys, time
    from pathlib import Path

    spec = importlib.util.spec_from_file_location("make", sys.argv[1])
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    from trimtab.errors import LogError
    from trimtab.log.reader import open_log

    made = {}
    for name, attack in make.ATTACKS.items():
        folder = Path(sys.argv[2]) / name
        folder.mkdir()
        made[name] = attack(folder)
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    for name, path in made.items():
        began, found = time.monotonic(), {"name": name, "said": []}
        try:
            log = open_log(path)
            found["rows"] = sum(block.num_records for block in log.row_blocks())
            found["steps"] = log.step_columns().num_records
            found["events"] = len(log.event_list())
            found["ids"] = log.id_columns().num_records
            found["said"] = log.notices()
            del log
        except LogError as error:
            found["said"] = [str(error)]
        found["wall_s"] = time.monotonic() - began
        # Not ru_maxrss: that begins with what the process had that started this one.
        found["peak_bytes"] = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
        print(json.dumps(found), flush=True)
""")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What reading each attack gave, by name."""
    made = tmp_path_factory.mktemp("attacks")
    run = subprocess.run(
        [sys.executable, "-c", READ, ATTACKS / "make.py", made],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    answers = {answer["name"]: answer for answer in map(json.loads, run.stdout.splitlines())}
    assert run.returncode == 0, f"the reader died behind {list(answers)[-1:]}: {run.stderr[-2000:]}"
    return answers


pytestmark = pytest.mark.long


@pytest.mark.parametrize("line", table(), ids=lambda line: line[0])
def test_what_must_happen_happens(answers: dict[str, dict[str, Any]], line: list[str]) -> None:
    name, *counts, said = line

    answer = answers[name]

    assert [answer[kind] for kind in KINDS] == [int(count) for count in counts]
    assert said in "\n".join(answer["said"])
    assert (said == "") == (answer["said"] == [])
    assert all(" " <= char <= "~" for text in answer["said"] for char in text)
    assert answer["wall_s"] < 60


def test_no_attack_takes_much_memory(answers: dict[str, dict[str, Any]]) -> None:
    assert max(answer["peak_bytes"] for answer in answers.values()) < 700 << 20


def test_every_attack_stands_in_the_table(answers: dict[str, dict[str, Any]]) -> None:
    assert sorted(answers) == sorted(line[0] for line in table())


def test_a_parquet_of_noise_whose_checksums_are_right_ends_no_reader(tmp_path: Path) -> None:
    # given a good segment whose files get a few wrong bytes each time, and are signed again
    script = textwrap.dedent("""
        import importlib.util, random, sys
        from pathlib import Path

        spec = importlib.util.spec_from_file_location("make", sys.argv[1])
        make = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(make)
        import json, resource, zlib
        from trimtab.log.reader import open_log

        folder = Path(sys.argv[2])
        segment = make.sealed(folder)
        info = make.info_of(segment)
        good = {name: (segment / name).read_bytes() for name in info["files"]}
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        chance = random.Random(5)
        num_left_out = 0
        for _ in range(300):
            name = chance.choice(list(good))
            data = bytearray(good[name])
            for _ in range(chance.choice([1, 1, 2, 20])):
                data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
            (segment / name).write_bytes(data)
            changed = json.loads(json.dumps(info))
            rest, place = b"", 0
            for group in changed["files"][name]["groups"]:
                end = group["offset"] + group["size_bytes"]
                group["crc"] = zlib.crc32(data[group["offset"]:end])
                rest += data[place:group["offset"]]
                place = end
            changed["files"][name]["rest_crc"] = zlib.crc32(rest + data[place:])
            make.sign(segment, changed)
            log = open_log(folder)
            assert sum(block.num_records for block in log.row_blocks()) in (0, 40)
            assert log.step_columns().num_records in (0, 20)
            log.event_list()
            assert log.id_columns().num_records <= 20
            num_left_out += bool(log.notices())
            (segment / name).write_bytes(good[name])
        print(num_left_out)
    """)

    run = subprocess.run(
        [sys.executable, "-c", script, ATTACKS / "make.py", tmp_path], capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout) > 50
