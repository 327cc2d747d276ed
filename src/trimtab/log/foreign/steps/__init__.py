"""Logs at step level, whatever format they are of: what their readers share, and the source over what these decoded.

    a format's reader -> `entries`, `evaluations`, `epochs` -> `records` -> `attempts` -> `source`

Enters: what a reader decoded. Leaves: a `trimtab.log.source.Source`. Invariant: no module here knows a format.
"""
