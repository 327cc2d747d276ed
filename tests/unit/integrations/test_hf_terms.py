"""What a trainer's loss holds beside that of its tokens: found whatever it was divided by, judged on either side."""

import pytest
import torch
from transformers import Trainer

from trimtab import GuardConfig
from trimtab.integrations.hf_terms import loss_beyond_rows
from trimtab.torch.losses import reduce_to_rows


@pytest.mark.parametrize(
    ("loss", "beyond"),
    [
        (2.0, 0.0),  # 8 over its own 4 tokens
        (1.0, 0.0),  # over the 16 of the window, times the two ranks
        (0.5, 0.0),  # over those alone, as a compute_loss of the user's own may
        (1.25, 0.125),  # the second and something: the trainer halves it again
        (0.75, -0.125),
    ],
)
def test_on_two_ranks_a_loss_is_explained_with_and_without_their_factor(loss, beyond):
    rows = reduce_to_rows(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), rows=[5, 6])
    found = loss_beyond_rows(torch.tensor(loss), rows, num_items=torch.tensor(16), rank_factor=2)
    assert float(found) == pytest.approx(beyond, abs=1e-6)


class Jumps(Trainer):
    """A router's term that jumps by 20 in one step, some four times the loss of the tokens."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = loss + (20.0 if self.state.global_step == 4 else 0.0)
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("decide", ["host", "device"])
def test_a_term_is_judged_in_the_unit_of_a_mean_over_tokens_whoever_decides(bench, said, decide):
    guard = GuardConfig(multiplier=3.0, decide=decide)
    trained = bench.train(dict(model="mixtral"), cls=Jumps, attach=dict(guard=guard))

    assert {step for step, *_, keep in trained.records() if not keep} == {5}
    assert [event.kind for event in trained.log.event_list() if event.kind == "guard_disagrees"] == []
    assert [line for line in said() if "decided" in line] == []
