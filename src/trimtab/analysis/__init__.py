"""The offline half: from a log to `Findings`, from two to `Differences`, without a model, data or an accelerator."""

from trimtab.analysis.comparison import compare
from trimtab.analysis.findings import rewind
from trimtab.analysis.same_bits import compare_bits

__all__ = ["compare", "compare_bits", "rewind"]
