"""Draws findings: each module takes values and gives text; none of them reads a file or computes."""
