"""A causal language model small enough for a minute on one CPU core, started from random weights.

In goes a vocabulary, out comes a Llama of 1.3 million parameters; one row of its input embedding can be left
uninitialised, which is the fault that the demo plants.
"""

from __future__ import annotations

from typing import Final

import torch
from transformers import LlamaConfig, LlamaForCausalLM

MAX_POSITIONS: Final = 1400
"""Room for the longest planted row: 1,200 tokens of garbage and its question."""


def build_model(*, vocab_size: int, bos: int, eos: int, pad: int, seed: int) -> LlamaForCausalLM:
    """Builds the model; the same seed gives the same weights.

    Args:
        vocab_size: Rows of the embedding.
        bos: Token id.
        eos: Token id.
        pad: Token id.
        seed: Seeds torch's global generator, which transformers draws from.

    Returns:
        A Llama with untied embeddings: tied, one row of NaN would also be a row of the output layer and make the loss
        of every other row NaN too.
    """
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=MAX_POSITIONS,
            # Four times the usual start: with so few steps a model started at 0.02 is still at 5.3 half-way.
            initializer_range=0.08,
            tie_word_embeddings=False,
            bos_token_id=bos,
            eos_token_id=eos,
            pad_token_id=pad,
        )
    )


def leave_uninitialised(model: LlamaForCausalLM, token: int) -> None:
    """Gives the token's input embedding what memory that nobody wrote to may hold: NaN.

    `resize_token_embeddings` fills new rows with finite numbers; a loader that allocates the larger matrix with
    `torch.empty` and copies the checkpoint's rows into it does not.

    Args:
        model: Changed in place.
        token: Token id.
    """
    with torch.no_grad():
        model.model.embed_tokens.weight[token] = float("nan")
