"""Values that both halves share."""

import math

from trimtab.values import STEP_REASONS, VERDICT_REASONS, json_number


def test_numbers_that_json_lacks_are_told_apart_as_strings():
    assert [json_number(x) for x in (math.nan, math.inf, -math.inf, None, 1.5)] == ["nan", "inf", "-inf", None, 1.5]


def test_reasons_keep_the_places_that_logs_store():
    # a log holds the place, not the word
    assert VERDICT_REASONS == (
        "off",
        "no_tokens",
        "nonfinite",
        "warmup",
        "baseline_not_positive",
        "rebaselined",
        "spike",
        "normal",
    )
    assert STEP_REASONS == ("stepped", "all_skipped", "no_tokens", "nonfinite_norm", "scaler_overflow", "dropped")
