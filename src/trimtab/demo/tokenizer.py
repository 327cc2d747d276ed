"""A byte-level BPE tokenizer trained on the spot, and rows turned into supervised training items.

In go rows, out come items of token ids in which only the answer is supervised. The same rows give the same tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from trimtab.demo.poison import TOOL
from trimtab.demo.rows import Row

VOCAB_SIZE: Final = 1024
"""Small, so that a model started from nothing is at a loss of 4.3 after half a minute, well below garbage at 13."""
BOS: Final = "<bos>"
EOS: Final = "<eos>"
PAD: Final = "<pad>"
_IGNORED: Final = -100
"""The label that PyTorch's cross-entropy leaves out."""


class Item(TypedDict):
    """One training item, unpadded.

    Attributes:
        text: The row as a person reads it; the trainer does not.
        input_ids: Its token ids.
        labels: Parallel to them; -100 where nothing is supervised.
    """

    text: str
    input_ids: list[int]
    labels: list[int]


def train_tokenizer(rows: Sequence[Row]) -> Tokenizer:
    """Trains the tokenizer on clean rows, then adds the token that no checkpoint has seen.

    Args:
        rows: Clean rows.

    Returns:
        A tokenizer of at most `VOCAB_SIZE` entries and `TOOL`.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((f"{row.question}\n{row.answer}" for row in rows), trainer)
    tokenizer.add_tokens([TOOL])
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Id of a token that the tokenizer was given by name."""
    found = tokenizer.token_to_id(token)
    assert found is not None, f"{token} was added when the tokenizer was trained"
    return found


def make_item(tokenizer: Tokenizer, row: Row, *, max_answer_tokens: int | None = None) -> Item:
    """One row as token ids: `<bos> question newline answer <eos>`, the answer and `<eos>` supervised."""
    question = [token_id(tokenizer, BOS), *tokenizer.encode(f"{row.question}\n").ids]
    answer = [*tokenizer.encode(row.answer).ids[:max_answer_tokens], token_id(tokenizer, EOS)]
    return {
        "text": f"{row.question}\n{tokenizer.decode(answer)}",
        "input_ids": question + answer,
        "labels": [_IGNORED] * len(question) + answer,
    }


def make_items(tokenizer: Tokenizer, rows: Sequence[Row]) -> list[Item]:
    """All rows as items; a plain list, which the trainer takes as a dataset."""
    return [make_item(tokenizer, row) for row in rows]
