"""What is said of the watch on a Hugging Face `Trainer`: one line, when it is attached.

Enters: what was chosen, and the trainer's model. Leaves: a sentence that says what is looked at, and how often.
"""

from __future__ import annotations

from torch import nn

from trimtab.text import plain
from trimtab.torch.router.families import find_routers
from trimtab.torch.watch_of import ChosenWatch


def watch_introduction(watching: ChosenWatch, model: nn.Module | None, *, is_own: bool) -> str:
    """What is watched, in one line.

    Args:
        watching: What was chosen.
        model: The trainer's, as it is by then; None: it is made when the training begins.
        is_own: Whether the routers are those of a `RouterWatch` of the user's.
    """
    found = find_routers(model) if model is not None else ()
    if is_own:
        routers = " and the routers of its RouterWatch"
    elif found:
        kinds = ", ".join(sorted({plain(type(router.module).__name__) for router in found}))
        routers = f" and {len(found)} {'router' if len(found) == 1 else 'routers'} ({kinds})"
    else:
        routers = ""
    every = watching.config.report_every
    steps = "step" if every == 1 else f"{every} steps"
    return f"Trimtab watches the run's health{routers}, and reports every {steps}."
