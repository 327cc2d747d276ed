"""Loops of two ranks that do not come to their end, each in a way of its own; for `test_prove_pair.py`."""

import os
import sys
import time

import torch
import torch.distributed as dist
from tests.proof import good


def sound(guard):
    return good.run_loop(guard)


def dies(guard):
    if guard is not None and dist.get_rank() == 1:
        sys.stderr.write("about to die\n")
        os._exit(7)
    return good.run_loop(guard)


def raises(guard):
    if guard is not None and dist.get_rank() == 1:
        raise FileNotFoundError("no rows.jsonl\n of rank 1")
    return good.run_loop(guard)


def raises_alike(guard):
    if guard is not None:
        raise FileNotFoundError("no rows.jsonl. " + "word " * 200)
    return good.run_loop(guard)


def leaves_group(guard):
    if guard is not None:
        dist.destroy_process_group()
    return good.run_loop(guard)


def reduces_otherwise(guard):
    if guard is not None:
        dist.all_reduce(torch.zeros(1 + 1000 * dist.get_rank()))
    return good.run_loop(guard)


def hangs_alone(guard):
    while guard is not None:
        time.sleep(0.1)
    return good.run_loop(guard)


def hangs(guard):
    if guard is not None and dist.get_rank() == 1:
        dist.all_reduce(torch.zeros(1))
    return good.run_loop(guard)


def hangs_once_it_skips(guard):
    loop = good.run_loop(guard)
    train = loop.train

    def trained(windows):
        losses = train(windows)
        if loop.num_skipped() and dist.get_rank() == 1:
            dist.all_reduce(torch.zeros(1))
        return losses

    loop.train = trained
    return loop
