"""The offline half: from a log to `Findings`, without a model, data or an accelerator."""

from trimtab.analysis.comparison import compare
from trimtab.analysis.findings import rewind

__all__ = ["compare", "rewind"]
