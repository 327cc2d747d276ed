"""Checkpoints that are not ours: of a Hugging Face Trainer, and single files of somebody's own loop.

Enters: a path. Leaves: `Inspected`. Invariant: nothing in them is run, and torch is not imported. A further format is a
file beside these, and its name in `FORMATS`.
"""

from typing import Final

from trimtab.resume.foreign import hf, plain_file
from trimtab.resume.foreign.format import Format

FORMATS: Final[tuple[Format, ...]] = (hf.FORMAT, plain_file.FORMAT)
"""All that this version knows; of several that recognise a path the first one counts."""
