"""The settings that were saved with a checkpoint, by which a trainer builds what it then loads into.

Enters: a checkpoint. Leaves: what was given to `save` as `config`. Invariant: nothing but its manifest and its small
file of the run is read, as a stranger's; no weight, and no pickle runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.errors import CheckpointError
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.manifest import read_manifest
from trimtab.torch.checkpoint_source import Source


def saved_config(checkpoint: CheckpointInfo | str | os.PathLike[str]) -> Any:
    """What was saved as `config`; None where nothing was.

    It is not verified: `Checkpointer.load` does that, of every byte, before it puts anything in place.

    Args:
        checkpoint: What `pick` gave, or the path of a checkpoint that Trimtab has saved.

    Raises:
        CheckpointError: It is none, or cannot be read.

    Example:
        >>> import tempfile, torch
        >>> from trimtab.checkpoint import Checkpointer
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> saved = Checkpointer(tempfile.mkdtemp()).save(1, model=model, optimizer=optimizer, config={"dim": 4})
        >>> saved_config(saved)
        {'dim': 4}
    """
    path = checkpoint.path if isinstance(checkpoint, CheckpointInfo) else Path(os.path.abspath(checkpoint))
    source = Source(path=path, manifest=read_manifest(path))
    values = source.run().get("values")
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{source.where}: what it holds of its run is no mapping of values; pick another one.")
    return values.get("config")
