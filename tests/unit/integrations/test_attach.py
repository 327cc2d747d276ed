"""`attach` on what is no Hugging Face Trainer: an error that says what was found and what to do."""

import pytest
import transformers

import trimtab
from trimtab import UsageError


class Trainer:
    """Called like the right one, from elsewhere."""


@pytest.mark.parametrize("wrong", [Trainer(), object(), None, "trainer", [1]])
def test_anything_else_is_refused_by_name(wrong):
    with pytest.raises(UsageError, match=r"Hugging Face's Trainer, found .*\..*trimtab\.Run"):
        trimtab.attach(wrong)


def test_a_class_in_place_of_an_instance_is_refused():
    with pytest.raises(UsageError, match="Hugging Face's Trainer"):
        trimtab.attach(transformers.Trainer)


def test_a_trl_trainer_is_refused_with_a_remedy():
    # given a class as TRL would define it, on top of transformers' Trainer
    trl = type("SFTTrainer", (transformers.Trainer,), {"__module__": "trl.trainer.sft_trainer"})
    with pytest.raises(UsageError, match=r"SFTTrainer is a TRL trainer.*trimtab\.Run"):
        trimtab.attach(object.__new__(trl))


def test_a_subclass_of_the_users_own_is_accepted(bench):
    class Mine(transformers.Trainer):
        pass

    run = trimtab.attach(bench.trainer(cls=Mine), record=False)
    assert run.folder is None


@pytest.mark.parametrize("run_id", ["", "../up", "a b", "x" * 65])
def test_a_run_id_that_cannot_name_a_folder_is_refused_at_once(bench, run_id):
    with pytest.raises(UsageError, match="run_id"):
        trimtab.attach(bench.trainer(), run_id=run_id)
