"""Bytes and barriers of a training's step by layer, counted beside predicted."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Axes, Figure
from tiledask.lab.plots.style import BLUE, GREEN, GREY, INK, ORANGE, PINK, YELLOW, canvas, styled

__all__ = ["PARTS", "LayerBars", "layer_bars", "layers_traffic", "part_of"]

PARTS = {
    "tensor, forward": (BLUE, "tensor parallel, forward"),
    "tensor, backward": (ORANGE, "tensor parallel, backward"),
    "data, gradients": (GREEN, "data parallel, gradients"),
    "data, weights": (PINK, "data parallel, weights"),
    "pipeline": (GREY, "between stages"),
    "all ranks": (YELLOW, "all ranks, norm of the gradients"),
}
"""Part of a step -> (colour, what it is)."""


class LayerBars(NamedTuple):
    """What is drawn of one quantity."""

    rows: tuple[str, ...]
    """Units of the model, and what lies between them."""
    parts: dict[str, list[float]]
    """Part -> its length in each row."""
    predicted: list[float]
    """All parts together, in each row."""


def part_of(parallel: str, when: str) -> str:
    """The name in `PARTS`."""
    found = f"{parallel}, {when}"
    return found if found in PARTS else parallel if parallel in PARTS else "all ranks"


def layer_bars(rows: Iterable[tuple[str, str, str, float, float]]) -> LayerBars:
    """The LayerBars of (layer, when, parallel, counted, predicted).

    >>> layer_bars([("layer 0/mlp", "forward", "tensor", 2, 2), ("layer 0", "weights", "data", 1, 1)])
    LayerBars(rows=('layer 0',), parts={'tensor, forward': [2], 'data, weights': [1]}, predicted=[3])
    """  # noqa: E501
    rows = [(layer.partition("/")[0], part_of(p, when), *n) for layer, when, p, *n in rows]
    units = tuple(dict.fromkeys(unit for unit, *_ in rows))
    at = {unit: i for i, unit in enumerate(units)}
    parts: dict[str, list] = {part: [0] * len(units) for part in PARTS}
    predicted = [0] * len(units)
    for unit, part, counted, said in rows:
        parts[part][at[unit]] += counted
        predicted[at[unit]] += said
    return LayerBars(units, {part: n for part, n in parts.items() if any(n)}, predicted)


@styled
def layers_traffic(trained: Any, *, title: str | None = None) -> "Figure":
    """A figure with a bar per layer: bytes that all ranks send in a step, and barriers of it.

    ``trained``: what `tiledask.train` returns; or several by name: then a bar for each of these.
    Bars are counted, black ticks predicted.
    """
    if isinstance(trained, Mapping):
        bars = _of_each(trained)
    else:
        frame, names = trained.layers().reset_index(), ["layer", "when", "parallel"]
        bars = {
            what: layer_bars(frame[[*names, what, f"predicted_{what}"]].itertuples(index=False))
            for what in ("barriers", "bytes")
        }
    if not bars["bytes"].rows:
        raise ConfigError(
            "layers_traffic draws what 2 ranks or more tell each other, and these records have 0 "
            "collectives of a step; train over more ranks, for example (1, 2, 1)"
        )
    wrong = sum(
        sum(part[i] for part in each.parts.values()) != each.predicted[i]
        for each in bars.values()
        for i in range(len(each.rows))
    )
    found = (
        f"{wrong} bar{'s' * (wrong > 1)} not as predicted" if wrong else "counted equals predicted"
    )
    what = "training" if isinstance(trained, Mapping) else "layer"
    headline = f"Bytes and barriers by {what}: {found}"
    count = len(bars["bytes"].rows)
    pitch = min(0.3, max(0.13, 9 / count))
    figure = canvas(1.5 + pitch * count, title or headline)
    left, right = figure.subplots(1, 2, sharey=True)
    _panel(left, bars["bytes"], "bytes of a step, sent by all ranks")
    _panel(right, bars["barriers"], "barriers of a step, of the rank that has most")
    draw.byte_ticks(left.xaxis)
    left.xaxis.get_major_locator().set_params(nbins=5)
    draw.whole_ticks(right.xaxis)
    step = 1 + count // 60
    left.set_yticks(range(0, count, step), bars["bytes"].rows[::step])
    left.set_ylim(count - 0.4, -0.6)
    used = {part for each in bars.values() for part in each.parts}
    entries = [draw.patch_entry(words, c) for part, (c, words) in PARTS.items() if part in used]
    draw.legend(figure, [*entries, draw.line_entry("predicted", linewidth=2)])
    return figure


def _of_each(runs: Mapping[str, Any]) -> dict[str, LayerBars]:
    """Barriers of each training's busiest rank, and the bytes that all its ranks send."""
    rows: dict[str, list] = {"barriers": [], "bytes": []}
    for name, run in runs.items():
        ranks = [run.layers(rank) for rank in range(len(run.planned))]
        busiest = max(ranks, key=lambda frame: frame.barriers.sum())
        for what, frame in (("barriers", busiest), ("bytes", run.layers())):
            told = frame.reset_index()[["when", "parallel", what, f"predicted_{what}"]]
            rows[what] += [(name, *row) for row in told.itertuples(index=False)]
    return {what: layer_bars(each) for what, each in rows.items()}


def _panel(axes: "Axes", bars: LayerBars, title: str) -> None:
    axes.set_title(title)
    ends = [*bars.predicted]
    for row in range(len(bars.rows)):
        parts = [(part, sizes[row], PARTS[part][0]) for part, sizes in bars.parts.items()]
        ends += [x + width for x, _, width, _ in draw.stack(axes, row, parts, linewidth=0.5)]
    low, high = ([row + reach for row in range(len(bars.rows))] for reach in (-0.42, 0.42))
    axes.vlines(bars.predicted, low, high, color=INK, linewidth=2, gid="predicted")
    axes.set_xlim(0, 1.05 * max([1.0, *ends]))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
