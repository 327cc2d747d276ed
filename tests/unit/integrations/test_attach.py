"""`attach` on what is no Hugging Face Trainer: an error that says what was found and what to do."""

import pytest
import transformers

import trimtab
from trimtab import UsageError


class Trainer:
    """Called like the right one, from elsewhere."""


@pytest.mark.parametrize("wrong", [Trainer(), object(), None, "trainer", [1]])
def test_anything_else_is_refused_by_name(wrong):
    with pytest.raises(UsageError, match=r"Hugging Face's Trainer and TRL's SFTTrainer, found .*\..*trimtab\.Run"):
        trimtab.attach(wrong)


def test_a_class_in_place_of_an_instance_is_refused():
    with pytest.raises(UsageError, match="Hugging Face's Trainer"):
        trimtab.attach(transformers.Trainer)


@pytest.mark.parametrize("name", ["DPOTrainer", "KTOTrainer", "RewardTrainer", "GRPOTrainer"])
def test_another_of_trls_trainers_is_refused_with_a_remedy(name):
    import trl

    with pytest.raises(UsageError, match=rf"TRL's trainers attach knows SFTTrainer, found {name}.*trimtab\.Run"):
        trimtab.attach(object.__new__(getattr(trl, name)))


def test_a_trainer_that_trl_builds_on_its_sfttrainer_with_a_loss_of_its_own_is_refused():
    import trl

    distilling = type("GKDTrainer", (trl.SFTTrainer,), {"__module__": "trl.experimental.gkd.gkd_trainer"})
    with pytest.raises(UsageError, match="knows SFTTrainer, found GKDTrainer"):
        trimtab.attach(object.__new__(distilling))


@pytest.mark.parametrize("kind", [transformers.GenerationConfig, type("Mine", (transformers.GenerationConfig,), {})])
def test_what_transformers_made_and_is_no_trainer_is_refused_by_name(kind):
    with pytest.raises(UsageError, match=rf"transformers attach knows the Trainer, found .*{kind.__name__}.*Run"):
        trimtab.attach(kind())


def test_a_subclass_of_the_users_own_is_accepted(bench):
    class Mine(transformers.Trainer):
        pass

    run = trimtab.attach(bench.trainer(cls=Mine), record=False)
    assert run.folder is None


@pytest.mark.parametrize("run_id", ["", "../up", "a b", "x" * 65])
def test_a_run_id_that_cannot_name_a_folder_is_refused_at_once(bench, run_id):
    with pytest.raises(UsageError, match="run_id"):
        trimtab.attach(bench.trainer(), run_id=run_id)
