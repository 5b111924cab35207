"""Choose a kernel's tile: under a limit of shared memory, or anew on a device it was not tuned for.

answer = ((tm, tn, tk), stages)  ->  shared memory, bytes, bound of `td.tile.predict`  |  targets
                                     every tile of the task predicted: the best         |
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from tiledask.errors import ConfigError, RuleError
from tiledask.lab import plots
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.style import BLUE, GREY, RED, SKY, canvas, styled
from tiledask.plan.inputs.hardware import load_device
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole
from tiledask.tile import Config, Tile, config_of, order, predict
from tiledask.tile.choice.residency import refusal

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
    shaped = isinstance(tile, tuple | list) and all(map(is_whole, (*tile, stages)))
    if not shaped or (tuple(tile), stages) not in _space():
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

    def measure(config: Config) -> list[Target]:
        if config.stages < stages:
            raise RuleError(
                f"{config.stages} stages keep copies {config.stages - 1} steps ahead; the task "
                f"has {stages} stages or more"
            )
        found, best = predict(*size, config, device), round(1e6 * fitting[0].seconds, 2)
        (tm, tn, tk), each = config.block, config.shared_bytes / config.stages / 1e3
        stage = f"a stage of ({tm} + {tn}) x {tk} numbers takes {each:.4g}, {config.stages} of them"
        reuse = f"a byte brings {2 * m * n * k / found.levels[L2].loaded:.3g} FLOP in {tm} x {tn}"
        return [
            Target(
                "kB of shared memory per block",
                limit / 1e3,
                config.shared_bytes / 1e3,
                None,
                where=stage,
            ),
            Target(
                "GB into shared memory",
                most / 1e9,
                found.levels[L2].loaded / 1e9,
                least / 1e9,
                where=f"{reuse}, {intensity:g} are asked",
            ),
            Target("steps along k", steps, -(-k // tk), None, where=f"{k} / {tk} steps"),
            Target(
                "microseconds at least",
                best,
                round(1e6 * found.seconds, 2),
                best,
                where=f"bound by {found.binding}",
            ),
        ]

    def figure(answer: Any) -> draw.Figure:
        config = answer or tile_of(((64, 64, 16), stages))
        note = " (not attempted: the smallest tile)" if answer is None else ""
        title = (
            f"{config} on {device}{note}\n{m} x {n} x {k}; "
            f"{format_bytes(config.shared_bytes)} of shared memory, {format_bytes(limit)} allowed"
        )
        levels = predict(*size, config, device).levels
        drawn = plots.tile_levels(levels, title=title)
        if answer is not None and (config.shared_bytes > limit or levels[L2].loaded > most):
            (panel,) = (axes for axes in drawn.axes if axes.get_title().startswith(L2))
            (drawn_tile,) = (patch for patch in panel.patches if patch.get_gid() == "tile")
            draw.mark_box(panel, drawn_tile.get_bbox().bounds, L2)
            panel.title.set_color(RED)
        return drawn

    return Exercise(
        name="a tile within shared memory",
        question=(
            f"The kernel {KERNEL} in bf16, {m} x {n} x {k} on an {device}. A block may have "
            f"{limit / 1e3:g} kB of shared memory; keep {stages} stages or more. Bring at least "
            f"{intensity:g} FLOP's worth of every byte into shared memory, that is "
            f"{most / 1e9:.4g} GB at most, in at most {steps} steps along k. And be as fast as any "
            f"such tile can be."
        ),
        form=(
            f"((tm, tn, tk), stages), for example ((64, 64, 16), {stages}), with sides of "
            f"{_or(SIDES)}, steps of {_or(STEPS)} and stages of {_or(STAGES)}"
        ),
        hints=(
            "A byte that is brought in is used once for each row or column of the tile on the "
            "other side. Which sides of C's tile give enough FLOP per byte?",
            "2 tm tn / (2 (tm + tn)) FLOP per byte, at two bytes a number. The largest tile has "
            "more than enough and sums that leave no registers.",
            "A stage takes (tm + tn) x tk x 2 bytes: divide the limit by the stages, and by tm + "
            "tn. The steps along k say how small tk may be.",
        ),
        measured=measure,
        drawn=figure,
        read=tile_of,
    )


def retuned(
    size: Size, carried: tuple[Tile, int], devices: Sequence[str], within: float = 0.01
) -> Exercise:
    """Choose tile and stages on each of ``devices`` for a kernel that comes with ``carried``.

    The answer is a dict, device -> ((tm, tn, tk), stages). At most ``within`` of the best bound
    there, by `td.tile.order` over every tile of the task, may be given away.
    """
    best = {device: order(*size, tiles_of(device), device)[0] for device in devices}

    def measure(answer: dict[str, Config]) -> list[Target]:
        targets = []
        for device, config in answer.items():
            found = predict(*size, config, device)
            lost = round(100 * (1 - best[device].seconds / found.seconds), 2)
            where = f"{_short(config)} is bound by {found.binding}; {_waves(size, config, device)}"
            targets.append(Target(f"% given away on {device}", 100 * within, lost, 0, where=where))
        return targets

    (m, n, k), (tile, stages) = size, carried
    return Exercise(
        name="carried to another GPU",
        question=(
            f"{' x '.join(map(str, tile))} with {stages} stages comes from another device. Choose "
            f"tile and stages for {' and '.join(devices)}, {m} x {n} x {k} in bf16, and give away "
            f"at most {100 * within:g} % of the best bound on each."
        ),
        form=(
            f"a dict, device -> ((tm, tn, tk), stages), for example "
            f"{dict.fromkeys(devices, ((64, 64, 16), 2))}"
        ),
        hints=(
            "Does the kernel start at all? A block's shared memory is (tm + tn) x tk x 2 bytes, "
            "times the stages.",
            "Count tiles of C over the multiprocessors of each device: how full is the last wave?",
            "Smaller tiles fill the last wave better until what warps read from shared memory "
            "binds. td.tile.order lists predictions best first; look for a tile whose waves are "
            "nearly whole and that arithmetic still binds.",
        ),
        measured=measure,
        drawn=lambda chosen: _shares(size, tile_of(carried), chosen, best, within),
        read=lambda answer: _chosen(answer, devices),
    )


def _waves(size: Size, config: Config, device: str) -> str:
    """How the tiles of C share out over the multiprocessors, in words."""
    (m, n, _), (tm, tn, _) = size, config.block
    tiles, count = -(-m // tm) * -(-n // tn), load_device(device).multiprocessors
    return f"{tiles:,} tiles over {count} multiprocessors are {tiles / count:.2f} waves"


def _chosen(answer: Any, devices: Sequence[str]) -> dict[str, Config] | None:
    if not isinstance(answer, Mapping) or set(answer) != set(devices):
        return None
    return {device: tile_of(answer[device]) for device in devices}


@styled
def _shares(
    size: Size,
    carried: Config,
    chosen: Mapping[str, Config] | None,
    best: Mapping,
    within: float,
) -> draw.Figure:
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
            words = f"does not start: {why.split(':')[0]}" if why else f"{100 * share:.1f} %"
            draw.note(axes, (max(share, 0.02), y), f"{_short(config)}: {words}", **draw.BEHIND)
            if colour == BLUE and share < 1 - within:
                draw.mark_box(axes, (0, y - 0.4, max(share, 0.02), 0.8), device)
            y += 1
        y += 0.6
    draw.limit_line(axes, 1, color=GREY, linewidth=0.8, zorder=0)
    axes.set_yticks(list(ticks.values()), list(ticks))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "the best"])
    axes.tick_params(axis="y", length=0)
    draw.grid(axes)
    axes.yaxis.grid(False)
    axes.set_xlabel("bound of the tile over that of the best tile there")
    entries = [draw.patch_entry(name, colour) for name, (_, colour) in series.items()]
    draw.legend(figure, entries, 2)
    return figure


def _short(config: Config) -> str:
    return f"{'x'.join(map(str, config.block))}, {config.stages} stages"


def _or(values: Sequence[int]) -> str:
    return f"{', '.join(map(str, values[:-1]))} or {values[-1]}"
