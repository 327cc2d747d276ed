"""The public names of `trimtab` are what `__all__` lists, no more and no less."""

import types

import trimtab


def test_every_public_name_is_there_when_used():
    missing = [name for name in trimtab.__all__ if not hasattr(trimtab, name)]
    assert missing == []


def test_the_namespace_holds_nothing_public_but_what_all_lists():
    # given: rooms that somebody imported become attributes of the package; they are no names of ours
    def public(names):
        return {
            name
            for name in names
            if not name.startswith("_") and not isinstance(getattr(trimtab, name), types.ModuleType)
        }

    # then
    assert public(dir(trimtab)) == public(trimtab.__all__)
    assert len(trimtab.__all__) == len(set(trimtab.__all__))


def test_an_unknown_name_is_an_attribute_error_like_anywhere_else():
    assert not hasattr(trimtab, "no_such_name")
