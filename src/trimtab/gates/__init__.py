"""Whether a finished chunk of a training may be built upon: the gates it must pass before the next one starts.

A room of its own because it needs both the analysis of the log and the look at the checkpoint. Nothing is imported
here, so that a report knows `trimtab.gates.values` without either.
"""
