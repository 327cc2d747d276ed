"""What the integration relies on inside transformers, accelerate, torch and peft, each alone: if one of these is red
after an update and the trainings are too, this is the reason.
"""

import accelerate
import pytest
import torch
import transformers
from accelerate.data_loader import IterableDatasetShard
from torch.utils.data import DataLoader
from transformers import TrainerCallback
from transformers.trainer_pt_utils import LabelSmoother

from trimtab.torch.loader import ROW_KEY, TaggedStream, tag_rows

VERSIONS = f"transformers {transformers.__version__}, accelerate {accelerate.__version__}, torch {torch.__version__}"


def changed(what):
    return f"{what} (found {VERSIONS}): look at src/trimtab/integrations and src/trimtab/torch/loader.py"


@pytest.mark.parametrize(
    ("kind", "shifts"), [("llama", True), ("mixtral", True), ("lora", True), ("t5", False), ("bert_tokens", False)]
)
def test_the_trainer_tells_whether_a_loss_shifts_its_labels(bench, kind, shifts):
    trainer = bench.trainer(dict(model=kind))
    assert getattr(trainer, "_loss_shifts_labels", None) is shifts, changed("Trainer._loss_shifts_labels is gone")


def test_the_trainer_tells_whether_its_loss_is_over_the_window(bench):
    trainer = bench.trainer()
    for name in ("loss_is_scaled_for_ga", "model_accepts_loss_kwargs", "compute_loss_func"):
        assert hasattr(trainer, name), changed(f"Trainer.{name} is gone")


def test_a_dataset_written_into_a_built_loader_is_the_one_that_is_read():
    loader = DataLoader([1, 2, 3])
    with pytest.raises(ValueError, match="should not be set"):
        loader.dataset = [4]
    loader.__dict__["dataset"] = [4, 5, 6]
    message = changed("DataLoader reads its dataset elsewhere")
    assert [batch.item() for batch in loader] == [4, 5, 6], message
    assert loader.dataset == [4, 5, 6], message


def test_a_collate_function_set_on_a_built_loader_is_the_one_that_is_called():
    loader = DataLoader([1, 2])
    loader.collate_fn = lambda items: [item * 10 for item in items]
    assert list(loader) == [[10], [20]], changed("DataLoader.collate_fn is read elsewhere")


@pytest.mark.parametrize("dispatch", [False, True])
def test_a_prepared_loader_has_the_built_one_inside(bench, dispatch):
    settings = dict(dispatch_batches=dispatch)
    trainer = bench.trainer(dict(data="stream", args=dict(max_steps=1, accelerator_config=settings)))
    base = getattr(trainer.get_train_dataloader(), "base_dataloader", None)
    assert isinstance(base, DataLoader), changed("accelerate's loaders have no base_dataloader")


def test_a_stream_sharded_by_accelerate_is_tagged_inside_its_shard():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([dict(x=torch.tensor(10.0 * i)) for i in range(8)])

    # given what the second of two processes reads
    shard = IterableDatasetShard(Stream(), batch_size=2, num_processes=2, process_index=1)
    loader = DataLoader(shard, batch_size=2)
    # when
    tag_rows(loader, row_id="row_id")
    # then
    assert isinstance(shard.dataset, TaggedStream), changed("IterableDatasetShard keeps its stream elsewhere")
    assert [batch[ROW_KEY].tolist() for batch in loader] == [[2, 3], [6, 7]]
    assert [batch["x"].tolist() for batch in loader] == [[20.0, 30.0], [60.0, 70.0]]


def test_a_models_loss_function_can_be_replaced_and_put_back(bench):
    model = bench.make_model("llama")
    before = model.loss_function
    model.loss_function = len
    message = changed("PreTrainedModel.loss_function is no longer a property over _loss_function")
    assert isinstance(type(model).loss_function, property), message
    assert vars(model).get("_loss_function") is len, message
    del model._loss_function
    assert model.loss_function is before, message


def test_the_label_smoother_is_the_class_whose_formula_is_known(bench):
    smoother = bench.trainer(dict(args=dict(label_smoothing_factor=0.1))).label_smoother
    assert type(smoother) is LabelSmoother, changed("Trainer makes another label smoother")
    assert (smoother.epsilon, smoother.ignore_index) == (0.1, -100)


def test_a_peft_model_hands_out_its_base(bench):
    assert bench.make_model("lora").get_base_model().loss_function is not None, changed("get_base_model is gone")


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_the_norm_is_measured_once_a_step_and_before_the_callback(bench, max_grad_norm):
    # given
    calls = []

    class Order(TrainerCallback):
        def on_step_begin(self, *_, **__):
            calls.append("begin")

        def on_pre_optimizer_step(self, *_, **__):
            calls.append("before")

        def on_step_end(self, *_, **__):
            calls.append("end")

    trainer = bench.trainer(dict(args=dict(max_grad_norm=max_grad_norm, max_steps=2)), callbacks=[Order()])
    clip = trainer.accelerator.clip_grad_norm_
    trainer.accelerator.clip_grad_norm_ = lambda *args: calls.append("norm") or clip(*args)
    # when
    trainer.train()
    # then
    expected = ["begin", "norm", "before", "end"] * 2
    assert calls == expected, changed("Trainer clips elsewhere, or calls its callbacks in another order")


def test_gradients_that_are_gone_before_the_optimizer_step_are_no_step(bench):
    # given
    class Drops(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model, **_):
            for parameter in model.parameters():
                parameter.grad = None

    trainer = bench.trainer(dict(args=dict(weight_decay=0.5)), callbacks=[Drops()])
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    # when
    trainer.train()
    # then
    message = changed("A step without gradients moves something")
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items()), message
    assert not trainer.optimizer.state_dict()["state"], message
    assert trainer.state.global_step == 7


def test_the_trainer_calls_what_stands_on_the_instance(bench):
    # given
    trainer = bench.trainer(dict(args=dict(max_steps=1)))
    calls = []
    for name in ("get_train_dataloader", "training_step", "compute_loss"):
        own = getattr(trainer, name)
        setattr(
            trainer, name, lambda *args, _own=own, _name=name, **kwargs: calls.append(_name) or _own(*args, **kwargs)
        )
    # when
    trainer.train()
    # then
    assert calls == ["get_train_dataloader", "training_step", "compute_loss"], changed("Trainer calls other methods")


def test_a_training_begins_after_its_checkpoint_was_loaded_over_the_schedule_that_was_built(bench):
    # given a checkpoint after step 2, at 1e-3
    args = dict(save_strategy="steps", save_steps=2, output_dir=str(bench.folder / "out"))
    bench.trainer(dict(args=args | dict(max_steps=2))).train()
    seen = []

    class Looks(TrainerCallback):
        def on_train_begin(self, args, state, control, optimizer, lr_scheduler, **_):
            seen.append((optimizer.param_groups[0]["initial_lr"], lr_scheduler.last_epoch))

    # when
    trainer = bench.trainer(dict(args=args | dict(learning_rate=3e-4)), callbacks=[Looks()])
    create = trainer.create_scheduler

    def created(*args, **kwargs):
        scheduler = create(*args, **kwargs)
        seen.append((trainer.optimizer.param_groups[0]["initial_lr"], trainer.lr_scheduler.last_epoch))
        return scheduler

    trainer.create_scheduler = created
    trainer.train(resume_from_checkpoint=True)
    # then
    assert seen == [(3e-4, 0), (1e-3, 2)], changed("Trainer loads a checkpoint at another moment")


@pytest.mark.parametrize("missing", ["optimizer.pt", "scheduler.pt"])
def test_a_checkpoint_without_an_optimizer_or_a_schedule_is_gone_on_from_with_new_ones(bench, missing):
    """If this is red, transformers has begun to say so itself, and Trimtab's refusal may go."""
    # given
    args = dict(save_strategy="steps", save_steps=2, output_dir=str(bench.folder / "out"))
    bench.trainer(dict(args=args | dict(max_steps=2))).train()
    (bench.folder / "out" / "checkpoint-2" / missing).unlink()
    seen = []

    class Looks(TrainerCallback):
        def on_train_begin(self, args, state, control, optimizer, lr_scheduler, **_):
            seen.append((state.global_step, lr_scheduler.last_epoch, len(optimizer.state)))

    # when
    bench.trainer(dict(args=args), callbacks=[Looks()]).train(resume_from_checkpoint=True)
    # then
    assert seen == [(2, 0, 0)], changed("Trainer resumes without an optimizer in another way")
