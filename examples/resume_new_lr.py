"""Going on from a checkpoint with another learning rate: the schedule built afresh at it, at the same place.

    python examples/resume_new_lr.py

A cosine of 1,000 steps is trained at 5e-4 up to step 200 and saved into runs/. A second program, so to say, builds
everything anew, loads the checkpoint and asks for 3e-4. Loading alone would restore 5e-4 everywhere, and an `lr` that
is set by hand is undone at the next step. On the CPU, in seconds; what stands in runs/ is overwritten by no run but
this one. Afterwards:

    trimtab ckpt ls runs/
    trimtab ckpt pick --healthy runs/
"""

import logging
import sys

try:
    import torch
except ModuleNotFoundError:
    sys.exit(f"This example trains with PyTorch: {sys.executable} -m pip install '.[torch]' in the repository")

from trimtab.checkpoint import Checkpointer

NUM_STEPS, SAVED_AT, NUM_SHOWN = 1_000, 200, 5
OLD_LR, NEW_LR = 5e-4, 3e-4


def build(lr: float) -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS)


def train_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler
) -> float:
    inputs = torch.randn(16, 8)
    loss = (model(inputs).squeeze(-1) - inputs.sum(dim=-1)).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    return loss.item()


def main() -> None:
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    # A fixed run id: run again, this goes over its own checkpoints and leaves those of others alone.
    model, optimizer, scheduler = build(OLD_LR)
    checkpointer = Checkpointer("runs", run_id="resume-new-lr")
    for step in range(1, SAVED_AT + 1):
        loss = train_step(model, optimizer, scheduler)
        if step % (SAVED_AT // 2) == 0:
            checkpointer.save(step, model=model, optimizer=optimizer, scheduler=scheduler, loss=loss)
    print(f"Saved at step {SAVED_AT}: loss {loss:.4f}, next learning rate {optimizer.param_groups[0]['lr']:.4e}")

    model, optimizer, scheduler = build(NEW_LR)
    checkpointer = Checkpointer("runs", run_id="resume-new-lr")
    resumed = checkpointer.load(checkpointer.pick(), model=model, optimizer=optimizer, scheduler=scheduler, lr=NEW_LR)
    print(f"Went on from {resumed.path}, step {resumed.step}, loss {resumed.loss:.4f}. The next rates:")
    for step in range(resumed.step + 1, resumed.step + 1 + NUM_SHOWN):
        print(f"  step {step}: {optimizer.param_groups[0]['lr']:.4e}")
        train_step(model, optimizer, scheduler)


if __name__ == "__main__":
    main()
