"""Every exception that Trimtab raises on purpose: one root, few children.

Each message says what was found, where (path, step, rank, row), what was expected, and what to do next.
"""


class TrimtabError(Exception):
    """Root of all errors that Trimtab raises on purpose."""


class UsageError(TrimtabError, ValueError):
    """A call that makes no sense as it stands: a setting, a shape, an order of calls."""


class GuardLockupError(TrimtabError):
    """A guard skipped so many finite losses in a row that it would now change its baseline, and was told to raise."""


class LogError(TrimtabError):
    """A log that cannot be read: missing, empty, foreign, of another version, or damaged beyond use."""


class CheckpointError(TrimtabError):
    """A checkpoint that cannot be resumed from: damaged, incomplete, hostile, not healthy, or none at all."""


class MissingExtraError(TrimtabError, ImportError):
    """A feature was used whose optional package is not installed; the message gives the exact command."""


class TrimtabWarning(UserWarning):
    """A user's setting has no effect or will not do what its name promises."""
