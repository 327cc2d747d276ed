"""Judgements on the health of any run: one file a signal, put together by `HealthRules`.

Numbers come in, `WatchFinding`s go out; nothing here reads a clock, a file or a framework, so the same rules judge a
running training and its log. Every signal says a finding once and again only after it was over; a number that is not
known, or not finite where that is not itself the finding, is left out and never guessed.
"""

from trimtab.rules.health.events import JudgedEvent, judge_event
from trimtab.rules.health.health_rules import HealthRules
from trimtab.rules.health.observed import ObservedStep

__all__ = ["HealthRules", "JudgedEvent", "ObservedStep", "judge_event"]
