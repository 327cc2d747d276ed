"""The bounds of the rules of routers at which something is said, is said in other words, or is over."""

import pytest

from trimtab.rules.router import RouterRules
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import LayerFigures, RouterReport


def of_z(step: int, z: float) -> RouterReport:
    """A report that holds one z for the model, as a log without layers does."""
    return RouterReport(step=step, first_step=step - 49, z=z, z_scale="sum")


def course(*zs: float) -> tuple[list[list[str]], list[str]]:
    """What stands after each report, and the texts that were said of the band, 50 steps apart and after the warm-up."""
    rules, standing, texts = RouterRules(WatchConfig()), [], []
    for place, z in enumerate(zs):
        texts += [one.text for one in rules.judge(of_z(2_000 + 50 * place, z)) if one.kind == "z_band"]
        standing.append([one.finding.kind for one in rules.standing()])
    return standing, texts


def test_a_hot_z_is_back_at_four_fifths_of_its_bound() -> None:
    standing, _ = course(130.0, 140.0, 150.0, 170.0, 130.0, 121.0, 120.0)

    assert ["z_band" in kinds for kinds in standing] == [False, False, False, True, True, True, False]


@pytest.mark.parametrize(
    ("zs", "is_said"),
    [((160.0, 168.5, 177.0, 186.0), False), ((160.0, 171.0, 183.0, 196.0), True)],
    ids=["by less", "by a fifth"],
)
def test_a_z_above_its_band_is_said_where_it_rises_by_a_fifth_over_four_reports(
    zs: tuple[float, ...], is_said: bool
) -> None:
    _, texts = course(*zs)

    assert bool(texts) is is_said


@pytest.mark.parametrize(
    ("zs", "words"),
    [((26.0, 0.6), "and keeps falling, from 26 at step 2000"), ((1.05, 0.9), "after 1.05 at step 2000")],
    ids=["falls", "wanders"],
)
def test_a_low_z_keeps_falling_only_where_it_does(zs: tuple[float, ...], words: str) -> None:
    _, [text] = course(*zs)

    assert words in text


@pytest.mark.parametrize(
    ("ratio", "found"), [(10.0, ["scale_changed"]), (10.05, ["scale_changed"]), (10.5, [])], ids=str
)
def test_figures_that_leap_by_a_power_of_ten_to_the_hundredth_are_of_another_scale(
    ratio: float, found: list[str]
) -> None:
    rules = RouterRules(WatchConfig())
    rules.judge(of_z(2_000, 4.0))

    said = [one.kind for one in rules.judge(of_z(2_050, 4.0 * ratio))]

    assert [kind for kind in said if kind == "scale_changed"] == found


@pytest.mark.parametrize(
    ("num_tokens", "found"),
    [(200, ["counts_mismatch"]), (300, ["counts_mismatch"]), (150, []), (90, [])],
    ids=["twice", "three times", "half as many more", "fewer"],
)
def test_tokens_at_a_router_that_are_no_multiple_of_the_models_are_no_mismatch(
    num_tokens: int, found: list[str]
) -> None:
    share = num_tokens // 2
    layer = LayerFigures(name="gate", num_experts=2, top_k=1, num_tokens=num_tokens, counts=(share, num_tokens - share))

    said = RouterRules(WatchConfig()).judge(
        RouterReport(step=2_050, first_step=2_001, layers=(layer,), expected_tokens=100)
    )

    assert [one.kind for one in said] == found
