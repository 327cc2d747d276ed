"""Which setting of the guard fits a run: its log replayed through the guard, setting by setting.

A room of its own because it needs both halves: losses from the analysis, verdicts from the guard. Nothing is imported
here, so that a report knows `trimtab.calibration.values` without either.
"""
