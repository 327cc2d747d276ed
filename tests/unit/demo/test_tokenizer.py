"""The tokenizer: the same in every training, and only answers are supervised."""

from __future__ import annotations

from trimtab.demo.poison import GARBAGE_TOKENS, REPEATED_TOKENS, TOOL, max_answer_tokens, poison_row
from trimtab.demo.rows import rows_from_sources
from trimtab.demo.tokenizer import BOS, EOS, PAD, VOCAB_SIZE, make_item, token_id, train_tokenizer

ROWS = rows_from_sources(limit=1200)


def test_two_trainings_on_the_same_rows_give_the_same_tokenizer() -> None:
    assert train_tokenizer(ROWS).to_str() == train_tokenizer(ROWS).to_str()


def test_the_new_token_comes_after_all_that_the_rows_taught_and_is_not_the_padding() -> None:
    tokenizer = train_tokenizer(ROWS)

    assert tokenizer.get_vocab_size() == VOCAB_SIZE + 1
    assert token_id(tokenizer, TOOL) == VOCAB_SIZE
    assert len({token_id(tokenizer, token) for token in (BOS, EOS, PAD, TOOL)}) == 4


def test_an_item_supervises_the_answer_and_the_end_and_decodes_to_the_row() -> None:
    tokenizer = train_tokenizer(ROWS)
    row = ROWS[0]

    item = make_item(tokenizer, row)

    supervised = [label for label in item["labels"] if label != -100]
    num_question = len(item["labels"]) - len(supervised)
    assert item["input_ids"][num_question:] == supervised
    assert supervised[-1] == token_id(tokenizer, EOS)
    assert item["input_ids"][0] == token_id(tokenizer, BOS)
    assert tokenizer.decode(supervised[:-1]) == row.answer
    assert tokenizer.decode(item["input_ids"][1:num_question]) == f"{row.question}\n"
    assert item["text"] == f"{row.question}\n{row.answer}"


def test_poisoned_rows_have_the_sizes_that_were_measured() -> None:
    tokenizer = train_tokenizer(ROWS)
    lengths = {}
    for kind in ("garbage", "repeated", "nonfinite"):
        item = make_item(tokenizer, poison_row(ROWS[0], kind, seed=0), max_answer_tokens=max_answer_tokens(kind))
        lengths[kind] = sum(label != -100 for label in item["labels"]) - 1
        assert item["input_ids"].count(token_id(tokenizer, TOOL)) == (kind == "nonfinite")

    assert lengths["garbage"] == GARBAGE_TOKENS
    assert lengths["repeated"] == REPEATED_TOKENS
