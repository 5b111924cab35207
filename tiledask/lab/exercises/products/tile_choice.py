"""Choose a kernel's tile: under a limit of shared memory, or anew on a device it was not tuned for.

answer = ((tm, tn, tk), stages)  ->  shared memory, bytes, bound of `td.tile.predict`  |  targets
                                     every tile of the task predicted: the best         |
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from tiledask.errors import ConfigError
from tiledask.lab import plots
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.style import BLUE, GREY, PALE, SKY, canvas, end_words, styled
from tiledask.plan.units import format_bytes
from tiledask.tile import Config, Tile, config_of, order, predict
from tiledask.tile.choice.residency import refusal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["retuned", "tile_of", "tile_within", "tiles_of"]

KERNEL = "mma_multistage"
SIDES, STEPS, STAGES = (64, 128, 256), (16, 32, 64), (2, 3, 4, 5, 6)
"""Rows or columns of C, elements of k, and stages that an answer may have."""
L2 = "L2 -> shared memory"
Size = tuple[int, int, int]
"""(m, n, k) of the product."""


def tile_of(answer: Any) -> Config:
    """The configuration of the bf16 kernel mma_multistage for ((tm, tn, tk), stages).

    >>> print(tile_of(((128, 64, 32), 3)))
    mma_multistage 128x64x32, 3 stages, group 8
    """
    legal = isinstance(answer, tuple | list) and len(answer) == 2
    tile, stages = answer if legal else (None, None)
    if not isinstance(tile, tuple | list) or (tuple(tile), stages) not in _space():
        raise ConfigError(
            f"an answer is ((tm, tn, tk), stages), for instance ((64, 128, 32), 3): tm and tn one "
            f"of {_or(SIDES)}, tk one of {_or(STEPS)}, stages one of {_or(STAGES)}; got {answer!r}"
        )
    return _space()[tuple(tile), stages]


@lru_cache(maxsize=1)
def _space() -> dict[tuple[Tile, int], Config]:
    """Every answer there is: tiles of the kernel, with any step and number of stages."""
    return {
        (tile, stages): replace(config_of(KERNEL, "bfloat16", tile), stages=stages)
        for tile, stages in product(product(SIDES, SIDES, STEPS), STAGES)
    }


def tiles_of(device: str, limit: int | None = None, stages: int = 2) -> list[Config]:
    """Every answer that ``device`` can run, in ``limit`` bytes a block and ``stages`` or more."""
    return [
        config
        for config in _space().values()
        if config.stages >= stages
        and (limit is None or config.shared_bytes <= limit)
        and not refusal(config, device)
    ]


def tile_within(
    size: Size, device: str = "H200", *, limit: int, stages: int, intensity: float, steps: int
) -> Exercise:
    """Choose tile and stages of the bf16 kernel mma_multistage, for a product on ``device``.

    ``limit``: bytes of shared memory of a block. ``stages``: at least. ``intensity``: FLOP per
    byte brought into shared memory, at least, and so bytes at most. ``steps``: along k, at most.
    The bound of `td.tile.predict` must be the best of all tiles that keep to all this.
    """
    m, n, k = size
    most = 2 * m * n * k / intensity
    fitting = [
        p
        for p in order(*size, tiles_of(device, limit, stages), device)
        if p.levels[L2].loaded <= most and -(-k // p.config.block[2]) <= steps
    ]
    if not fitting:
        raise ConfigError(
            f"no tile keeps to {limit:,} bytes, {stages} stages, {intensity:g} FLOP per byte and "
            f"{steps} steps on {device}; raise the limit of shared memory"
        )
    least = min(p.levels[L2].loaded for p in fitting)

    def measure(answer: Any) -> list[Target]:
        config = tile_of(answer)
        if config.stages < stages:
            raise ConfigError(
                f"{config.stages} stages keep copies {config.stages - 1} steps ahead; the task "
                f"has {stages} stages or more"
            )
        found, best = predict(*size, config, device), round(1e6 * fitting[0].seconds, 2)
        return [
            Target("kB of shared memory per block", limit / 1e3, config.shared_bytes / 1e3, None),
            Target("GB into shared memory", most / 1e9, found.levels[L2].loaded / 1e9, least / 1e9),
            Target("steps along k", steps, -(-k // config.block[2]), None),
            Target("microseconds at least", best, round(1e6 * found.seconds, 2), best),
        ]

    def figure(answer: Any) -> "Figure":
        config = tile_of(((64, 64, 16), stages) if answer is None else answer)
        note = " (not attempted: the smallest tile)" if answer is None else ""
        title = (
            f"{config} on {device}{note}\n{m} x {n} x {k}; "
            f"{format_bytes(config.shared_bytes)} of shared memory, {format_bytes(limit)} allowed"
        )
        return plots.tile_levels(predict(*size, config, device).levels, title=title)

    return Exercise(name="a tile within shared memory", measured=measure, drawn=figure)


def retuned(
    size: Size, carried: tuple[Tile, int], devices: Sequence[str], within: float = 0.01
) -> Exercise:
    """Choose tile and stages on each of ``devices`` for a kernel that comes with ``carried``.

    The answer is a dict, device -> ((tm, tn, tk), stages). At most ``within`` of the best bound
    there, by `td.tile.order` over every tile of the task, may be given away.
    """
    best = {device: order(*size, tiles_of(device), device)[0] for device in devices}

    def measure(answer: Any) -> list[Target]:
        chosen = _chosen(answer, devices)
        return [
            Target(
                f"% given away on {device}",
                100 * within,
                round(100 * (1 - best[device].seconds / predict(*size, config, device).seconds), 2),
                0,
            )
            for device, config in chosen.items()
        ]

    def figure(answer: Any) -> "Figure":
        chosen = None if answer is None else _chosen(answer, devices)
        return _shares(size, tile_of(carried), chosen, best)

    return Exercise(name="carried to another GPU", measured=measure, drawn=figure)


def _chosen(answer: Any, devices: Sequence[str]) -> dict[str, Config]:
    if not isinstance(answer, Mapping) or set(answer) != set(devices):
        raise ConfigError(
            f"an answer is a dict with a tile and stages for each of {', '.join(devices)}, for "
            f"instance {{{devices[0]!r}: ((64, 128, 32), 3), ...}}; got {answer!r}"
        )
    return {device: tile_of(answer[device]) for device in devices}


@styled
def _shares(
    size: Size, carried: Config, chosen: Mapping[str, Config] | None, best: Mapping
) -> "Figure":
    series = {f"as it came: {_short(carried)}": (dict.fromkeys(best, carried), SKY)}
    if chosen:
        series["yours"] = (chosen, BLUE)
    figure = canvas(1.5 + 0.4 * len(series) * len(best), "Share of the best bound on each device")
    axes, y, ticks = figure.subplots(), 0.0, {}
    for device, prediction in best.items():
        ticks[device] = y + 0.5 * (len(series) - 1)
        for config, colour in ((named[device], c) for named, c in series.values()):
            why = refusal(config, device)
            share = 0 if why else prediction.seconds / predict(*size, config, device).seconds
            axes.barh(y, share, 0.8, color=colour, gid=f"{device} {_short(config)}")
            words = f"does not start: {why.split(':')[0]}" if why else f"{share:.1%}"
            end_words(axes, share, y, f"{_short(config)}: {words}")
            y += 1
        y += 0.6
    for name, (_, colour) in series.items():
        axes.barh(0, 0, color=colour, label=name)
    axes.axvline(1, color=GREY, linestyle="--", linewidth=0.8)
    axes.set_yticks(list(ticks.values()), list(ticks))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "the best"])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("bound of the tile over that of the best tile there")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=2)
    return figure


def _short(config: Config) -> str:
    return f"{'x'.join(map(str, config.block))}, {config.stages} stages"


def _or(values: Sequence[int]) -> str:
    return f"{', '.join(map(str, values[:-1]))} or {values[-1]}"
