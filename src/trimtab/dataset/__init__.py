"""What the rows of a run are: told from the dataset when the run starts, and looked up again when a row is suspect."""

from trimtab.dataset.facts import DatasetFacts, describe

__all__ = ["DatasetFacts", "describe"]
