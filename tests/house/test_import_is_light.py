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
