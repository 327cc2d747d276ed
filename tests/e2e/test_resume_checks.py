"""Runs that are resumed, rightly and in every wrong way, and what is said of their first steps: on the terminal, in the
log, and by `rewind`. Real runs, models, loaders, schedulers and trainers."""

import copy
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import trimtab
from trimtab.checkpoint import Checkpointer, rebase_lr

NO_LOG = "rows not compared: no log holds the steps before the checkpoint"
NUM_ROWS, BATCH, SAVED_AT = 48, 4, 100  # 12 steps an epoch: the checkpoint is inside the ninth


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, logger="trimtab")

    def said():
        lines = [record.getMessage() for record in caplog.records if record.name == "trimtab.resume"]
        caplog.clear()
        return lines

    return said


class Order(torch.utils.data.Sampler):
    """Each epoch in an order of its own, from whichever row on."""

    def __init__(self, epoch=0, start=0):
        self.epoch, self.start = epoch, start

    def __iter__(self):
        order = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        start, self.start = self.start, 0
        self.epoch += 1
        return iter(order[start:])

    def __len__(self):
        return NUM_ROWS


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 240)
    return model, optimizer, scheduler


def data():
    source = torch.Generator().manual_seed(5)
    x = torch.randn(NUM_ROWS, 8, generator=source)
    return x, (x @ torch.randn(8, 1, generator=source)).squeeze(1)


def train(out, *, to, saved=None, leave=(), tell=None, **settings):
    """Trains up to step `to`; what is in `leave` is not restored from `saved`. Gives the checkpoint of `SAVED_AT`."""
    model, optimizer, scheduler = make()
    x, y = data()
    run = trimtab.Run(out, model=model, optimizer=optimizer, dataset=list(range(NUM_ROWS)), **settings)
    parts = dict(model=model, optimizer=optimizer, scheduler=scheduler, run=run)
    order, step, kept = Order(), 0, None
    if saved is not None:
        order, step = restore(saved, parts, leave=leave), saved["step"]
    if tell is not None:
        tell(run, {name: part for name, part in parts.items() if name != "run"})
    while step < to:
        for rows in torch.utils.data.DataLoader(range(NUM_ROWS), batch_size=BATCH, sampler=order):
            losses = (model(x[rows]).squeeze(1) - y[rows]) ** 2
            run.micro_batch(losses, per="sample", rows=rows).backward()
            run.step()
            scheduler.step()
            step += 1
            if step == SAVED_AT:
                kept = {name: copied(part.state_dict()) for name, part in parts.items()}
                kept |= dict(step=step, place=(step * BATCH // NUM_ROWS, step * BATCH % NUM_ROWS))
            if step == to:
                break
    run.close()
    return kept


def restore(saved, parts, *, leave):
    """Loads all but what is left out; gives the order of the rows to come, rightly or by a mistake."""
    for name, part in parts.items():
        if name not in leave:
            part.load_state_dict(saved[name])
    if "a step" in leave:
        parts["scheduler"].step()
    epoch, start = saved["place"]
    if "place" in leave:
        return Order()
    if "epoch" in leave:
        return Order(epoch)
    return Order(epoch, start + 8 if "some rows" in leave else start)


def copied(state):
    return copy.deepcopy(state)


def checked(out):
    """The findings of the one event of the resume, and what was compared."""
    events = [event for event in trimtab.open_log(out).event_list() if event.kind == "resume_check"]
    assert len(events) == 1
    return events[0].facts["findings"], events[0].facts["compared"]


WAYS = {  # what is left out: what must be found where the first attempt went on, and where it did not
    "model": (["loss_rose"], ["loss_rose"]),
    "scheduler": (["lr"], []),  # the optimizer's own rate was restored, and nobody knows how it should move
    "a step": (["lr_off_by_one"], ["lr_off_by_one"]),
    "place": (["rows_replayed"], ["rows_replayed"]),
    "epoch": (["rows_replayed"], ["rows_replayed"]),
    "some rows": (["rows_skipped"], ["rows_skipped"]),  # the next epoch begins too early
}


@pytest.mark.parametrize("went_on", [True, False], ids=["went past the checkpoint", "ended with it"])
def test_a_run_that_is_resumed_rightly_says_so(tmp_path, said, went_on):
    saved = train(tmp_path, to=SAVED_AT + 11 * went_on)
    assert said() == []
    train(tmp_path, to=SAVED_AT + 20, saved=saved)
    assert checked(tmp_path) == ([], ["loss", "learning rate", "rows"])
    assert said() == [f"Trimtab, resume: loss, learning rate and rows continue what came before step {SAVED_AT + 1}."]
    assert not any("resumed" in notice for notice in trimtab.rewind(tmp_path).notices)


@pytest.mark.parametrize("went_on", [True, False], ids=["went past the checkpoint", "ended with it"])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_resumed_wrongly_says_how(tmp_path, said, way, went_on):
    saved = train(tmp_path, to=SAVED_AT + 20 * went_on)
    said()
    train(tmp_path, to=SAVED_AT + 12, saved=saved, leave=[way])
    findings, _ = checked(tmp_path)
    assert [finding["kind"] for finding in findings] == WAYS[way][not went_on], findings
    lines = said()
    assert len(lines) == max(1, len(findings))
    for finding, line in zip(findings, lines, strict=False):
        assert line == f"Trimtab, resume at step {SAVED_AT + 1}: {finding['severity']}: {finding['text']}."
    told = [notice for notice in trimtab.rewind(tmp_path).notices if notice.startswith("the run resumed at step 101")]
    assert told == [f"the run resumed at step 101, {f['severity']}: {f['text']}" for f in findings]
    if way == "model":
        assert findings[0]["severity"] == "critical"
        assert "weights probably not restored" in findings[0]["text"]


@pytest.mark.parametrize("settings", [dict(record=False), dict()], ids=["not recorded", "its log was lost"])
@pytest.mark.parametrize(("way", "expected"), [(None, None), ("model", "loss"), ("a step", "learning rate")], ids=str)
def test_without_a_log_losses_and_rates_are_known_from_the_state(tmp_path, said, settings, way, expected):
    saved = train(tmp_path / "first", to=SAVED_AT, record=settings.get("record", True))
    saved = json.loads(json.dumps({"run": saved["run"]})) | {k: v for k, v in saved.items() if k != "run"}
    said()
    train(tmp_path / "second", to=SAVED_AT + 12, saved=saved, leave=[way], **settings)
    line, *rest = said()
    if way is None:
        assert line == f"Trimtab, resume: loss and learning rate continue what came before step 101; {NO_LOG}."
        assert not rest
    else:
        assert rest == [f"Trimtab, resume at step 101: {NO_LOG}."]
        assert f"Trimtab, resume at step 101: {'critical' if way == 'model' else 'warning'}: " in line
        assert expected in line


def lower(parts):
    rebase_lr(parts["optimizer"], parts["scheduler"], 1e-2)


@pytest.mark.parametrize("is_last", [True, False], ids=["after the run's state", "before it"])
def test_another_rate_that_was_asked_for_by_rebase_lr_is_no_finding(tmp_path, is_last):
    def load(run, parts):
        lower(parts)
        if not is_last:
            run.load_state_dict(saved["run"])

    saved = train(tmp_path, to=SAVED_AT + 4)
    train(tmp_path, to=SAVED_AT + 9, saved=saved, leave=[] if is_last else ["run"], tell=load)
    assert checked(tmp_path) == ([], ["loss", "rows"])


def test_another_rate_that_was_set_by_hand_is_a_finding_whatever_the_log_was_told(tmp_path):
    def halve(run, parts):
        for group in parts["optimizer"].param_groups:
            group["lr"] = group["lr"] / 2
        run.event("lr_rebase", old=2e-2, new=1e-2)

    saved = train(tmp_path, to=SAVED_AT)
    train(tmp_path, to=SAVED_AT + 9, saved=saved, tell=halve)
    findings, _ = checked(tmp_path)
    assert [finding["kind"] for finding in findings] == ["lr"]


def test_the_rate_of_a_state_that_was_loaded_over_the_asked_one_is_looked_at_again(tmp_path):
    def load(run, parts):
        lower(parts)
        for name in ("optimizer", "scheduler"):
            parts[name].load_state_dict(saved[name])

    saved = train(tmp_path, to=SAVED_AT)
    train(tmp_path, to=SAVED_AT + 9, saved=saved, leave=["optimizer", "scheduler"], tell=load)
    assert checked(tmp_path) == ([], ["loss", "learning rate", "rows"])


@pytest.mark.parametrize(("lr", "is_by_hand"), [(5e-2, False), (None, True), (None, False)], ids=str)
def test_a_kit_hears_of_another_rate_too(tmp_path, said, lr, is_by_hand):
    # given
    def train_kit(*, first, to, load=lambda **parts: None):
        torch.manual_seed(0)
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
        kit = trimtab.LossKit(model, optimizer=optimizer)
        load(model=model, optimizer=optimizer, scheduler=scheduler, run=kit)
        x, y = data()
        for _ in range(first, to + 1):
            loss = ((model(x).squeeze(1) - y) ** 2).mean()
            kit.accumulate(loss).backward()
            kit.finish_window(model.parameters())
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        return dict(model=model, optimizer=optimizer, scheduler=scheduler, run=kit)

    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(12, **train_kit(first=1, to=12))

    def load(**parts):
        checkpoints.load(checkpoints.pick(), lr=lr, **parts)
        if is_by_hand:
            parts["optimizer"].param_groups[0]["lr"] = 5e-2

    said()
    # when
    train_kit(first=13, to=24, load=load)
    # then
    lines = [line for line in said() if not line.startswith("LR re-base: ")]
    if is_by_hand:
        assert ["the learning rate of step 13 is 0.05" in line for line in lines] == [True, False]
    else:
        what = "loss continues" if lr else "loss and learning rate continue"
        left_out = "learning rate not compared: another one was asked for; " if lr else ""
        assert lines == [f"Trimtab, resume: {what} what came before step 13; {left_out}{NO_LOG}."]


@pytest.mark.parametrize("lr", [None, 5e-3], ids=["the rate of the checkpoint", "another rate"])
def test_a_checkpointer_goes_on_with_the_run_and_says_so(tmp_path, said, lr):
    # given
    checkpoints = Checkpointer(tmp_path / "checkpoints")
    saved = train(tmp_path / "first", to=SAVED_AT)
    model, optimizer, scheduler = make()
    run = trimtab.Run(tmp_path / "first", model=model, optimizer=optimizer)
    for name, part in (("model", model), ("optimizer", optimizer), ("scheduler", scheduler), ("run", run)):
        part.load_state_dict(saved[name])
    checkpoints.save(SAVED_AT, model=model, optimizer=optimizer, scheduler=scheduler, run=run)
    # when

    def load(run, parts):
        checkpoints.load(checkpoints.pick(), lr=lr, run=run, **parts)

    train(tmp_path / "first", to=SAVED_AT + 9, saved=saved, leave=["model", "optimizer", "scheduler", "run"], tell=load)
    # then
    assert checked(tmp_path / "first") == ([], ["loss", *(["learning rate"] if lr is None else []), "rows"])


def test_a_resume_that_was_done_over_rightly_is_told_of_no_more(tmp_path):
    saved = train(tmp_path, to=SAVED_AT + 20)
    train(tmp_path, to=SAVED_AT + 10, saved=saved, leave=["place"])
    assert any("data order replayed" in notice for notice in trimtab.rewind(tmp_path).notices)
    train(tmp_path, to=SAVED_AT + 10, saved=saved)
    events = [event for event in trimtab.open_log(tmp_path).event_list() if event.kind == "resume_check"]
    assert [len(event.facts["findings"]) for event in events] == [1, 0]
    assert not any("data order replayed" in notice for notice in trimtab.rewind(tmp_path).notices)


def test_a_run_that_ends_at_once_is_judged_by_what_there_is(tmp_path):
    saved = train(tmp_path, to=SAVED_AT)
    train(tmp_path, to=SAVED_AT + 1, saved=saved, leave=["model"])
    findings, _ = checked(tmp_path)
    assert [finding["kind"] for finding in findings] == ["loss_rose"]


def test_a_log_that_is_damaged_costs_its_part_and_never_the_training(tmp_path, said):
    saved = train(tmp_path, to=SAVED_AT + 4)
    for file in (tmp_path / "trimtab").rglob("*"):
        if file.is_file() and file.name not in ("run.json", "segment.json"):
            file.write_bytes(file.read_bytes()[:40])
    train(tmp_path, to=SAVED_AT + 9, saved=saved)
    assert said() == [f"Trimtab, resume: loss and learning rate continue what came before step 101; {NO_LOG}."]


def test_switched_off_nothing_is_compared(tmp_path, said, monkeypatch):
    saved = train(tmp_path, to=SAVED_AT)
    monkeypatch.setenv("TRIMTAB", "off")
    train(tmp_path, to=SAVED_AT + 12, saved=saved, leave=["model", "place"])
    assert said() == []


# ----------------------------------------------------------------------------------------------------- a killed one


@pytest.mark.long
def test_a_run_that_was_killed_and_resumed_goes_on(tmp_path, said):
    # given a process that saves, goes on, and is killed
    program = tmp_path / "training.py"
    program.write_text(
        f"""
import os, signal, sys, importlib.util, torch
spec = importlib.util.spec_from_file_location("checks", {__file__!r})
it = importlib.util.module_from_spec(spec)
spec.loader.exec_module(it)
taken = it.trimtab.Run.step
def step(self, *args, **kwargs):
    outcome = taken(self, *args, **kwargs)
    if self._core.step == it.SAVED_AT + 8:
        assert self.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome
it.trimtab.Run.step = step
real, parts = it.copied, []
def keep(state):
    parts.append(real(state))
    if len(parts) == 4:
        torch.save(parts, {str(tmp_path / "saved.pt")!r})
    return parts[-1]
it.copied = keep
it.train({str(tmp_path / "out")!r}, to=120)
"""
    )
    died = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=240)
    assert died.returncode == -signal.SIGKILL, died.stderr
    parts = torch.load(tmp_path / "saved.pt", weights_only=True)
    saved = dict(zip(("model", "optimizer", "scheduler", "run"), parts, strict=True))
    saved |= dict(step=SAVED_AT, place=(SAVED_AT * BATCH // NUM_ROWS, SAVED_AT * BATCH % NUM_ROWS))
    # when
    train(tmp_path / "out", to=SAVED_AT + 12, saved=saved)
    # then
    assert checked(tmp_path / "out") == ([], ["loss", "learning rate", "rows"])
    assert len(said()) == 1


# --------------------------------------------------------------------------------------------------------- trainers


def trainer_of(out, **settings):
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, **sizes))
    source = torch.Generator().manual_seed(1)
    rows = [dict(input_ids=torch.randint(0, 64, (6,), generator=source).tolist()) for _ in range(24)]

    def collate(items):
        tokens = torch.tensor([item["input_ids"] for item in items])
        return dict(input_ids=tokens, labels=tokens)

    arguments = TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=2,
        num_train_epochs=3,
        save_steps=17,  # 12 steps an epoch: inside the second
        save_strategy="steps",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        learning_rate=1e-3,
        **settings,
    )
    return Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate)


@pytest.mark.parametrize(
    ("settings", "lr", "expected"),
    [(dict(), None, []), (dict(ignore_data_skip=True), None, ["rows_replayed"]), (dict(), 5e-4, [])],
    ids=["in order", "ignore_data_skip", "lr_on_resume"],
)
def test_a_trainer_is_judged_alike(tmp_path, said, settings, lr, expected):
    # given
    first = trainer_of(tmp_path)
    trimtab.attach(first)
    first.train()
    said()
    # when
    second = trainer_of(tmp_path, **settings)
    trimtab.attach(second, lr_on_resume=lr)
    second.train(resume_from_checkpoint=str(Path(tmp_path, "checkpoint-17")))
    # then
    findings, compared = checked(tmp_path)
    # Other rows than were due, near enough to the run's first steps, cost what they might without the weights too.
    loss = [] if settings else ["loss"]
    assert compared == [*loss, *(["learning rate"] if lr is None else []), "rows"]
    assert [finding["kind"] for finding in findings] == expected, findings
    assert [line for line in said() if "resume" in line] != []
