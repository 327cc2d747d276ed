"""The proof that a guard works in somebody's own training loop, as it is wired.

Enters: a factory of that loop. Leaves: what was shown of it under planted faults, case by case. Invariant: what a case
is compared with, its oracle, is the loop itself without a guard: nothing of the guard's own code is asked whether the
guard is right.
"""

from trimtab.proof.factory import load_factory
from trimtab.proof.loop import Factory, Loop, build_loop
from trimtab.proof.proving import case_names, prove
from trimtab.proof.trial import GUARDS
from trimtab.proven import CaseResult, Proof

__all__ = ["GUARDS", "CaseResult", "Factory", "Loop", "Proof", "build_loop", "case_names", "load_factory", "prove"]
