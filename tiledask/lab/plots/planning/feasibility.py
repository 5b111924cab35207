"""The map of a search: which shapes fit a cluster, how fast they are, what forbids the others."""

from textwrap import fill
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import BLUE, GREY, INK, ORANGE, PALE, canvas, lighter, styled
from tiledask.plan.choosing.search import Plan, Plans
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["feasibility", "round_bytes", "short_layout", "summary", "why_not"]

WHY = {
    "heads": "tp does not divide the heads",
    "layers": "fewer layers than stages",
    "experts": "ep does not divide the experts",
    "devices": "the product does not divide the devices",
    "batch": "dp does not divide the batch",
    "none": "not among those searched",
}
_COLOURS = {"fits": BLUE, "tight": lighter(ORANGE, 0.45), "no": PALE}
_NONE = {"edgecolor": PALE, "hatch": "///", "linewidth": 0}
_BEST = {"edgecolor": INK, "linewidth": 2.2}
_SIZE = 8.0
"""Points of the words in a cell."""


@styled
def feasibility(plans: Plans) -> "Figure":
    """A figure with a cell for every tp and pp: the time of a step and the bytes of the best plan
    that has them, or how many bytes it is too large by, or what forbids such layouts. The best of
    all has a frame."""
    columns, rows = _values(plans, "tp"), _values(plans, "pp")
    # the best plan of each pair that has one: plans lie in their order
    firsts = plans.to_frame(None)[["tp", "pp"]].drop_duplicates()
    best = {(across, down): plans[at] for at, across, down in firsts.itertuples(name=None)}
    pairs = [(across, down) for across in columns for down in rows]
    why = {(a, b): why_not(plans, {"tp": a, "pp": b}) for a, b in pairs if (a, b) not in best}
    heading = f"What fits, and how fast: {plans.model.name} on {plans.cluster}"
    reasons = [text for text in WHY if text in why.values()]
    figure = canvas(1.9 + 0.17 * len(reasons) + 0.4 * max(3, len(rows)), fill(heading, 84))
    axes = figure.subplots()
    axes.set_title(fill(summary(plans), 112), fontsize=8.5)
    draw.cells(axes, columns, rows)
    axes.set(xlabel="tensor parallelism (tp)", ylabel="pipeline stages (pp)")
    draw.legend(figure, _legend(plans, {plan.verdict for plan in best.values()}, reasons), 2)
    figure.lay_out()
    level = _level(axes, [_words(plan) for plan in best.values()], len(columns))
    for i, across in enumerate(columns):
        for j, down in enumerate(rows):
            at = (i - 0.48, j - 0.46, 0.96, 0.92)
            if (across, down) in best:
                _cell(axes, at, best[across, down], level)
            else:
                draw.box(axes, at, "white", **_NONE, gid="none")
                draw.fitting_text(axes, at, why[across, down], "white", color=GREY)
    return figure


def _values(plans: Plans, name: str) -> list[Any]:
    """What the plans have of a field, and the powers of two that cannot be."""
    values = set(plans.to_frame(None)[name].tolist())
    most = {
        "tp": plans.cluster.devices_per_node,
        "pp": min(plans.model.layers, plans.cluster.devices),
    }.get(name, 0)
    powers = {2**k for k in range(most.bit_length())}
    missing = {n for n in powers if not values or why_not(plans, {name: n}) != "none"}
    return sorted(values | missing) or [1]


def why_not(plans: Plans, values: dict[str, int]) -> str:
    """What forbids layouts with these ``values``, a key of WHY: what they do not divide, or
    cannot be split over; "none" if no such rule does.

    >>> import tiledask as td
    >>> plans = td.search(td.load_model("gpt2"), td.load_cluster("8xA100-40GB"), 64)
    >>> why_not(plans, {"tp": 8}), why_not(plans, {"tp": 4, "pp": 4}), why_not(plans, {"tp": 2})
    ('heads', 'devices', 'none')
    """
    model, batch = plans.model, plans.global_batch
    dp, tp, pp, cp = (values.get(name, 1) for name in ("dp", "tp", "pp", "cp"))
    try:
        model.check_tp(tp)
    except ConfigError:
        return "heads"
    if pp * values.get("interleave", 1) > model.layers:
        return "layers"
    if values.get("ep", 1) > 1 and (not model.experts or model.experts % values["ep"]):
        return "experts"
    counts = {*plans.devices.tolist()} or {plans.cluster.devices}
    left = [n // (dp * tp * pp * cp) for n in counts if n % (dp * tp * pp * cp) == 0]
    if not left:
        return "devices"
    copies = [dp] if "dp" in values else left
    return "none" if any(batch % n == 0 for n in copies) else "batch"


def summary(plans: Plans) -> str:
    """What was searched for and what is best, in a sentence."""
    plural = "s" * (plans.global_batch != 1)
    task = f"{plans.global_batch:,} sequence{plural} of {plans.sequence:,} tokens a step"
    if not len(plans):
        return f"{task}: no layout splits them evenly"
    best = plans[0]
    layout, size = short_layout(best.layout), round_bytes(best.peak)
    if best.verdict == "no":
        over = round_bytes(best.shortfall)
        return f"{task}: nothing fits; the nearest takes {size}, {over} too much: {layout}"
    word = "best" if best.verdict == "fits" else "nothing fits for sure; the best tight one"
    return f"{task}; {word}: {format_seconds(best.seconds)}, {size}, {layout}"


def short_layout(layout: Layout) -> str:
    """The layout in one line, without what follows from the batch, and what is usual.

    >>> short_layout(Layout(dp=2, tp=8, zero=1, microbatches=9, flash_attention=True,
    ...                     sequence_parallel=True))
    'dp=2 tp=8 pp=1 zero=1 sequence_parallel'
    """
    words = str(layout).replace("=True", "").split()
    words = [w for w in words if w != "flash_attention" and not w.startswith("microbatches=")]
    return " ".join(words if layout.flash_attention else [*words, "without flash_attention"])


def round_bytes(n: int) -> str:
    """``n`` bytes as text of three digits.

    >>> round_bytes(62_980_000_000)
    '63 GB'
    """
    return format_bytes(float(f"{n:.3g}"))


def _words(plan: Plan) -> tuple[str, ...]:
    """What may be written in a cell, from the longest to the shortest."""
    layout, size = plan.layout, round_bytes(plan.peak)
    how = [size] + [f"ZeRO {layout.zero}"] * bool(layout.zero)
    how += ["recompute"] * (layout.recompute != "none")
    first = format_seconds(plan.seconds)
    if plan.verdict == "no":
        first = f"+{round_bytes(plan.shortfall)}"
    elif plan.verdict == "tight":
        first = f"tight: {first}"
    first = f"★ {first}" if plan.layout == plan.found[0].layout else first
    return f"{first}\n{', '.join(how)}", f"{first}\n{size}", first


def _level(axes: "Axes", words: list[tuple[str, ...]], columns: int) -> int:
    """The longest kind of words that fits into all cells: a "ZeRO 3" in some of them only would
    be read as none in the others."""
    points = axes.get_window_extent().width * 72 / axes.figure.dpi
    letters = 0.96 * points / columns / (0.64 * _SIZE) - 0.5
    fitting = [
        level
        for level in range(3)
        if all(len(line) <= letters for text in words for line in text[level].splitlines())
    ]
    return min(fitting, default=2)


def _cell(axes: "Axes", at: draw.Box, plan: Plan, level: int) -> None:
    colour = _COLOURS[plan.verdict]
    if plan.verdict == "fits":  # at twice the time it is as pale as it gets
        colour = lighter(colour, min(0.85, 1.7 * (1 - plan.found[0].seconds / plan.seconds)))
    draw.box(axes, at, colour, gid=plan.verdict, linewidth=0)
    if plan.layout == plan.found[0].layout:
        draw.box(axes, at, "none", **_BEST, gid="best", zorder=3)
    draw.fitting_text(axes, at, _words(plan)[level], colour, _SIZE)


def _legend(plans: Plans, verdicts: set[str], reasons: list[str]) -> list:
    room = round_bytes(plans.cluster.device.memory_bytes)
    labels = {
        "fits": "fits: time of a step (darker: faster)",
        "tight": "tight: fits or not, by the overhead of a run",
        "no": f"too large: with a CUDA context, bytes over {room}",
    }
    entries = [draw.patch_entry(labels[n], _COLOURS[n]) for n in labels if n in verdicts]
    if verdicts:
        word = "the best of all" if plans[0].verdict != "no" else "the nearest"
        entries.append(draw.patch_entry(f"★ {word}", "none", **_BEST))
    hatched = _NONE | {"edgecolor": GREY, "hatch": "////"}
    return entries + [draw.patch_entry(f"{n}: {WHY[n]}", "white", **hatched) for n in reasons]
