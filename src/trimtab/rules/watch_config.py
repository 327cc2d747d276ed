"""`WatchConfig`: when a watch looks, and at what it warns; each default with the run or paper it comes from.

Enters: nothing. Leaves: settings that a live watch and the analysis of a log judge by. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, Final, Literal, get_args

from trimtab.errors import UsageError
from trimtab.rules.scalar import spelled, whole_number
from trimtab.rules.state import is_finite

ZBand = Literal["layer", "sum"]

_LEAST: Final = {"router_warmup_steps": 0, "host_memory_floor_bytes": 0}
"""The smallest whole number of a setting, where it is not 1. A real number is finite and above 0."""

_BANDS: Final = (("z_layer_low", "z_layer_high"), ("z_sum_low", "z_sum_high"))
"""Settings of which the first is below the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """Settings of a watch.

    Attributes:
        report_every: Optimizer steps between two reports of routers and vitals: one transfer each.
        z_band_of: Which router z is held against its band: that of each layer, or the sum over all layers. Reports that
            hold one z for the whole model are judged on the scale that they state.
        z_layer_low: Below it the z of a layer, or a mean over layers, has left its band.
        z_layer_high: Above it such a z is hot, which is said only while it rises.
        z_sum_low: Likewise for a sum over layers.
        z_sum_high: Likewise.
        z_growth: A z that rises by this factor over four reports in a row (or four groups of 4, 16, 64 or 256) grows.
        router_warmup_steps: Until then z may grow fast to three times what zero logits give, (ln E)^2; slowly always.
            Until then too, a load on few experts, or half of them dead, marks a checkpoint only once three reports have
            shown it; at once where two had shown the layer well.
        load_balance_rising_above: A load balance (1 at balance) that rises above it is warned of.
        load_balance_high: Above it a load balance is warned of whether it rises or not.
        collapse_load: Share of the possible load entropy (0: all tokens on the same experts, 1: balanced) under which a
            layer has collapsed.
        dead_chance: An expert without a token is dead where chance explains it with a smaller probability.
        eval_patience: Evaluations in a row, each worse than the one before, that are warned of.
        eval_rise: Part of the loss by which such a streak must have risen to be a warning and mark checkpoints; less is
            a notice, and so is what does not stand out from the rises that this evaluation has anyway.
        grad_norm_factor: A gradient norm that is out of line is warned of from this multiple of its usual size on;
            below, it is a notice.
        clip_fraction_rise: By how much the share of clipped steps must rise, of 200 steps over the 1,000 before them.
        loss_scale_halvings: Halvings of the loss scale, without a doubling between them, that are warned of.
        loss_scale_floor: At this loss scale or below it they are warned of however far apart, and from the first step.
        throughput_fraction: Part of the usual tokens a second under which a step is slow.
        throughput_patience: Slow steps in a row that are warned of.
        host_memory_floor_bytes: Memory of the host that should stay available, also after a save has taken its part.
        device_memory_budget_bytes: Memory of the device that a run should stay below; None: `device_memory_share`.
        device_memory_share: Part of the device's memory that a run should stay below where no budget is named.
        update_ratio_factor: A weight that one step moves this many times as far as usual is warned of.
        attention_logit_limit: Above it a largest attention logit that grows is warned of.
    """

    # 50: a collapse takes hundreds of steps (295 to 0.08 in 500 in the run the rules were made for), and a report of
    # 14 layers is one transfer of some kilobytes.
    report_every: int = 50

    # "layer": two layers that fail in opposite ways pool to a figure that looks healthy.
    z_band_of: ZBand = "layer"
    # A 14-layer, 48-expert run died while its z fell 295.2, 26.2, 0.082, 0.028 and held at 95 to 196; nobody knows
    # whether that column is a sum over layers or their mean. On the sum the band is 1 to 150, which the run gave.
    z_sum_low: float = 1.0
    z_sum_high: float = 150.0
    # 0.3 tells the dead figures from the living ones in either reading (mean: 0.082 from 26.2; sum over 14: 0.006 from
    # 1.87), and is below what zero logits give even over 2 experts, (ln 2)^2 = 0.48.
    z_layer_low: float = 0.3
    # Layers of 15.2 to 58.5 held in that run, and zero logits over 256 experts give 30.7: only the other reading's 150
    # is surely out of line.
    z_layer_high: float = 150.0
    # 14, 16, 19, 24 (x 1.7) is a run without z-loss, 2.4, 2.6, 2.5, 2.7 (x 1.1) the same with 1e-3.
    z_growth: float = 1.5
    # Logits of standard deviation s have lse = ln E + s^2 / 2, so that a router that learns to choose (s up to 1.7 of 8
    # experts, 2.5 of 64) at most triples (ln E)^2. It does so while the learning rate warms up and soon after.
    router_warmup_steps: int = 1_000
    # 2.1, on the way to 10.8, was the first symptom of the 14-layer run; a released layer of 8 experts with loads from
    # 548 to 781 has 1.01.
    load_balance_rising_above: float = 2.0
    load_balance_high: float = 4.0
    # 0.3 is 3 of 8 experts at top 2 (their effective number), or 5 of 48. The most skewed of three published layers of
    # 8 experts has 0.997.
    collapse_load: float = 0.3
    # 1e-6: 14 layers x 10,000 reports are 140,000 looks. 120 tokens over 8 experts are enough for it, 610 over 256 at
    # top 8; 8 tokens over 64 experts prove nothing.
    dead_chance: float = 1e-6

    # 3: 7.6066, 7.6406, 8.2422, 8.2717 is a run whose router had collapsed, while one that held has 7.6486, 7.7053 and
    # no longer streak.
    eval_patience: int = 3
    # Four values of a level run ascend by chance once in 24. The streak above rose by 8.7 %; from evaluation to
    # evaluation the run that held moved by 0.3 to 1.1 %.
    eval_rise: float = 0.005
    # The four norms that are out of line in 19,560 steps of a healthy GPT-2 run are 3.1 to 7.5 times the median; the
    # first ones before the loss broke are 16.8 (a 176B run) and 20.3 (a 104B run) times.
    grad_norm_factor: float = 10.0
    # From ordinary to nearly always: a healthy GPT-2 run goes from 24 % of its first 1,000 steps down to 0.1 %.
    clip_fraction_rise: float = 0.5
    # 64, 32, 16, 8 is three. Scalers that double every 1,000 or 2,000 steps halve once after it, and by an outlier in
    # the data once more.
    loss_scale_halvings: int = 3
    # Runs in float16 settle between 2^10 and 2^16; at 16 gradients use a fifth of that range, and a scaler on its way
    # down to 1 has only overflows left.
    loss_scale_floor: float = 16.0
    # 1,322 tokens a second fell to 170-227, 13 to 17 %. Another job on the machine, or longer batches, cost half.
    throughput_fraction: float = 1 / 3
    # A pause for an evaluation or a save is in one step, a compilation in a few.
    throughput_patience: int = 10
    # 5 GB, of which a save of 1.7 GB and a data loader's next shard still fit.
    host_memory_floor_bytes: int = 5_000_000_000
    device_memory_budget_bytes: int | None = None
    # 0.95: what else is on a device (the context, a communication library, fragments) takes some percent of it.
    device_memory_share: float = 0.95
    # Ten, as for norms; over the learning rate Adam's steps are of nearly one size.
    update_ratio_factor: float = 10.0
    # 100 is the threshold of QK-Clip (Kimi K2, arXiv 2507.20534).
    attention_logit_limit: float = 100.0

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check(setting, getattr(self, setting.name))
        for low, high in _BANDS:
            if getattr(self, low) >= getattr(self, high):
                raise UsageError(
                    f"{low}={getattr(self, low)} is not below {high}={getattr(self, high)}: no router would be inside. "
                    f"Use a {low} below it."
                )

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> tuple[WatchConfig, tuple[str, ...]]:
        """The settings that a log names; raises nothing.

        Args:
            facts: Of the event `watch`. Names that no setting has are of another version, and are passed over.

        Returns:
            The settings, and the names of those that no watch can have had: the default stands in their place.
        """
        right: dict[str, Any] = {}
        for setting in fields(cls):
            if setting.name in facts:
                try:
                    _check(setting, facts[setting.name])
                except UsageError:
                    continue
                right[setting.name] = facts[setting.name]
        usual = {setting.name: setting.default for setting in fields(cls)}
        for band in _BANDS:
            low, high = (right.get(name, usual[name]) for name in band)
            if low >= high:
                right = {name: value for name, value in right.items() if name not in band}
        return cls(**right), tuple(name for name in usual if name in facts and name not in right)


def _check(setting: Field[Any], value: Any) -> None:
    """Refuses what is no value of a setting; `UsageError` says what would be one."""
    if setting.type == "ZBand":
        if value not in get_args(ZBand):
            raise UsageError(f'{setting.name} is {spelled(value)}: expected "layer" or "sum".')
    elif setting.type == "float":
        if not (is_finite(value) and value > 0):
            raise UsageError(f"{setting.name} is {spelled(value)}: expected a finite number above 0.")
    elif value is not None or setting.type != "int | None":
        least = _LEAST.get(setting.name, 1)
        whole_number(value, name=setting.name, least=least, expected=f"a whole number of {least} or more.")
