"""The one place where text is made safe."""

from hypothesis import given
from hypothesis import strategies as st

from trimtab.text import plain, without_surrogates

any_text = st.text(st.characters(exclude_categories=[]))


@given(any_text)
def test_plain_text_is_printable_ascii(text):
    assert all(" " <= char <= "~" for char in plain(text))


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_printable_ascii_stays_as_it_is(text):
    assert plain(text) == text


@given(any_text)
def test_without_surrogates_every_text_can_be_encoded(text):
    without_surrogates(text).encode("utf-8")


def test_text_that_can_be_encoded_stays_as_it_is():
    assert without_surrogates("caf\u00e9 \U0001f600") == "caf\u00e9 \U0001f600"
