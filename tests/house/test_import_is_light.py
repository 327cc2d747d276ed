"""`import trimtab` costs a trainer nothing: the standard library only, and little of it."""

import json
import subprocess
import sys

PROGRAM = """
import sys
before = set(sys.modules)
import trimtab
import json
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_importing_trimtab_loads_the_standard_library_only():
    # when
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(run.stdout)}
    # then: neither torch, transformers, duckdb nor numpy among them
    assert "trimtab" in loaded
    assert loaded - {"trimtab"} <= sys.stdlib_module_names


def test_importing_trimtab_takes_a_fifth_of_a_second_at_most():
    # given: Python's own account of the time an import takes, in microseconds, what it imports included
    run = subprocess.run([sys.executable, "-X", "importtime", "-c", "import trimtab"], capture_output=True, text=True)
    took_us = [int(line.split("|")[1]) for line in run.stderr.splitlines() if line.endswith("| trimtab")]
    # then: 2 ms measured
    assert min(took_us) < 200_000
