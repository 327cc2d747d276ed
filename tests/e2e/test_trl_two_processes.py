"""An SFTTrainer in two real processes: rank 0 is recorded with the right rows, and a guard is refused."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, sys
import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
import trimtab

disable_progress_bars()
packing, out = sys.argv[1] == "packed", sys.argv[2]
documents = [[f"w{d}.{place}" for place in range(3 + d * 5 % 7)] for d in range(16)]
words = ["<eos>", *(word for document in documents for word in document)]
vocabulary = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<eos>"))
vocabulary.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, eos_token="<eos>", pad_token="<eos>")
torch.manual_seed(0)
sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **sizes))
args = SFTConfig(
    output_dir=out, packing=packing, max_length=16, per_device_train_batch_size=2, use_cpu=True, bf16=False,
    report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, num_train_epochs=1,
    dataloader_pin_memory=False, gradient_checkpointing=False,
)
rows = Dataset.from_dict({"text": [" ".join(document) for document in documents]})
with trimtab.keep_row_ids():
    trainer = SFTTrainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer)
try:
    trimtab.attach(trainer, guard=trimtab.GuardConfig(rule="robust"))
    refused = None
except trimtab.UsageError as error:
    refused = str(error)
seen = []
document_of = {word: d for d, document in enumerate(documents) for word in document}


def look(module, inputs, kwargs):
    labels = kwargs["labels"].flatten().tolist()
    tokens = [words[token] for token in kwargs["input_ids"].flatten().tolist()]
    seen.append(sorted({document_of[t] for t, label in zip(tokens, labels) if label != -100 and t in document_of}))


trainer.model.register_forward_pre_hook(look, with_kwargs=True)
run = trimtab.attach(trainer)
trainer.train()
answer = {"refused": refused, "folder": str(run.folder) if run.folder else None, "seen": seen}
with open(f"{out}/rank{os.environ['RANK']}.json", "w") as file:
    json.dump(answer, file)
torch.distributed.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.long
@pytest.mark.parametrize("how", ["packed", "padded"])
def test_rank_0_is_recorded_with_its_own_rows_and_a_guard_is_refused(tmp_path: Path, how: str) -> None:
    # given
    out = tmp_path / "out"
    out.mkdir()
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    # when
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, how, str(out)],
            env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    answers = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]
    # then
    for answer in answers:
        assert "2 are running" in answer["refused"]
    assert answers[1]["folder"] is None
    program = (
        "import json, sys, trimtab\n"
        "steps = {}\n"
        "for block in trimtab.open_log(sys.argv[1]).row_blocks():\n"
        "    for step, row, count in zip(block.step.tolist(), block.row.tolist(), block.num_tokens.tolist()):\n"
        "        steps.setdefault(step, set()).update([row] if count else [])\n"
        "print(json.dumps([sorted(steps[step]) for step in sorted(steps)]))"
    )
    read = subprocess.run(
        [sys.executable, "-c", program, answers[0]["folder"]], capture_output=True, text=True, check=True
    )
    recorded = json.loads(read.stdout)
    assert recorded == answers[0]["seen"]
    assert recorded != answers[1]["seen"]
