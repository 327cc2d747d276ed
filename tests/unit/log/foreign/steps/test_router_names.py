"""Which names of other tools' logs are figures of routers, and that none of them is taken for the loss."""

import pytest

from trimtab.log.foreign.steps.metric_names import is_eval_loss, roles_of


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("z", "router_z"),
        ("router_z", "router_z"),
        ("z_loss", "router_z"),
        ("z_mean", "router_z"),
        ("router/z_mean", "router_z"),
        ("tok_per_s", "tokens_per_s"),
        ("tok/sec", "tokens_per_s"),
        ("moe/z_loss", "router_z"),
        ("train/router/z-loss", "router_z"),
        ("train_router_z_loss", "router_z"),
        ("lbl", "load_balance"),
        ("aux_loss", "load_balance"),
        ("load balancing loss", "load_balance"),
        ("train/load_balancing_loss", "load_balance"),
        ("moe.aux_loss", "load_balance"),
        ("tokens_per_sec", "tokens_per_s"),
        ("train_tokens_per_second", "tokens_per_s"),
        ("throughput/tokens_per_sec", "tokens_per_s"),
    ],
)
def test_a_figure_beside_the_steps_is_known_by_its_name(name, role):
    assert roles_of(["step", "loss", name]).names == {"step": "step", "loss": "loss", role: name}


@pytest.mark.parametrize("name", ["z_loss", "moe/z_loss", "aux_loss", "eval/load_balancing_loss"])
def test_a_loss_of_a_router_is_no_loss_of_an_evaluation_and_the_last_choice_for_that_of_a_step(name):
    roles = roles_of(["step", name, "my_objective_loss"])
    assert roles.names["loss"] == "my_objective_loss"
    assert not is_eval_loss(name)


@pytest.mark.parametrize("name", ["buzz", "xyz", "entropy", "size", "z_score", "laux", "blz"])
def test_a_name_that_only_looks_like_one_is_none(name):
    assert roles_of([name]).names == {}
