"""What each rank does in `test_hf_two_processes.py`, `test_hf_resume.py` and `test_trl_two_processes.py`.

Real trainers, tiny models.

A document's words are its own: token `1 + 8 * d + place` is in document d only. So a token tells its document wherever
padding or packing has put it. The last token is so unlikely that it costs about 300 more than any other, and the last
but one has no usable embedding.
"""

import logging
import math
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist

# What torchrun would have set.
os.environ |= {name: str(dist.get_rank()) for name in ("RANK", "LOCAL_RANK")}
os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}

import accelerate
import datasets
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

import trimtab

datasets.disable_progress_bars()
transformers.trainer_callback.PrinterCallback.on_log = lambda *_, **__: None

NUM_DOCUMENTS = 30  # two ranks and batches of two: the last one is filled with rows that were trained already
PLACES = 8
NAN_TOKEN = 1 + PLACES * NUM_DOCUMENTS
COSTLY_TOKEN = NAN_TOKEN + 1
VOCABULARY = COSTLY_TOKEN + 1
IGNORED = -100


@dataclass
class Trained:
    """A training that is over, as `compare` finds it again; all ranks have the same weights."""

    weights: dict
    buffers: dict
    moments: dict


TRAINED: dict[str, Trained] = {}


# ------------------------------------------------------------------------------------------------------ data, models


def documents(*, costly=(), nan=(), unsupervised=()):
    """Token ids of each document; the faults change neither lengths nor order."""
    found = []
    for d in range(NUM_DOCUMENTS):
        tokens = [1 + PLACES * d + place for place in range(3 + d * 5 % 6)]
        if d in costly:
            tokens[1:] = [COSTLY_TOKEN] * (len(tokens) - 1)
        if d in nan:
            tokens[1] = NAN_TOKEN
        labels = [IGNORED] * len(tokens) if d in unsupervised else tokens
        found.append({"input_ids": tokens, "labels": labels})
    return found


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        yield from self.rows


class PlainModel(torch.nn.Module):
    """Knows nothing of transformers: its loss is a mean over the micro-batch, 0/0 over no tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.lm_head = torch.nn.Linear(16, VOCABULARY)

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, input_ids, labels, attention_mask=None):
        hidden = self.norm(self.embedding(input_ids).transpose(1, 2)).transpose(1, 2)
        logits = self.lm_head(torch.tanh(hidden))
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def make_model(kind):
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, pad_token_id=0, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    if kind == "mixtral":
        router = dict(num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.1)
        model = MixtralForCausalLM(MixtralConfig(**sizes, **router))
    else:
        model = PlainModel() if kind == "plain" else LlamaForCausalLM(LlamaConfig(**sizes))
    model.lm_head = torch.nn.Linear(16, VOCABULARY)
    with torch.no_grad():
        model.lm_head.bias[COSTLY_TOKEN] = -300.0
        model.get_input_embeddings().weight[NAN_TOKEN] = math.nan
    return model


def pad(items):
    width = PLACES  # one size for all: batches that rank 0 hands out must have it

    def padded(name, fill):
        return torch.tensor([list(item[name]) + [fill] * (width - len(item[name])) for item in items])

    ids = padded("input_ids", 0)
    return {"input_ids": ids, "labels": padded("labels", IGNORED), "attention_mask": (ids != 0).long()}


def make_tokenizer():
    words = ["<eos>", *(f"w{token}" for token in range(1, VOCABULARY))]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")


# ---------------------------------------------------------------------------------------------------------- trainers


def never_seeing(cls, places, *, removed):
    """An oracle without Trimtab: at `places`, (step, micro), its loss is zero times that of a harmless batch.

    If `removed`, the tokens of those places are in no divisor either.
    """

    class Oracle(cls):
        step_before, micro = 0, -1

        def compute_loss(self, model, inputs, *args, **kwargs):
            step = self.state.global_step + 1
            self.micro = self.micro + 1 if step == self.step_before else 0
            self.step_before = step
            if not model.training or (step, self.micro) not in places:
                return super().compute_loss(model, inputs, *args, **kwargs)
            tokens = inputs["input_ids"]
            tokens = torch.where(tokens > PLACES, tokens % PLACES + 1, tokens)
            harmless = dict(inputs, input_ids=tokens, labels=torch.where(tokens > 0, tokens, IGNORED))
            model.eval()  # running statistics never see it
            loss = super().compute_loss(model, harmless, *args, **kwargs)
            model.train()
            return loss * 0

        def get_batch_samples(self, *args, **kwargs):
            batches, num_items = super().get_batch_samples(*args, **kwargs)
            if removed:
                step = self.state.global_step + 1
                kept = [batch for micro, batch in enumerate(batches) if (step, micro) not in places]
                num_items = self._get_num_items_in_batch(kept or batches, self.args.device)
            return batches, num_items

    return Oracle


class Clock(TrainerCallback):
    """Learning rate and weights at the end of each step."""

    def __init__(self, trainer):
        self.trainer, self.rates, self.weights = trainer, [], []

    def on_step_end(self, args, state, control, model, **_):
        self.rates.append(self.trainer._get_learning_rate())
        flat = torch.cat([value.detach().flatten().double() for value in model.parameters()])
        self.weights.append(flat.nan_to_num().sum().item())


class EndedEarlyError(Exception):
    """What ends a training before its time."""


class EndsEarly(TrainerCallback):
    """Ends a training at the beginning of the step after `step`."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.step:
            raise EndedEarlyError


class Listener(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def make_trainer(*, out, kind, model, data, faults, places, removed, args):
    settings = dict(
        output_dir=out, per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=1, seed=3,
        learning_rate=1e-2, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
        dataloader_pin_memory=False, ddp_find_unused_parameters=False,
    )  # fmt: skip
    rows = documents(**faults)
    if kind == "hf":
        dataset = {"list": list, "stream": Stream}[data](rows)
        cls = never_seeing(Trainer, places, removed=removed) if places else Trainer
        arguments = TrainingArguments(**settings | args)
        return cls(model=make_model(model), args=arguments, train_dataset=dataset, data_collator=pad)
    max_length = None if args.get("padding_free") else 16
    sft = dict(bf16=False, gradient_checkpointing=False, max_length=max_length)
    arguments = SFTConfig(**settings | sft | args)
    texts = [" ".join(f"w{token}" for token in row["input_ids"]) for row in rows]
    dataset = datasets.Dataset.from_dict({"text": texts})
    cls = never_seeing(SFTTrainer, places, removed=removed) if places else SFTTrainer
    with trimtab.keep_row_ids():
        return cls(model=make_model(model), args=arguments, train_dataset=dataset, processing_class=make_tokenizer())


def plant_scaler(trainer):
    """Gives a trainer the gradient scaler that it would have on a GPU under fp16."""
    accelerator = trainer.accelerator
    accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu", init_scale=64.0)
    accelerator.state._mixed_precision = "fp16"


def train(*, out, name, kind="hf", model="llama", data="list", faults=None, attach=None, scaler=False, **more):
    """Trains on this rank, and remembers what came of it by `name`.

    Args:
        out: The trainer's output folder.
        name: What the training is called afterwards.
        kind: "hf" or "sft".
        model: Which model.
        data: Which kind of dataset.
        faults: Bad documents, by what is bad about them.
        attach: What `trimtab.attach` is given; None: a training without Trimtab.
        scaler: Whether it has a gradient scaler.
        more: `oracle_at`, places (step, micro) at which an oracle sees nothing, on the rank `oracle_on` or on both, and
            `oracle_removed`; `ends_after`, a step; `resume`, what the training is resumed from, by rank; everything
            else is an argument of the trainer.
    """
    accelerate.state.AcceleratorState._reset_state()
    places = {tuple(place) for place in more.pop("oracle_at", ())}
    if more.pop("oracle_on", dist.get_rank()) != dist.get_rank():
        places = set()
    removed = more.pop("oracle_removed", False)
    ends_after, resume = more.pop("ends_after", None), more.pop("resume", [None, None])
    trainer = make_trainer(
        out=out, kind=kind, model=model, data=data, faults=faults or {}, places=places, removed=removed, args=more
    )
    if scaler:
        plant_scaler(trainer)
    clock, seen, listener = Clock(trainer), {}, Listener()
    trainer.add_callback(clock)
    trainer.add_callback(EndsEarly(ends_after))

    def look(module, inputs, kwargs):
        if not module.training:
            return
        tokens = kwargs["input_ids"].flatten()
        own = tokens[(tokens > 0) & (tokens < NAN_TOKEN)]
        step = trainer.state.global_step + 1
        seen.setdefault(step, []).append(sorted({(int(token) - 1) // PLACES for token in own}))

    handle = trainer.model.register_forward_pre_hook(look, with_kwargs=True)
    logging.getLogger("trimtab").addHandler(listener)
    run = None
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            if attach is not None:
                attach = dict(attach)
                if "guard" in attach:
                    attach["guard"] = trimtab.GuardConfig(**attach["guard"])
                run = trimtab.attach(trainer, **attach)
            with suppress(EndedEarlyError):
                trainer.train(resume_from_checkpoint=resume[dist.get_rank()])
    finally:
        logging.getLogger("trimtab").removeHandler(listener)
        handle.remove()
    optimizer = trainer.optimizer.optimizer
    moments = {
        f"{place}.{key}": torch.as_tensor(value).clone()
        for place, held in optimizer.state_dict()["state"].items()
        for key, value in held.items()
    }
    weights = {key: value.detach().clone() for key, value in trainer.model.named_parameters()}
    buffers = {key: value.clone() for key, value in trainer.model.named_buffers()}
    TRAINED[name] = Trained(weights, buffers, moments)
    told = ("loss", "grad_norm", "learning_rate", "step")
    return {
        "folder": str(run.folder) if run is not None and run.folder is not None else None,
        "seen": [seen[step] for step in sorted(seen)],
        "rates": clock.rates,
        "weight_sums": clock.weights,
        "logged": [{key: entry[key] for key in told if key in entry} for entry in trainer.state.log_history[:-1]],
        "said": listener.lines,
        "hooks_left": sum(len(value._backward_hooks or ()) for value in trainer.model.parameters()),
    }


def refused(**arguments):
    """What `train` is refused with on this rank."""
    try:
        train(**arguments)
    except trimtab.TrimtabError as error:
        return str(error)
    return ""


def compare(*, found, expected):
    """Largest difference of weights, buffers, moments and step counts between two trainings.

    All of them are finite in both, but for the embedding of the token without a usable one, which is still NaN.
    """
    one, other = TRAINED[found], TRAINED[expected]
    differences = []
    for part in ("weights", "buffers", "moments"):
        mine, theirs = getattr(one, part), getattr(other, part)
        assert mine.keys() == theirs.keys(), (part, mine.keys() ^ theirs.keys())
        for key, value in mine.items():
            unusable = torch.zeros_like(value, dtype=torch.bool)
            if part == "weights" and key.endswith(("embed_tokens.weight", "embedding.weight")):
                unusable[NAN_TOKEN] = True
            for each in (value, theirs[key]):
                assert each.dtype == value.dtype, key
                assert torch.equal(each.isnan(), unusable), key
                assert not each.isinf().any(), key
            differences.append((value.double() - theirs[key].double())[~unusable].abs().max().item())
    return max(differences)


def ranks_differ(*, found):
    """Largest difference between the weights of both ranks; 1 or more where one has a NaN and the other none."""
    flat = torch.cat([value.flatten().double() for value in TRAINED[found].weights.values()])
    # MIN and MAX may lose a NaN, and never a number.
    told = torch.cat([flat.nan_to_num(), flat.isnan().double()])
    least, most = told.clone(), told.clone()
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return (most - least).max().item()
