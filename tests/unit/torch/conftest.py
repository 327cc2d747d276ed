"""What several tests of the torch layer need."""

import gc

import pytest


@pytest.fixture(scope="module")
def young_heap():
    """What pytest and torch have made before is not looked through at the end of every round trip."""
    gc.freeze()
    yield
    gc.unfreeze()
