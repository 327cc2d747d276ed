"""A long training in chunks: each is judged by `trimtab gate` before the next one begins.

    .venv/bin/python examples/chunk_gate.py        # from a clone; `make demo` has made .venv

Offline, on the CPU, in seconds: a small model learns the source of this program, byte by byte. Two chunks are trained
as they should be, the second from the checkpoint of the first, and the gates let both through. The third asks for half
the learning rate, and forgets to say so to `load`, which goes on at the saved one. All else about it is fine, and its
loss falls; one gate tells.
"""

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

    import trimtab
    from trimtab.checkpoint import Checkpointer, round_trip
except ModuleNotFoundError as error:
    sys.exit(f"{error}: this example needs torch. From a clone: {sys.executable} -m pip install '.[torch]'")

NUM_STEPS, WARMUP, CHUNK = 200, 10, 40
ROWS = torch.tensor(list(Path(__file__).read_bytes())).unfold(0, 65, 7)


class Reader(torch.nn.Module):
    """Logits of the next byte after each of (B, T), by all bytes up to it."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.memory = torch.nn.Embedding(256, 32), torch.nn.GRU(32, 64, batch_first=True)
        self.head = torch.nn.Linear(64, 256)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.memory(self.bytes(input_ids))[0])


def build(lr: float) -> tuple[torch.nn.Module, torch.optim.Optimizer, SequentialLR]:
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    parts = [LinearLR(optimizer, 1 / WARMUP, total_iters=WARMUP), CosineAnnealingLR(optimizer, NUM_STEPS - WARMUP)]
    return model, optimizer, SequentialLR(optimizer, parts, [WARMUP])


def train_chunk(out: Path, *, until: int, lr: float) -> Path | None:
    torch.manual_seed(0)
    model, optimizer, scheduler = build(lr)
    parts = dict(model=model, optimizer=optimizer, scheduler=scheduler)
    meant = trimtab.Schedule(form="cosine", lr=lr, num_steps=NUM_STEPS, num_warmup_steps=WARMUP, warmup_from=1 / WARMUP)
    checkpoints, first = Checkpointer(out / "checkpoints"), 1
    with trimtab.Run(out, model=model, optimizer=optimizer, max_grad_norm=1.0, watch=True, schedule=meant) as run:
        if checkpoints.has_checkpoints():
            first = checkpoints.load(checkpoints.pick(), run=run, **parts).step + 1  # another rate takes lr=
        for step in range(first, until + 1):
            rows = torch.randperm(len(ROWS) - 40, generator=torch.Generator().manual_seed(step))[:16]
            logits = model(ROWS[rows, :-1]).transpose(1, 2)
            losses = torch.nn.functional.cross_entropy(logits, ROWS[rows, 1:], reduction="none")
            run.micro_batch(losses, rows=rows).backward()
            loss = run.step().loss
            scheduler.step()
        with torch.no_grad():
            held_out = model(ROWS[-32:, :-1]).transpose(1, 2)
        run.evaluation(torch.nn.functional.cross_entropy(held_out, ROWS[-32:, 1:]))
        saved = checkpoints.save(until, loss=loss, run=run, **parts)
        round_trip(saved, build=lambda: build(lr), loss=loss, run=run, probe_ids=ROWS[-1:], **parts)
    return run.folder


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    folder = Path(tempfile.mkdtemp(prefix="trimtab-chunks-"))
    for number, lr in enumerate((4e-3, 4e-3, 2e-3), start=1):
        print(f"\nChunk {number}, at a learning rate of {lr:g}:", flush=True)
        run_folder = train_chunk(folder, until=number * CHUNK, lr=lr)
        subprocess.run([Path(sys.executable).with_name("trimtab"), "gate", str(run_folder)])
