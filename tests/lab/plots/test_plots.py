"""Figures: every word inside the picture and no word upon another, also of large ones; and what
all of them share."""

import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from oracles.figures import clipped, drawn_texts, overlaps

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab import plots, sweep
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.products.placement import Partial, Replicate, Shard, Tiling
from tiledask.plan.products.traffic import Traffic

GB = 10**9
R, S0, S1 = Replicate(), Shard(0), Shard(1)


def cut(shape: tuple[int, int], *placements) -> Tiling:
    """A matrix on 2 x 2 ranks."""
    return Tiling(shape, (2, 2), placements)


def pipeline(devices: int, microbatches: int, forward=1.0, backward=2.0) -> Timeline:
    """GPipe as it might be measured: a transfer of no length before what another device makes."""
    made = simulate(schedule("gpipe", devices, microbatches), forward, backward)
    spans = list(made.to_frame().itertuples(index=False, name=None))
    ends = {"F": 0, "B": devices - 1}
    come = [(d, "T", s, m, start, start) for d, k, s, m, start, _ in spans if d != ends[k]]
    return Timeline.of(devices, spans + come, origin="measured")


def held(name: str, devices: int, microbatches: int):
    timeline = sweep.same_work(name, devices, microbatches)
    return td.memory_over_time(timeline, devices / timeline.evidence.schedule.stages)


def dense(ranks: int) -> Traffic:
    every = [(i, j, 123_456_789 * (i + j)) for i in range(ranks) for j in range(ranks)]
    return Traffic.of(ranks, every)


def curve(n=30, off=0.0):
    steps = np.arange(n)
    return SimpleNamespace(losses=4 * 0.95**steps * (1 + off * np.sin(steps)))


@cache
def plans(model: str, cluster: str, batch: int, sequence: int):
    return td.search(td.load_model(model), td.load_cluster(cluster), batch, sequence=sequence)


TIGHT = "gpt-200b", "160xA100-40GB", 160, 2048
NONE = "gpt-200b", "80xA100-40GB", 160, 2048
EMPTY = "gpt2", "13xH100", 1, 1024
EXPERTS = "mixtral-8x7b", "32xH100", 256, 4096


def steps(task: tuple) -> dict:
    """The best plan of each (tp, pp), five at most."""
    best = {}
    for plan in plans(*task)[:200]:
        best.setdefault((plan.layout.tp, plan.layout.pp), plan)
    return {str(plan.layout): plan.step for plan in [*best.values()][:5]}


def stages(model: str, cluster: str, **layout):
    layout = td.Layout(microbatches=126, **layout)
    fit = td.fits(td.load_model(model), layout, td.load_cluster(cluster))
    over = fit.overhead.total
    return plots.memory_bars(fit.memory.ledger, fit.capacity, place="stage", overhead=over)


FORMULA = [
    ("x", (24, 32), R),
    ("W1", (32, 127), S1),
    "= GELU of",
    ("x W1", (24, 127), S1),
    ("W2", (127, 32), S0),
    "=",
    ("partial", (24, 32), Partial()),
    "all_reduce",
    ("y", (24, 32), 2),
]
FULL = Ledger.of(
    Row(place, tensor, ALWAYS, size * GB)
    for place in range(4)
    for tensor, size in (("weights", 400), ("gradients", 400), ("optimizer", 2400))
)
SPLIT = Ledger.of(
    row
    for place in range(6)
    for row in (
        Row(place, "weights", ALWAYS, 10 * GB),
        Row(place, "optimizer", ALWAYS, 20 * GB),
        Row(place, "activations", "forward", (12 - 2 * place) * GB),
        Row(place, "activations", "backward", 1 * GB),
    )
)
RING = Traffic.of(4, [(i, (i + 1) % 4, 16_777_216) for i in range(4)])
PAIRS = Timeline.of(
    2,
    [
        (d, kind, stage, i, 3.0 * i + d, 3.0 * i + d + 3)
        for d in range(2)
        for i in range(3)
        for kind, stage in (("F", d), ("B", 3 - d))
    ],
)
SLOW_END = [  # device 1 takes twice as long, gets a block late, and starts late
    *((0, "F", 0, i, float(i), i + 1.0) for i in range(2)),
    (1, "T", 0, 0, 1.25, 1.75),
    *((1, "F", 1, i, 2 + 6.0 * i, 4 + 6.0 * i) for i in range(2)),
    *((1, "B", 1, i, 4 + 6.0 * i, 8 + 6.0 * i) for i in range(2)),
    *((0, "B", 0, i, 8 + 6.0 * i, 10 + 6.0 * i) for i in range(2)),
]
EVERY_CAUSE = Timeline.of(2, SLOW_END, origin="measured")
STAYS = {"slot 0": [("nap", 0, 0.2), ("nap", 0.2, 0.4)], "slot 1": [("killed", 0.3, 0.3)]}
SPREAD = {
    "four workers": {64: 2e-3, 256: 2e-3, 2048: 0.3},
    "one process": {64: 1e-5, 256: 4e-4, 2048: 0.5},
}

FIGURES = {
    "gantt": lambda: plots.gantt(pipeline(4, 8), pipeline(4, 8, 1.1, 2.3), titles=["a", "b"]),
    "gantt, 16 x 24": lambda: plots.gantt(pipeline(16, 24)),
    "gantt, 40 devices": lambda: plots.gantt(pipeline(40, 2)),
    "gantt, 8 x 32 in a V": lambda: plots.gantt(sweep.same_work("zb-v", 8, 32)),
    "gantt, a part": lambda: plots.gantt(sweep.same_work("zb-v", 8, 32), between=(10, 30)),
    "gantt, pairs": lambda: plots.gantt(PAIRS),
    "gantt of every cause": lambda: plots.gantt(EVERY_CAUSE, sweep.same_work("zb-v", 4, 8)),
    "memory timeline": lambda: plots.memory_timeline(
        {n: held(n, 4, 8) for n in ("gpipe", "1f1b", "zb-v")}, capacity=5.5, unit="activations"
    ),
    "slots": lambda: plots.slots(STAYS, title="A worker dies"),
    "slots, nested": lambda: plots.slots({"a": STAYS, "b": STAYS}, xlabel=""),
    "memory": lambda: plots.memory_bars({"full copy": FULL, "split": SPLIT}, 40 * GB),
    "memory, by hand": lambda: plots.memory_bars({"mine": {"weights": 2, "gradients": 4}}),
    "memory, 63": lambda: stages("llama-3.1-405b", "1008xH100", pp=63, tp=8, dp=2),
    "memory, ZeRO": lambda: stages("mixtral-8x7b", "32xH100", dp=32, ep=8, zero=3),
    "step": lambda: plots.step_breakdown(steps(EXPERTS)),
    "step, one": lambda: plots.step_breakdown(plans(*TIGHT)[0].step),
    "step, unlike": lambda: plots.step_breakdown(steps(EXPERTS) | {"slow": plans(*TIGHT)[0].step}),
    "map": lambda: plots.feasibility(plans(*TIGHT)),
    "map, nothing fits": lambda: plots.feasibility(plans(*NONE)),
    "map, empty": lambda: plots.feasibility(plans(*EMPTY)),
    "curves": lambda: plots.curves(SPREAD, xlabel="n", ylabel="seconds", title="n x n x n"),
    "curves, marks": lambda: plots.curves(
        {"scale": {0: 24, 1: 23, 2: 22}},
        marks={"left out": {0: 24}},
        log="",
        xlabel="step",
        ylabel="power of two",
    ),
    "losses": lambda: plots.losses(
        {"one device": curve(), "split": curve(off=1e-6), "again": curve()}
    ),
    "losses, many": lambda: plots.losses({f"dp={n}, tp=2": curve(off=n * 1e-7) for n in range(7)}),
    "placements": lambda: plots.placements({"forward": FORMULA, "backward": FORMULA}, 4),
    "owners": lambda: plots.owners({"A": cut((5, 8), S0, S1), "B": cut((5, 8), R, S1)}),
    "owners, thin": lambda: plots.owners(
        {"A": Tiling((6400, 720), (64, 8), (S0, S1)), "B": Tiling((720, 6400), (8, 64), (S0, S1))}
    ),
    "corner": lambda: plots.corner(*(cut((600, 600), S0, S1) for _ in "XAY")),
    "corner, partial": lambda: plots.corner(
        cut((90, 80), R, S1), cut((80, 70), R, S0), cut((90, 70), R, Partial())
    ),
    "step of a tile": lambda: plots.tile_step(500, 700, 300, 32, (7, 12, 5)),
    "step, two levels": lambda: plots.tile_step(512, 512, 384, (256, 256, 384), inner=32),
    "layers": lambda: plots.layers_on_devices({"a": [0, 0, 1, 1], "b": [n % 4 for n in range(40)]}),
    "traffic": lambda: plots.traffic_matrix(RING, RING + Traffic.of(4, [(0, 1, 7)])),
    "traffic, 40": lambda: plots.traffic_matrix(dense(40)),
}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_title_and_every_word_can_be_read(name):
    figure = FIGURES[name]()
    texts = drawn_texts(figure)
    assert len(texts) >= 3
    assert not clipped(figure, texts, by=1)
    assert not overlaps(texts)
    assert figure.get_suptitle() or name.startswith("curves")
    for axes in figure.axes:  # a layout without room for the words lets the axes collapse
        assert axes.get_window_extent().height > 25


def test_a_notebook_shows_a_figure_that_no_setting_changes_and_that_changes_no_setting():
    import matplotlib as mpl

    figure = FIGURES["slots"]()
    for dpi, wide in (("figure", 1350), (40, 360)):
        with mpl.rc_context({"savefig.dpi": dpi}):
            png, size = figure._repr_png_()
        assert (png[:4], int.from_bytes(png[16:20])) == (b"\x89PNG", wide)
        assert size == {"width": 900}
    expected = FIGURES["slots"]().to_png()
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert FIGURES["slots"]().to_png() == expected
        assert mpl.rcParams["font.size"] == 30
    assert repr(figure) == "Figure: A worker dies | time (s)"  # what it shows, for those who listen


def test_matplotlib_waits_for_the_first_figure():
    code = (
        "import sys, tiledask, tiledask.lab.plots, tiledask.lab.table;"
        "print([m for m in ('matplotlib', 'dask', 'bokeh', 'rich', 'jinja2', 'pandas')"
        " if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.gantt(), "got 0"),
        (lambda: plots.gantt(pipeline(1, 1), titles=["a", "b"]), "2 titles"),
        (lambda: plots.gantt(pipeline(1, 1), between=(3, 3)), "start < end"),
        (lambda: plots.gantt(pipeline(2, 2), path=True), "leave path out"),
        (lambda: plots.memory_bars(Ledger.of([])), "got 0"),
        (lambda: plots.traffic_matrix(RING, Traffic.of(3)), "'measured': 3"),
        (lambda: plots.slots({"slot 0": [("nap", 2, 1)]}), "ends after it begins"),
        (lambda: plots.curves({"a": {0: 1}}, xlabel="n", ylabel="s"), "above 0"),
        (lambda: plots.corner(*(cut((4, 5), S0, S1) for _ in "XAY")), "m x k by k x n"),
        (lambda: plots.tile_step(13, 11, 9, 4, (0, 3, 0)), "begins beyond 13 x 11 x 9"),
        (lambda: plots.losses({}), "0 runs"),
        (lambda: plots.sliders(print, {"m": 4}, m=[1, 2]), "start at one of them"),
        (lambda: plots.sliders(print, m=[]), "1 value or more each"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_a_slider_that_is_moved_draws_anew_and_what_is_refused_is_said():
    def draw(m, p=4):
        if m == 3:
            raise ConfigError("m = 3 has no picture; take 1 or 2")
        figure = plots.canvas(2, f"m = {m}, p = {p}")
        figure.subplots().set_xlabel("time (s)")
        return figure

    shown = plots.sliders(draw, {"m": 2}, m=[1, 2, 3], p=[4, 8])
    m, p, words, image = shown._widget()[0].children
    first = image.value
    assert (m.value, p.value, first) == (2, 4, draw(2)._repr_png_()[0])
    p.value = 8
    assert image.value == draw(2, 8)._repr_png_()[0] != first
    m.value = 3
    assert words.value == "m = 3 has no picture; take 1 or 2"
    m.value = 1
    assert words.value == ""
    bundle = shown._repr_mimebundle_()  # without a kernel: the picture it begins with, and words
    assert bundle["image/png"] == first
    said = "Figure: m = 2, p = 4 | time (s) | with sliders, here at m = 2, p = 4"
    assert bundle["text/plain"] == said
    assert "application/vnd.jupyter.widget-view+json" in bundle
