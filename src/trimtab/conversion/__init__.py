"""From one format to another: a log of ours becomes a `rewind.jsonl`, and a log of another tool a run folder.

A room of its own, because it reads as the offline half does and writes as the live half does.
"""
