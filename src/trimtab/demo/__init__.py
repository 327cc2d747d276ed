"""The main job on real text, in a minute, on a laptop CPU: train, poison a few rows, let `rewind` name them.

`rows` reads question and answer rows, `tokenizer` and `model` make what is trained, `plant` says which rows are
poisoned at which step, `train` wires the real Hugging Face `Trainer`, `folder` owns what is left on disk, `main` tells
the story. Only `tokenizer`, `model` and `train` import anything beyond the standard library and Trimtab.
"""
