"""A router that goes wrong in a mixture-of-experts model, watched while it does.

    .venv/bin/python -m pip install '.[hf]'        # from a clone; `make demo` has made .venv
    .venv/bin/python examples/mixtral_watch.py && .venv/bin/trimtab rewind

Offline, on the CPU, in some seconds: a tiny random Mixtral over bytes, whose routers go wrong in two ways. The load
balancing loss is off, as transformers leaves it where nobody sets `output_router_logits`, and the last layer soon has
experts without a token. The router in the middle learns at a hundred times the rate of the rest, and its logits grow
until it is sure of everything. The loss falls all the same. A watch warns, stops nothing, and writes it all down.
"""

import random
import sys
import tempfile

try:
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM, Trainer, TrainingArguments

    import trimtab
except ModuleNotFoundError as error:
    sys.exit(f"{error}: this example needs transformers. From a clone: {sys.executable} -m pip install '.[hf]'")

THINGS = ["the river", "a small boat", "the old mill", "our neighbour", "the morning ferry", "a flock of geese"]
DEEDS = ["passes", "waits beside", "remembers", "turns towards", "leaves behind", "belongs to"]


def make_rows() -> list[dict[str, list[int]]]:
    """The dataset as the trainer gets it, a token a byte."""
    dice = random.Random(7)

    def sentence() -> str:
        return f"{dice.choice(THINGS)} {dice.choice(DEEDS)} {dice.choice(THINGS)}."

    return [{"input_ids": list(f"{sentence()} {sentence()}".encode())} for _ in range(1600)]


def pad(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    tokens = [torch.tensor(row["input_ids"]) for row in rows]
    labels = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=-100)
    return {"input_ids": labels.clamp(min=0), "attention_mask": (labels >= 0).long(), "labels": labels}


def main() -> None:
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2)
    experts = dict(num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2)
    model = MixtralForCausalLM(MixtralConfig(vocab_size=256, bos_token_id=None, eos_token_id=None, **sizes, **experts))
    wild = [weight for name, weight in model.named_parameters() if "layers.1.mlp.gate" in name]
    tame = [weight for weight in model.parameters() if all(weight is not other for other in wild)]
    optimizer = torch.optim.AdamW([{"params": tame}, {"params": wild, "lr": 0.3}], lr=3e-3)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="trimtab-mixtral-"), per_device_train_batch_size=8, num_train_epochs=1,
        lr_scheduler_type="constant", use_cpu=True, report_to=[], save_steps=100, logging_steps=50, seed=0,
        disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(
        model=model, args=args, train_dataset=make_rows(), data_collator=pad, optimizers=(optimizer, None)
    )
    found: list[trimtab.WatchFinding] = []
    watch = trimtab.WatchConfig(report_every=10)
    run = trimtab.attach(trainer, watch=watch, on_finding=found.append)
    trainer.train()
    reports = [event for event in trimtab.open_log(run.folder).event_list() if event.kind == "router"]
    for event in reports[::5]:
        layers = event.facts["layers"]
        figures = zip(layers["name"], layers["z"], layers["token_entropy"], layers["counts"], strict=True)
        for name, z, entropy, counts in figures:
            print(f"step {event.step:3} {name}: z {z:8.2f}, entropy {entropy:.2f}, tokens {counts}")
    print(f"Found: {', '.join(f'{one.kind} at step {one.step}' for one in found)}; the run is in {run.folder}")


if __name__ == "__main__":
    main()
