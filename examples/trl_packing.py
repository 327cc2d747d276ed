"""TRL's SFTTrainer with packing: one bad document among many that share their sequences, and which one it was.

    .venv/bin/python -m pip install '.[trl]'        # from a clone; `make demo` has made .venv
    .venv/bin/python examples/trl_packing.py
    .venv/bin/trimtab rewind --data examples.trl_packing:load_rows

Offline, on the CPU, in some seconds: a tiny random Llama, a tokenizer made of a byte each, and documents of which one
was decoded wrongly on its way into the dataset. Packing puts it into one sequence with others; `keep_row_ids` lets the
log tell them apart all the same.
"""

import random
import sys
import tempfile
import warnings

try:
    import torch
    from datasets import Dataset, disable_progress_bars
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    import trimtab
except ModuleNotFoundError as error:
    sys.exit(f"{error}: this example needs TRL. From a clone: {sys.executable} -m pip install '.[trl]'")

NUM_DOCUMENTS = 600
PLANTED = 417
THINGS = ["the river", "a small boat", "the old mill", "our neighbour", "the morning ferry", "a flock of geese"]
DEEDS = ["passes", "waits beside", "remembers", "turns towards", "leaves behind", "belongs to"]


def make_documents() -> list[str]:
    dice = random.Random(7)

    def sentence() -> str:
        return f"{dice.choice(THINGS)} {dice.choice(DEEDS)} {dice.choice(THINGS)}."

    documents = [" ".join(sentence() for _ in range(dice.randint(1, 4))) for _ in range(NUM_DOCUMENTS)]
    # Text that was read in the wrong encoding, as it happens to one file in a crawl.
    documents[PLANTED] = "".join(chr(dice.randrange(0x80, 0x800)) for _ in range(90))
    return documents


def load_rows() -> Dataset:
    """The dataset as the trainer gets it; `rewind --data` looks the text of its rows up in it."""
    return Dataset.from_dict({"text": make_documents()})


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokens = ["<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bytes_only = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<eos>", pad_token="<eos>")


def main() -> None:
    disable_progress_bars()
    torch.manual_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=257, pad_token_id=0, eos_token_id=0, bos_token_id=None, **sizes))
    out = tempfile.mkdtemp(prefix="trimtab-trl-packing-")
    args = SFTConfig(
        output_dir=out, packing=True, max_length=256, per_device_train_batch_size=1, learning_rate=3e-3,
        num_train_epochs=1, seed=6, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
        save_strategy="no", logging_steps=60, disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    with trimtab.keep_row_ids():
        trainer = SFTTrainer(model=model, args=args, train_dataset=load_rows(), processing_class=make_tokenizer())
    run = trimtab.attach(trainer)
    trainer.train()
    print(f"Document {PLANTED} was planted; the run is in {run.folder}")


if __name__ == "__main__":
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        main()
