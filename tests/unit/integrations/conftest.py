"""Real trainers on tiny models, what their models really saw, and what each row must have cost.

A row is told by its first token, `1 + row`, wherever it turns up. Token 126 has no usable embedding in the models that
are asked for with one that is NaN; label 127 (of a classifier: its last class) costs about 100 more than any other.
"""

import copy
import gc
import math
import warnings
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    DataCollatorWithFlattening,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import trimtab

VOCABULARY = 128
NAN_TOKEN = 126
COSTLY_TOKEN = 127
NUM_CLASSES = 5
NUM_ROWS = 13  # batches of two: the seventh is short, and so is the last window of two or four
IGNORED = -100


# ---------------------------------------------------------------------------------------------------------- models


class PlainModule(nn.Module):
    """Knows nothing of transformers: no **kwargs, its loss a mean inside its forward."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, VOCABULARY)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, input_ids, labels=None):
        logits = self.head(torch.tanh(self.hidden(self.embedding(input_ids))))
        if labels is None:
            return {"logits": logits}
        return {"loss": self.loss(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def _small(**more):
    sizes = dict(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1)
    return dict(sizes, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128, **more)


def _bert(**more):
    no_dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0)
    return BertConfig(**{k: v for k, v in _small().items() if k != "num_key_value_heads"}, **no_dropout, **more)


def _lora(model):
    import peft

    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft reads an old name of transformers
        return peft.get_peft_model(model, config)


def _router(**more):
    return MixtralConfig(
        **_small(), num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.1
    )


def _t5():
    return T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip


MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_small())),
    "mixtral": lambda: MixtralForCausalLM(_router()),
    "lora": lambda: LlamaForCausalLM(LlamaConfig(**_small())),
    "bert_rows": lambda: BertForSequenceClassification(_bert(num_labels=NUM_CLASSES)),
    "bert_tokens": lambda: BertForTokenClassification(_bert(num_labels=NUM_CLASSES)),
    "bert_masked": lambda: BertForMaskedLM(_bert(tie_word_embeddings=False)),
    "t5": lambda: T5ForConditionalGeneration(_t5()),
    "plain": PlainModule,
}


def make_model(kind, *, nan_embedding=False):
    """The same model each time; the costly label is so unlikely that it costs about 100."""
    torch.manual_seed(0)
    model = MODELS[kind]()
    if hasattr(model, "lm_head"):
        model.lm_head = nn.Linear(16, VOCABULARY)
    head = {"bert_rows": "classifier", "bert_tokens": "classifier", "plain": "head"}.get(kind, "lm_head")
    bias = model.cls.predictions.decoder.bias if kind == "bert_masked" else getattr(model, head).bias
    with torch.no_grad():
        bias[-1] = -100.0
        if nan_embedding:
            table = model.embedding if kind == "plain" else model.get_input_embeddings()
            table.weight[NAN_TOKEN] = math.nan
    return _lora(model) if kind == "lora" else model


# ------------------------------------------------------------------------------------------------------------ data


def make_rows(kind="llama", *, num_rows=NUM_ROWS, costly=(), nan=(), unsupervised=()):
    """Rows of 4 to 9 tokens; the faults change neither lengths nor order."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for row in range(num_rows):
        length = 4 + row * 5 % 6
        tokens = torch.randint(64, 120, (length,), generator=generator).tolist()
        tokens[0] = 1 + row
        if row in nan:
            tokens[2] = NAN_TOKEN
        if kind == "bert_rows":
            labels = NUM_CLASSES - 1 if row in costly else row % (NUM_CLASSES - 1)
        elif kind == "bert_tokens":
            labels = [NUM_CLASSES - 1 if row in costly else token % (NUM_CLASSES - 1) for token in tokens]
        else:
            if row in costly:
                tokens[1:] = [COSTLY_TOKEN] * (length - 1)
            labels = list(tokens)
            labels[1] = IGNORED  # like part of a prompt
        if row in unsupervised:
            labels = [IGNORED] * length
        rows.append({"input_ids": tokens, "labels": labels})
    return rows


def pad_batch(items):
    """What a padding collator does, without a tokenizer; further columns are left out."""
    width = max(len(item["input_ids"]) for item in items)

    def padded(name, fill):
        return torch.tensor([list(item[name]) + [fill] * (width - len(item[name])) for item in items])

    batch = {"input_ids": padded("input_ids", 0)}
    if isinstance(items[0]["labels"], int):
        batch["labels"] = torch.tensor([item["labels"] for item in items])
    else:
        batch["labels"] = padded("labels", IGNORED)
    batch["attention_mask"] = (batch["input_ids"] != 0).long()
    return batch


def pad_without_mask(items):
    batch = pad_batch(items)
    del batch["attention_mask"]
    return batch


def pad_and_shift(items):
    """For an encoder and decoder whose labels its trainer takes away (label smoothing)."""
    batch = pad_batch(items)
    labels = batch["labels"]
    batch["decoder_input_ids"] = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1].clamp(min=0)], dim=1)
    return batch


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        yield from self.rows


class SizedStream(Stream):
    def __len__(self):
        return len(self.rows)


class PlainRows(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def hf_dataset(rows):
    import datasets

    return datasets.Dataset.from_list([dict(row, row_id=1000 + i, text="not needed") for i, row in enumerate(rows)])


DATASETS = {
    "list": list,
    "map": PlainRows,
    "stream": Stream,
    "sized_stream": SizedStream,
    "hf": hf_dataset,
    "hf_selection": lambda rows: hf_dataset([*rows[::-1], *rows]).select(range(len(rows), 2 * len(rows))),
    "hf_stream": lambda rows: hf_dataset(rows).remove_columns("row_id").to_iterable_dataset(),
    # A stream in another order than its numbers say.
    "numbered_stream": lambda rows: Stream([dict(rows[i], row_id=i) for i in reversed(range(len(rows)))]),
}

COLLATORS = {
    "pad": pad_batch,
    "pad_without_mask": pad_without_mask,
    "pad_and_shift": pad_and_shift,
    "flatten": DataCollatorWithFlattening,
}


# ---------------------------------------------------------------------------------------------------------- trainers


def token_mean_loss(outputs, labels, num_items_in_batch=None):
    """A user's own compute_loss_func."""
    logits = outputs.logits[:, :-1].flatten(0, 1)
    return F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch


class OwnLoss(Trainer):
    """A user's subclass with a loss of its own: a mean over the micro-batch."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return (loss, outputs) if return_outputs else loss


LOSS_FUNCTIONS = {None: None, "token mean": token_mean_loss}
TRAINERS = {"Trainer": Trainer, "OwnLoss": OwnLoss}


def leaving_out(cls, rows):
    """An oracle without Trimtab: trains as `cls` does, but the loss of the rows' micro-batches is a zero."""
    marks = torch.tensor([1 + row for row in rows])

    class Oracle(cls):
        def compute_loss(self, model, inputs, *args, **kwargs):
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            if self.model.training and torch.isin(inputs["input_ids"], marks).any():
                return torch.zeros((), requires_grad=True)
            return loss

    return Oracle


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to set up a training; everything that is not named is the plainest."""

    model: str = "llama"
    data: str = "list"
    collator: str = "pad"
    trainer: str = "Trainer"
    loss_func: str | None = None
    evaluate: bool = False
    args: dict = field(default_factory=dict)


class Probe(TrainerCallback):
    """Sees what the model sees: inputs of every forward in training, by optimizer step."""

    def __init__(self, trainer):
        self.rows = defaultdict(list)  # step -> micro-batches -> rows
        self.clock = []  # (global_step, lr) at the end of each step
        self.trainer = trainer
        trainer.add_callback(self)
        # Before any argument is changed, and without a wrapper that a compiled model would see.
        trainer.model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, model, args, kwargs):
        if not model.training:
            return
        assert not args
        input_ids, positions = kwargs["input_ids"], kwargs.get("position_ids")
        starts = input_ids[positions == 0] if positions is not None else input_ids[:, 0]
        self.rows[self.trainer.state.global_step + 1].append([int(token) - 1 for token in starts])

    def on_step_end(self, args, state, control, **_):
        self.clock.append((state.global_step, self.trainer._get_learning_rate()))


@dataclass
class Trained:
    trainer: Trainer
    probe: Probe
    run: object
    initial: nn.Module

    @property
    def weights(self):
        return {name: value.clone() for name, value in self.trainer.model.state_dict().items()}

    @property
    def logged(self):
        told = ("loss", "grad_norm", "learning_rate", "step", "epoch", "eval_loss")
        return [{key: entry[key] for key in told if key in entry} for entry in self.trainer.state.log_history[:-1]]

    @property
    def log(self):
        return trimtab.open_log(self.run.folder)

    def records(self):
        """(step, micro, row, loss_sum, num_tokens, keep) of every record in the log."""
        records = []
        for block in self.log.row_blocks():
            columns = (block.step, block.micro, block.row, block.loss_sum, block.num_tokens, block.keep)
            records += zip(*(column.tolist() for column in columns), strict=True)
        return records

    def recorded_rows(self):
        """step -> micro-batches -> rows, as the log has them."""
        found = defaultdict(lambda: defaultdict(list))
        for step, micro, row, *_ in self.records():
            found[step][micro].append(row)
        return {step: [micros[micro] for micro in sorted(micros)] for step, micros in found.items()}


class Bench:
    """Makes trainers and trains them."""

    def __init__(self, folder):
        self.folder = folder
        self.count = 0

    @staticmethod
    def make_model(kind, **more):
        return make_model(kind, **more)

    @staticmethod
    def rows(kind="llama", **faults):
        return make_rows(kind, **faults)

    @staticmethod
    def batch(setting, rows, **faults):
        """The padded batch of some rows, as the model of `setting` takes it."""
        setting = Setting(**setting)
        data = make_rows(setting.model, **faults)
        collate = pad_batch if setting.collator == "flatten" else COLLATORS[setting.collator]
        return collate([data[row] for row in rows])

    def trainer(self, setting=None, *, model=None, rows=None, dataset=None, cls=None, left_out=(), faults=None, **more):
        """A trainer that was never told of Trimtab."""
        setting = Setting(**(setting or {}))
        self.count += 1
        faults = faults or {}
        model = model if model is not None else make_model(setting.model, nan_embedding="nan" in faults)
        rows = rows if rows is not None else make_rows(setting.model, **faults)
        collator = COLLATORS[setting.collator]
        args = dict(
            output_dir=str(self.folder / f"out{self.count}"),
            per_device_train_batch_size=2,
            per_device_eval_batch_size=4,
            num_train_epochs=1,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
            label_names=["labels"],
            seed=3,
        )
        if setting.evaluate:
            args |= dict(eval_strategy="steps", eval_steps=2)
            more.setdefault("eval_dataset", make_rows(setting.model, num_rows=5))
        cls = cls or TRAINERS[setting.trainer]
        if left_out:
            cls = leaving_out(cls, left_out)
        return cls(
            model=model,
            args=TrainingArguments(**(args | setting.args)),
            train_dataset=dataset if dataset is not None else DATASETS[setting.data](rows),
            data_collator=collator() if isinstance(collator, type) else collator,
            compute_loss_func=LOSS_FUNCTIONS[setting.loss_func],
            **more,
        )

    def train(self, setting=None, *, attach=None, keep=False, **more):
        """Trains; `attach` holds what `trimtab.attach` is given, None for a training without Trimtab."""
        trainer = self.trainer(setting, **more)
        initial = copy.deepcopy(trainer.model) if keep else None
        probe = Probe(trainer)
        run = trimtab.attach(trainer, **attach) if attach is not None else None
        trainer.train()
        return Trained(trainer, probe, run, initial)


@pytest.fixture(scope="session", autouse=True)
def _what_is_imported_is_no_garbage():
    # A training begins with a collection: 0.2 s over all that transformers imports, 0.01 s without it.
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A bench whose trainers write under this test's folder and say nothing beyond warnings."""
    monkeypatch.setattr(transformers.trainer_callback.PrinterCallback, "on_log", lambda *_, **__: None)
    return Bench(tmp_path)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    """A bench for trainings that serve a whole test file."""
    return Bench(tmp_path_factory.mktemp("once"))


@pytest.fixture
def said(caplog):
    """What Trimtab has said so far, line by line."""
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("trimtab")]
