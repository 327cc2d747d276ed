"""What each rank does in `test_router_two_processes.py`: a real trainer under DDP, whose tiny Mixtral is watched."""

import logging
import os

import torch
import torch.distributed as dist

# What torchrun would have set.
os.environ |= {name: str(dist.get_rank()) for name in ("RANK", "LOCAL_RANK")}
os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}

import transformers
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import trimtab
from trimtab.rules.watch_config import WatchConfig

transformers.trainer_callback.PrinterCallback.on_log = lambda *_, **__: None

NUM_ROWS = 32  # a multiple of what both ranks take in a window: no row is trained on twice
TRAINED: dict[str, dict] = {}


def make_rows():
    """Rows of 3 to 9 tokens, so that nearly each batch is padded; a row is told by its first token."""
    dice = torch.Generator().manual_seed(1)
    lengths = [3 + row * 5 % 7 for row in range(NUM_ROWS)]
    tokens = [torch.randint(40, 100, (length,), generator=dice).tolist() for length in lengths]
    return [[1 + row, *found[1:]] for row, found in enumerate(tokens)]


def pad(rows):
    tokens = [torch.tensor(row["input_ids"]) for row in rows]
    labels = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=-100)
    return {"input_ids": labels.clamp(min=0), "attention_mask": (labels >= 0).long(), "labels": labels}


class Zeroes(TrainerCallback):
    """A router whose weights are 0 from a step on: the first experts get all tokens, on each rank."""

    def __init__(self, router, *, at):
        self.router, self.at = router, at

    def on_step_begin(self, args, state, control, **_):
        if self.at is not None and state.global_step + 1 >= self.at:
            with torch.no_grad():
                for weight in self.router.parameters():
                    weight.zero_()


class Oracle:
    """What this rank's router sends where, by step: a line of Python for each real token."""

    def __init__(self, trainer, router):
        self.trainer, self.mask = trainer, None
        self.counts = {}
        trainer.model.register_forward_pre_hook(self._see_mask, with_kwargs=True)
        router.register_forward_hook(self._count)

    def _see_mask(self, model, args, kwargs):
        self.mask = kwargs["attention_mask"].flatten().tolist()

    def _count(self, router, args, output):
        if not torch.is_grad_enabled():  # an evaluation
            return
        of_step = self.counts.setdefault(self.trainer.state.global_step + 1, [0, 0, 0, 0])
        for logits, is_real in zip(output[0].tolist(), self.mask, strict=True):
            for expert in sorted(range(4), key=lambda e: -logits[e])[:2] if is_real else ():
                of_step[expert] += 1


def make_model(kind):
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=128, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, pad_token_id=0, eos_token_id=0, bos_token_id=None, num_local_experts=4,
        num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.1,
    )  # fmt: skip
    if kind == "gpt_oss":  # a Trainer does not load back the experts that transformers saves of a Mixtral
        model = GptOssForCausalLM(GptOssConfig(**sizes, head_dim=8))
        return model, model.model.layers[0].mlp.router
    model = MixtralForCausalLM(MixtralConfig(**sizes))
    return model, model.model.layers[0].mlp.gate


def train(*, out, name, watch, model="mixtral", zeroes_at=None, resume=None, more=None):
    """Trains; gives what this rank has said, was told, and counted by hand."""
    model, router = make_model(model)
    args = TrainingArguments(
        output_dir=out, per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=2, seed=3,
        eval_strategy="steps", eval_steps=4, save_strategy="steps", save_steps=4, logging_steps=4, report_to=[],
        disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False, ddp_find_unused_parameters=False, **(more or {}),
    )  # fmt: skip
    rows = [{"input_ids": tokens} for tokens in make_rows()]
    trainer = Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows[:4], data_collator=pad)
    said, told = [], []
    oracle = None if watch else Oracle(trainer, router)
    run = None
    if watch:
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())
        logging.getLogger("trimtab").addHandler(handler)
        config = WatchConfig(report_every=2, host_memory_floor_bytes=1)
        run = trimtab.attach(
            trainer, watch=config, on_finding=lambda finding: told.append([finding.kind, finding.step])
        )
    trainer.add_callback(Zeroes(router, at=zeroes_at))
    trainer.train(resume_from_checkpoint=resume)
    if watch:
        logging.getLogger("trimtab").removeHandler(handler)
    TRAINED[name] = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    return {
        "said": said,
        "told": told,
        "counts": {} if oracle is None else oracle.counts,
        "folder": None if run is None else str(run.folder),
    }


def same_weights(*, one, other):
    """Whether two trainings of this rank ended with the same weights, bit for bit."""
    return all(torch.equal(value, TRAINED[other][key]) for key, value in TRAINED[one].items())
