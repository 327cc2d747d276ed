"""The table of names that `weights_only=True` loads is torch's own."""

from torch import _weights_only_unpickler

from trimtab.resume.foreign.safe_names import SAFE_NAMES


def test_no_name_is_safe_here_that_torch_refuses():
    # torch's list grows: an older torch may lack some of ours, and this test runs with the newest
    assert set(_weights_only_unpickler._get_allowed_globals()) >= SAFE_NAMES


def test_no_name_that_torch_loads_is_refused_here():
    assert set(_weights_only_unpickler._get_allowed_globals()) <= SAFE_NAMES
