"""What each rank does in `test_router_two_nodes.py`: it is the only process of a node, with a disk of its own."""

import importlib.util
import os
import sys
from pathlib import Path

import torch.distributed as dist

_spec = importlib.util.spec_from_file_location("router_of_a_rank", Path(__file__).with_name("router_of_a_rank.py"))
ranks = importlib.util.module_from_spec(_spec)
sys.modules["router_of_a_rank"] = ranks
_spec.loader.exec_module(ranks)

# What torchrun would have set on two nodes of one process each.
os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def train(*, out, **settings):
    """As on one node, into a folder of this rank's own."""
    return ranks.train(out=f"{out}/{dist.get_rank()}", more={"save_on_each_node": True}, **settings)
