"""Which of a log's names is the step, which the loss."""

import pytest

from trimtab.log.foreign.steps.metric_names import is_eval_loss, roles_of


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("train/loss", "loss"),
        ("train_loss", "loss"),
        ("Loss/train", "loss"),
        ("lm loss", "loss"),
        ("lm-loss", "loss"),
        ("training_loss", "loss"),
        ("my_objective_loss", "loss"),
        ("global_step", "step"),
        ("trainer/global_step", "step"),
        ("_step", "step"),
        ("iteration", "step"),
        ("Iter", "step"),
        ("it", "step"),
        ("Step", "step"),
        ("grad-norm", "grad_norm"),
        ("train/grad_norm", "grad_norm"),
        ("learning_rate", "lr"),
        ("lr-AdamW", "lr"),
        ("lr-AdamW/pg1", "lr"),
        ("loss scale", "loss_scale"),
        ("epoch", "epoch"),
    ],
)
def test_a_name_has_its_role_however_it_is_spelled(name, role):
    assert roles_of([name]).names == {role: name}


@pytest.mark.parametrize(
    "name", ["eval_loss", "val_loss", "Loss/val", "validation loss", "eval_wiki_loss", "test/loss"]
)
def test_a_loss_on_other_data_is_never_the_loss_of_a_step(name):
    roles = roles_of(["step", name])
    assert (roles.names, roles.eval_losses) == ({"step": "step"}, (name,))
    assert is_eval_loss(name)


@pytest.mark.parametrize("name", ["num_tokens", "tokens", "num_input_tokens_seen", "accuracy", "weight", "time", ""])
def test_a_name_without_a_role_has_none(name):
    assert roles_of([name]).names == {}


def test_among_several_names_the_order_decides_and_the_choice_is_said():
    # when
    roles = roles_of(["train/loss", "loss", "lm loss", "_step", "step"])
    # then
    assert (roles.names["loss"], roles.names["step"]) == ("loss", "step")
    said = roles.notices()
    assert said == ["'loss' was read as the loss; 'train/loss', 'lm loss' would have been the next choice"]


def test_parts_of_a_loss_are_no_second_choice_and_a_part_alone_is_said():
    assert roles_of(["loss", "aux_loss", "z_loss"]).notices() == []
    assert "'aux_loss' was read as it" in roles_of(["step", "aux_loss"]).notices()[0]
