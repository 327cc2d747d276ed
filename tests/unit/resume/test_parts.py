"""What a resume cannot do without."""

from trimtab.resume.parts import ALWAYS, PARTS, in_order, missing_parts


def test_nothing_is_missing_where_every_part_has_a_file() -> None:
    assert missing_parts(dict.fromkeys((*PARTS, "later"), ("a",))) == ()


def test_what_every_run_has_is_missing_where_it_is_not_named() -> None:
    assert missing_parts({}) == ALWAYS


def test_what_this_run_has_is_missing_where_no_file_holds_it() -> None:
    assert missing_parts({**dict.fromkeys(ALWAYS, ("a",)), "later": (), "guard": ()}) == ("guard", "later")


def test_parts_are_told_in_one_order() -> None:
    assert in_order({"zebra", "rng", "apple", "model"}) == ("model", "rng", "apple", "zebra")
