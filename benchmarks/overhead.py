"""What recording costs a training on the CPU: the same step with and without Trimtab, turn by turn.

    python benchmarks/overhead.py [--pairs N] [--vocabulary N] [--steps N] [--guard] [--json FILE]

Two hosts, each a Llama of one small layer, 8 rows of 128 tokens a micro-batch, one thread: a Hugging Face `Trainer`
(plain, attached) and a loop of one's own (plain, `Run`). A pair is one plain and one recorded stretch of steps, in
turns of either order; the ratio of their CPU seconds is given with a 95 % interval over the pairs (mean of the log
ratios, normal). The process's CPU time counts every thread, the recorder's among them, and no other process.

The ratio drowns in the noise of a busy machine; the share does not. It is the CPU time inside Trimtab's own code over
that of the recorded stretch, by clocks around what Trimtab adds to a step: its hooks less the host's own work inside
them, the token losses and row sums, and the whole of the writer thread.

Must: share below 1 % at vocabulary 32,000.
"""

import argparse
import contextlib
import json
import logging
import math
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRIMTAB_HOME"] = tempfile.mkdtemp()

import torch
import torch.nn.functional as F
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import trimtab
import trimtab.integrations.hf
import trimtab.torch.run
from trimtab import GuardConfig, Run

ROWS, TOKENS = 8, 128
