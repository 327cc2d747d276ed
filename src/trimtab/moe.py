"""Mixture of experts: the terms of a router's loss as they are defined, and a watch over routers while they train.

A facade of `trimtab.torch`; importing it loads torch.
"""
