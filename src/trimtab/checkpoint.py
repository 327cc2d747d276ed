"""Checkpoints: save them whole, pick the right one, go on from it with the learning rate that was asked for.

A facade of `trimtab.torch` and `trimtab.resume`; importing it loads torch.
"""
