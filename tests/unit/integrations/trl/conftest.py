"""Real SFTTrainers on tiny models, the documents they are trained on, and what each document must have cost.

A document's words are its own: word `w17.3` is in document 17 only, and only once. So a token tells its document
wherever packing has put it; tokens that all documents share (roles, the end) belong to the words around them.
"""

import copy
import warnings
from collections import defaultdict
from dataclasses import dataclass, field

import datasets
import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import trimtab

NUM_DOCUMENTS = 13
MAX_WORDS = 24
SPECIAL = ["<pad>", "<eos>", "<user>", "<assistant>", "<costly>"]
IGNORED = -100
MAX_LENGTH = 16
LONG = (2, 7)  # documents longer than a sequence: cut, or split by packing
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' + message['content'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}{{ '<eos> ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


def num_words(document):
    return 3 * MAX_LENGTH // 2 - 2 if document in LONG else 3 + document * 5 % 7


def words_of(document):
    return [f"w{document}.{place}" for place in range(num_words(document))]


VOCABULARY = SPECIAL + [f"w{d}.{place}" for d in range(NUM_DOCUMENTS) for place in range(MAX_WORDS)]
DOCUMENT_OF_TOKEN = torch.tensor(
    [-1] * len(SPECIAL) + [d for d in range(NUM_DOCUMENTS) for _ in range(MAX_WORDS)], dtype=torch.int64
)


def make_tokenizer():
    words = Tokenizer(WordLevel({word: place for place, word in enumerate(VOCABULARY)}, unk_token="<pad>"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", chat_template=CHAT_TEMPLATE
    )


# ------------------------------------------------------------------------------------------------------------ data


def _halves(document, costly):
    words = words_of(document)
    if document in costly:  # the place of each word stays, so nothing is packed in another way
        words[1:] = ["<costly>"] * (len(words) - 1)
    cut = max(1, len(words) // 3)
    return " ".join(words[:cut]), " ".join(words[cut:])


def _text(prompt, completion):
    return {"text": f"{prompt} {completion}"}


def _prompt_completion(prompt, completion):
    return {"prompt": f"{prompt} ", "completion": completion}


def _messages(prompt, completion):
    return {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]}


def _prompt_messages(prompt, completion):
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "completion": [{"role": "assistant", "content": completion}],
    }


def _tokens(prompt, completion):
    return {"input_ids": [VOCABULARY.index(word) for word in f"{prompt} {completion} <eos>".split()]}


def _tokens_and_labels(prompt, completion):
    tokens = _tokens(prompt, completion)["input_ids"]
    return {"input_ids": tokens, "labels": [IGNORED, IGNORED, *tokens[2:]]}


KINDS = {
    "text": _text,
    "prompt-completion": _prompt_completion,
    "messages": _messages,
    "prompt messages": _prompt_messages,
    "tokens": _tokens,
    "tokens and labels": _tokens_and_labels,
}


def make_dataset(kind="text", *, costly=(), num_documents=NUM_DOCUMENTS):
    return datasets.Dataset.from_list([KINDS[kind](*_halves(d, costly)) for d in range(num_documents)])


# ------------------------------------------------------------------------------------------------------------ models


def _sizes(**more):
    return dict(
        vocab_size=len(VOCABULARY), hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, eos_token_id=1, bos_token_id=None, **more,
    )  # fmt: skip


def make_model(kind="llama"):
    """The same model each time; the costly token is so unlikely that it costs about 30 times any other."""
    torch.manual_seed(0)
    if kind == "mixtral":
        router = dict(num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.1)
        model = MixtralForCausalLM(MixtralConfig(**_sizes(**router)))
    else:
        model = LlamaForCausalLM(LlamaConfig(**_sizes()))
    model.lm_head = torch.nn.Linear(16, len(VOCABULARY))
    with torch.no_grad():
        model.lm_head.bias[SPECIAL.index("<costly>")] = -200.0
    return model


# ---------------------------------------------------------------------------------------------------------- trainers


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to set up a training; everything that is not named is the plainest."""

    kind: str = "text"
    model: str = "llama"
    lora: bool = False
    stream: bool = False
    args: dict = field(default_factory=dict)


class Probe(transformers.TrainerCallback):
    """Sees what the model sees: the inputs of every forward with labels in training, by optimizer step."""

    def __init__(self, trainer):
        self.batches = defaultdict(list)
        self.trainer = trainer
        trainer.model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, model, args, kwargs):
        if model.training and "labels" in kwargs:
            tensors = {name: value.clone() for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
            self.batches[self.trainer.state.global_step + 1].append(tensors)


def documents_of_tokens(input_ids, position_ids=None):
    """(B, T): which document each token is of, from the words alone."""
    found = DOCUMENT_OF_TOKEN[input_ids]
    for sequence, own in enumerate(found):
        starts = [0] if position_ids is None else (position_ids[sequence] == 0).nonzero().flatten().tolist()
        for first, end in zip(starts, [*starts[1:], len(own)], strict=True):
            part = own[first:end]
            known = part[part >= 0]
            if not len(known):
                continue
            part[: int((part >= 0).nonzero()[0])] = known[0]
            for place in range(1, len(part)):
                if part[place] < 0:
                    part[place] = part[place - 1]
    return found


def nll(logits, labels):
    return -logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]


def dft(logits, labels):
    """Each token's loss weighed by how likely the token was."""
    losses = nll(logits, labels)
    return losses * (-losses).exp()


def smoothed(logits, labels):
    """A tenth of each token's loss is spread over all words."""
    return 0.9 * nll(logits, labels) + 0.1 * -logits.log_softmax(-1).mean(-1)


TOKEN_LOSSES = {"nll": nll, "dft": dft, "smoothed": smoothed}


def costs(model, batches, *, token_loss):
    """Document -> (sum of its token losses, supervised tokens) of some batches, by the plain model."""
    sums, counts = defaultdict(float), defaultdict(int)
    for batch in batches:
        labels = batch["labels"]
        inputs = {k: batch[k] for k in ("input_ids", "attention_mask", "position_ids") if k in batch}
        with torch.no_grad():
            logits = model(**inputs).logits[:, :-1].double()
        losses = token_loss(logits, labels[:, 1:])
        owners = documents_of_tokens(batch["input_ids"], batch.get("position_ids"))[:, 1:]
        for owner, loss, label in zip(
            owners.flatten().tolist(), losses.flatten().tolist(), labels[:, 1:].flatten().tolist(), strict=True
        ):
            if label != IGNORED:
                sums[owner] += loss
                counts[owner] += 1
    return {document: (sums[document], counts[document]) for document in sums}


@dataclass
class Trained:
    trainer: SFTTrainer
    probe: Probe
    run: object
    initial: torch.nn.Module

    @property
    def documents(self):
        """step -> micro-batches -> documents, as the model saw them."""
        return {
            step: [
                set(documents_of_tokens(batch["input_ids"], batch.get("position_ids")).flatten().tolist()) - {-1}
                for batch in batches
            ]
            for step, batches in self.probe.batches.items()
        }

    @property
    def weights(self):
        return {name: value.clone() for name, value in self.trainer.model.state_dict().items()}

    @property
    def logged(self):
        told = ("loss", "grad_norm", "learning_rate", "step", "eval_loss", "num_tokens", "entropy")
        return [{key: entry[key] for key in told if key in entry} for entry in self.trainer.state.log_history[:-1]]

    @property
    def log(self):
        return trimtab.open_log(self.run.folder)

    def recorded_costs(self):
        """step -> row -> (loss_sum, num_tokens), as the log has them."""
        found = defaultdict(dict)
        for block in self.log.row_blocks():
            columns = (block.step, block.row, block.loss_sum, block.num_tokens)
            for step, row, loss_sum, num_tokens in zip(*(column.tolist() for column in columns), strict=True):
                if num_tokens:  # of a document that only begins a sequence, no token is predicted
                    before = found[step].get(row, (0.0, 0))
                    found[step][row] = (before[0] + loss_sum, before[1] + num_tokens)
        return dict(found)

    def true_costs(self, token_loss="nll"):
        """step -> document -> (loss_sum, num_tokens), by the plain model on what the trainer's model saw."""
        formula = TOKEN_LOSSES[token_loss]
        found = {step: costs(self.initial, seen, token_loss=formula) for step, seen in self.probe.batches.items()}
        return {step: documents for step, documents in found.items() if documents}


class SFTBench:
    """Makes SFTTrainers and trains them."""

    make_model = staticmethod(make_model)
    make_dataset = staticmethod(make_dataset)
    make_tokenizer = staticmethod(make_tokenizer)
    words = staticmethod(words_of)

    def __init__(self, folder):
        self.folder = folder
        self.count = 0

    def trainer(self, setting=None, *, keep=False, dataset=None, costly=(), cls=SFTTrainer, model=None, **more):
        """A trainer that was never told of Trimtab but, if asked, by `keep_row_ids`."""
        setting = Setting(**(setting or {}))
        self.count += 1
        args = dict(
            output_dir=str(self.folder / f"out{self.count}"),
            per_device_train_batch_size=2,
            num_train_epochs=1,
            learning_rate=1e-2,
            max_length=MAX_LENGTH,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            dataloader_pin_memory=False,
            gradient_checkpointing=False,
            seed=3,
        )
        if dataset is None:
            dataset = make_dataset(setting.kind, costly=costly)
        if setting.stream:
            dataset = dataset.to_iterable_dataset()
        if setting.lora:
            import peft

            more["peft_config"] = peft.LoraConfig(
                task_type="CAUSAL_LM", r=2, lora_dropout=0.0, target_modules=["q_proj", "v_proj"]
            )
        with warnings.catch_warnings():
            # peft reads an old name of transformers; TRL announces what it will remove.
            warnings.simplefilter("ignore", FutureWarning)

            def build():
                return cls(
                    model=model if model is not None else make_model(setting.model),
                    args=SFTConfig(**(args | setting.args)),
                    train_dataset=dataset,
                    processing_class=make_tokenizer(),
                    **more,
                )

            if not keep:
                return build()
            with trimtab.keep_row_ids():
                return build()

    def train(self, setting=None, *, attach=None, **more):
        """Trains; `attach` holds what `trimtab.attach` is given, None for a training without Trimtab."""
        trainer = self.trainer(setting, **more)
        initial = copy.deepcopy(trainer.model).eval()
        probe = Probe(trainer)
        run = trimtab.attach(trainer, **attach) if attach is not None else None
        trainer.train()
        return Trained(trainer, probe, run, initial)


@pytest.fixture
def sft(tmp_path, monkeypatch):
    """A bench whose trainers write under this test's folder and say nothing beyond warnings."""
    monkeypatch.setattr(transformers.trainer_callback.PrinterCallback, "on_log", lambda *_, **__: None)
    datasets.disable_progress_bars()
    yield SFTBench(tmp_path)
    datasets.enable_progress_bars()
