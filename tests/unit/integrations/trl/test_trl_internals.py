"""What the integration relies on inside TRL and datasets, each alone: if one of these is red after an update and the
trainings are too, this is the reason.
"""

import inspect

import datasets
import pytest
import torch
import trl
import trl.trainer.sft_trainer as sft_module
from trl import SFTTrainer

VERSIONS = f"trl {trl.__version__}, datasets {datasets.__version__}, torch {torch.__version__}"


def changed(what):
    return f"{what} (found {VERSIONS}): look at src/trimtab/integrations/trl*.py"


def test_the_data_is_prepared_by_one_method_that_is_told_what_it_is_for():
    parameters = inspect.signature(SFTTrainer._prepare_dataset).parameters
    assert {"self", "dataset", "dataset_name"} <= parameters.keys(), changed("_prepare_dataset has other arguments")


def test_packing_is_a_function_of_the_trainers_module_that_takes_the_dataset_and_the_way_to_map():
    assert hasattr(sft_module, "pack_dataset"), changed("pack_dataset is elsewhere")
    parameters = inspect.signature(sft_module.pack_dataset).parameters
    assert {"dataset", "map_kwargs"} <= parameters.keys(), changed("pack_dataset has other arguments")


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
def test_packing_treats_all_lists_alike(strategy):
    rows = datasets.Dataset.from_dict(
        {"input_ids": [[1, 2, 3, 4, 5], [6, 7]], "more": [[10, 20, 30, 40, 50], [60, 70]]}
    )
    packed = sft_module.pack_dataset(rows, 3, strategy).to_list()
    for item in packed:
        assert item["more"] == [10 * token for token in item["input_ids"]], changed("pack_dataset treats columns apart")


def test_a_trainer_tells_whether_its_data_was_prepared_and_whether_its_collator_flattens(sft):
    prepared = sft.trainer()
    as_it_is = sft.trainer(dict(kind="tokens and labels", args=dict(dataset_kwargs={"skip_prepare_dataset": True})))
    flattening = sft.trainer(dict(args=dict(packing=True)))
    message = changed("SFTTrainer keeps its settings elsewhere")
    assert (prepared._skip_prepare_dataset, as_it_is._skip_prepare_dataset) == (False, True), message
    assert (prepared.padding_free, flattening.padding_free) == (False, True), message


def test_cutting_rewrites_rows_in_their_order_and_dropping_them_selects(sft):
    # given two rows of which nothing is left
    trainer = sft.trainer(dict(kind="prompt-completion", args=dict(max_length=6)))
    # then
    message = changed("datasets keeps a selection elsewhere")
    dataset = trainer.train_dataset
    assert len(dataset._data) == 13, message
    assert dataset._indices.column(0).to_pylist() == [row for row in range(13) if row not in (2, 7)], message


@pytest.mark.parametrize(("setting", "forwards"), [(dict(), 1), (dict(args=dict(label_smoothing_factor=0.1)), 2)])
def test_one_forward_of_the_outermost_model_hands_out_log_probabilities(sft, setting, forwards):
    # given
    trainer = sft.trainer(dict(setting, args=dict(setting.get("args", {}), max_steps=1)))
    outputs, sums = [], []
    losses = trainer.compute_loss

    def compute_loss(model, inputs, *args, num_items_in_batch=None, **kwargs):
        model.register_forward_hook(lambda module, given, output: outputs.append(output))
        loss = losses(model, inputs, *args, num_items_in_batch=num_items_in_batch, **kwargs)
        sums.append((float(loss.detach()), int(num_items_in_batch), tuple(inputs["labels"].shape)))
        assert model is trainer.model_wrapped, changed("compute_loss is handed another model")
        return loss

    trainer.compute_loss = compute_loss
    # when
    trainer.train()
    # then
    message = changed("SFTTrainer's loss comes from elsewhere")
    assert len(outputs) == forwards, message
    [fused] = [output for output in outputs if getattr(output, "log_probs", None) is not None]
    loss, num_items, (batch, width) = sums[0]
    assert fused.log_probs.shape == fused.label_mask.shape == (batch, width - 1), message
    assert not fused.log_probs[~fused.label_mask].any(), message
    assert int(fused.label_mask.sum()) == num_items, message
    if forwards == 1:
        assert float(-fused.log_probs.detach().sum() / num_items) == loss, message
