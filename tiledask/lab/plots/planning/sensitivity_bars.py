"""Which limit of a cluster binds: what relaxing each of them buys."""

from collections.abc import Callable, Sequence
from textwrap import fill

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.planning.feasibility import round_bytes, short_layout
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import BLUE, GREY, ORANGE, PALE, canvas, styled
from tiledask.plan.choosing.sensitivity import Relaxed
from tiledask.plan.units import format_seconds

__all__ = ["sensitivity_bars"]


@styled
def sensitivity_bars(relaxed: Sequence[Relaxed], *, title: str | None = None) -> "Figure":
    """A figure with a bar per relaxed limit: how many times as fast the best plan is then, or,
    where nothing fits now, which part of a device's memory the best plan takes then: one bar for
    all limits that change nothing."""
    if not relaxed:
        raise ConfigError(
            "sensitivity_bars draws 1 relaxed limit or more, got 0; pass what "
            "td.sensitivity(model, cluster, batch) returns"
        )
    before = relaxed[0].before
    model, cluster = before.found.model, before.found.cluster
    heading = title or f"What relaxing one limit buys: {model.name} on {cluster}"
    names = [f"{each.limit} x {each.times:g}" for each in relaxed]
    idle = [e for e in relaxed if e.after.verdict == "no" and e.after.peak == before.peak]
    if 1 < len(idle) < len(relaxed):
        relaxed = [each for each in relaxed if each not in idle] + idle[:1]
        names = [f"{each.limit} x {each.times:g}" for each in relaxed[:-1]]
        names.append(f"each of the other {len(idle)}")
    # what differs in the layout; micro-batches follow from the rest
    changes = []
    for each in relaxed:
        old, new = each.before.layout, each.after.layout
        axes_of = [name for name in each.changed if name != "microbatches"]
        found = (f"{name} {getattr(old, name)} → {getattr(new, name)}" for name in axes_of)
        changes.append(fill(", ".join(found), 62))
    lines = 1 + max(text.count("\n") for text in changes)
    figure = canvas(1.35 + (0.29 + 0.12 * lines) * len(relaxed), fill(heading, 84))
    axes = figure.subplots()
    draw.lanes(axes, names)
    axes.spines["left"].set_visible(True)
    draw.limit_line(axes, 1, gid="one", zorder=3)
    if before.verdict == "no":
        room = round_bytes(cluster.device.memory_bytes)
        size = round_bytes(before.peak)
        now = f"nothing fits; the nearest takes {size} of {room}: {short_layout(before.layout)}"
        ends = _fullness(axes, relaxed)
    else:
        now = f"{format_seconds(before.seconds)} a step with {short_layout(before.layout)}"
        ends = _speedups(axes, relaxed)
    axes.set_title(fill(f"now: {now}", 92), fontsize=8.5)
    for y, ((x, words), below) in enumerate(zip(ends, changes, strict=True)):
        # beside the bar, and what changes in the layout below
        end, up = (max(1.0, x), y), 0.5 if below else 0
        draw.note(axes, end, words, (6, up))
        if below:
            draw.note(axes, end, below, (6, -1), 7, color=GREY)
    return figure


def _speedups(axes: "Axes", relaxed: Sequence[Relaxed]) -> list[tuple[float, str]]:
    """Bars from 1, "as fast as now"; the end of each, and what to write there."""
    ends = [each.speedup for each in relaxed]
    _scale(axes, min(1.0, *ends), max(1.05, *ends), lambda end: f"{end:.3g} x")
    axes.set_xlabel("times as fast: time of a step now / then", loc="left")
    axes.barh(range(len(ends)), [end - 1 for end in ends], 0.62, 1, color=BLUE, gid="speedup")
    steps = [
        f"{format_seconds(each.after.seconds)} a step{', tight' * (each.after.verdict == 'tight')}"
        for each in relaxed
    ]
    return [(end, f"{end:.3g} x: {step}") for end, step in zip(ends, steps, strict=True)]


def _fullness(axes: "Axes", relaxed: Sequence[Relaxed]) -> list[tuple[float, str]]:
    """Bars of the memory that the best, or the nearest, plan takes; what to write at each end."""
    colours = {"fits": BLUE, "tight": ORANGE, "no": PALE}
    ends = []
    for y, after in enumerate(each.after for each in relaxed):
        room = after.found.cluster.device.memory_bytes
        axes.barh(y, after.peak / room, 0.62, color=colours[after.verdict], gid=after.verdict)
        words = f"{after.verdict}: {format_seconds(after.seconds)} a step"
        if after.verdict == "no":
            words = f"still nothing fits: {round_bytes(after.shortfall)} too much"
        ends.append((after.peak / room, words))
    _scale(axes, 0.0, max(1.0, *(end for end, _ in ends)), lambda end: f"{100 * end:.0f} %")
    axes.set_xlabel("bytes on the fullest device / bytes that it has", loc="left")
    return ends


def _scale(axes: "Axes", low: float, high: float, words: Callable[[float], str]) -> None:
    """An axis whose numbers end with the bars: what is written beside them has the rest."""
    from matplotlib.ticker import MaxNLocator

    reach = high - low
    axes.set_xlim(low - 0.02 * reach * (low > 0), low + 2.1 * reach)
    ticks = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    ticks = [tick for tick in ticks if low - 1e-9 <= tick <= high + 0.02 * reach]
    axes.set_xticks(ticks, [words(tick) for tick in ticks])
    axes.spines["bottom"].set_bounds(axes.get_xlim()[0], max(high, ticks[-1]))
