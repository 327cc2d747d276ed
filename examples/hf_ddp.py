"""Hugging Face's Trainer in two processes: a bad row on one of them, kept out of the update on both, and named.

    .venv/bin/python -m pip install '.[hf]'        # from a clone; `make demo` has made .venv
    .venv/bin/torchrun --nproc-per-node 2 examples/hf_ddp.py
    .venv/bin/trimtab rewind --data examples.hf_ddp:make_rows

Offline, on the CPU, in some seconds: a tiny random Llama over bytes, and documents of which one was decoded wrongly on
its way into the dataset. Rank 1 meets it; the verdict is taken over both ranks, so both leave this micro-batch out, and
their weights stay equal. Each rank writes its own rows into the one log.
"""

import os
import random
import sys
import tempfile
from pathlib import Path

try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    import trimtab
except ModuleNotFoundError as error:
    sys.exit(f"{error}: this example needs transformers. From a clone: {sys.executable} -m pip install '.[hf]'")

NUM_DOCUMENTS = 480
PLANTED = 229
THINGS = ["the river", "a small boat", "the old mill", "our neighbour", "the morning ferry", "a flock of geese"]
DEEDS = ["passes", "waits beside", "remembers", "turns towards", "leaves behind", "belongs to"]


def make_rows() -> list[dict[str, list[int]]]:
    """The dataset as the trainer gets it, a token a byte; `rewind --data` looks its rows up in it."""
    dice = random.Random(7)

    def sentence() -> str:
        return f"{dice.choice(THINGS)} {dice.choice(DEEDS)} {dice.choice(THINGS)}."

    documents = [" ".join(sentence() for _ in range(dice.randint(1, 3))).encode() for _ in range(NUM_DOCUMENTS)]
    documents[PLANTED] = dice.randbytes(200)
    return [{"input_ids": list(document)} for document in documents]


def pad(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    tokens = [torch.tensor(row["input_ids"]) for row in rows]
    labels = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=-100)
    return {"input_ids": labels.clamp(min=0), "attention_mask": (labels >= 0).long(), "labels": labels}


def main() -> None:
    torch.manual_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, bos_token_id=None, eos_token_id=None, **sizes))
    # Both ranks need the same folder: its name comes from the process that started them.
    out = Path(tempfile.gettempdir()) / f"trimtab-hf-ddp-{os.getppid()}"
    args = TrainingArguments(
        output_dir=str(out), per_device_train_batch_size=1, num_train_epochs=1, learning_rate=3e-3, seed=6,
        use_cpu=True, report_to=[], save_strategy="no", logging_steps=60, disable_tqdm=True,
        dataloader_pin_memory=False, ddp_find_unused_parameters=False,
    )  # fmt: skip
    trainer = Trainer(model=model, args=args, train_dataset=make_rows(), data_collator=pad)
    trimtab.attach(trainer, guard=trimtab.GuardConfig(rule="robust"))
    trainer.train()
    if args.process_index == 0:
        print(f"Row {PLANTED} was planted; the run is in {out}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if not torch.distributed.is_torchelastic_launched():
        sys.exit(f"Two processes train here: torchrun --nproc-per-node 2 {sys.argv[0]}")
    main()
