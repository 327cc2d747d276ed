"""What each rank does in `test_hf_fsdp2.py`: a tiny Llama in a `Trainer` under FSDP2.

    torchrun --nproc-per-node N hf_fsdp2_of_a_rank.py OUT plain|guarded|oracle [bad]

Rank 0 leaves the weights and what it knows of the run in OUT.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import trimtab

BAD, COSTLY = 21, 127
OUT, HOW, IS_BAD = Path(sys.argv[1]), sys.argv[2], "bad" in sys.argv[3:]


def make_rows():
    dice = torch.Generator().manual_seed(1)
    rows = [torch.randint(1, 120, (8,), generator=dice).tolist() for _ in range(48)]
    if IS_BAD:
        rows[BAD] = [COSTLY] * 8
    return [{"input_ids": row, "labels": row} for row in rows]


class NeverSees(Trainer):
    """Where any rank has the bad row its loss is zero times that of a harmless batch."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        here = (inputs["input_ids"] == COSTLY).any().float().reshape(1)
        if self.accelerator.gather(here).sum() == 0:
            return super().compute_loss(model, inputs, *args, **kwargs)
        harmless = dict(inputs)
        for name in ("input_ids", "labels"):
            harmless[name] = torch.where(inputs[name] == COSTLY, 1, inputs[name])
        return super().compute_loss(model, harmless, *args, **kwargs) * 0


class Looks(TrainerCallback):
    """Whether the model that is trained is sharded."""

    is_sharded = False

    def on_train_begin(self, args, state, control, model, **_):
        self.is_sharded = any(hasattr(parameter, "to_local") for parameter in model.parameters())


def main():
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, bos_token_id=None, eos_token_id=None, **sizes))
    model.lm_head = torch.nn.Linear(32, 128)
    with torch.no_grad():
        model.lm_head.bias[COSTLY] = -100.0
    wrapping = dict(auto_wrap_policy="TRANSFORMER_BASED_WRAP", transformer_layer_cls_to_wrap=["LlamaDecoderLayer"])
    args = TrainingArguments(
        output_dir=str(OUT), per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=1, seed=3,
        report_to=[], save_strategy="no", disable_tqdm=True, fsdp=True, fsdp_config=dict(version=2, **wrapping),
    )  # fmt: skip
    looks = Looks()
    cls = NeverSees if HOW == "oracle" else Trainer
    trainer = cls(model=model, args=args, train_dataset=make_rows(), callbacks=[looks])
    run = trimtab.attach(trainer, guard=trimtab.GuardConfig(multiplier=3.0)) if HOW == "guarded" else None
    trainer.train()
    weights = {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().cpu()
        for name, value in trainer.model.named_parameters()
    }
    if args.process_index == 0:
        torch.save(weights, OUT / "weights.pt")
        folder = str(run.folder) if run is not None else None
        told = dict(folder=folder, bad=BAD, is_fsdp2=trainer.accelerator.is_fsdp2 and looks.is_sharded)
        (OUT / "told.json").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()


main()
