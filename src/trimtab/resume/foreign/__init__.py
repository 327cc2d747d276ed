"""Checkpoints that are not ours: of a Hugging Face Trainer, and single files of somebody's own loop.

Enters: a path. Leaves: `Inspected`. Invariant: nothing in them is run, and torch is not imported.
"""

from trimtab.resume.foreign.hf import inspect_hf
from trimtab.resume.foreign.inspected import Inspected
from trimtab.resume.foreign.plain_file import inspect_file

__all__ = ["Inspected", "inspect_file", "inspect_hf"]
