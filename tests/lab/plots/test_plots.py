"""Figures: the data drawn, every word inside the picture, and no word upon another."""

import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from oracles.figures import clipped, drawn_texts, overlaps, words

from tiledask.errors import ConfigError
from tiledask.lab import plots, sweep
from tiledask.lab.plots.primitives import places as boxes
from tiledask.lab.plots.style import PALETTE, ink_on
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.pipelines.causes import CAUSES
from tiledask.plan.pipelines.footprint import memory_over_time
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.products.placement import Partial, Replicate, Shard, Tiling
from tiledask.plan.products.traffic import Traffic

GB = 10**9
IDLE_PIECES = [f"idle {w}" for w in ("before its first", "between two", "after its last")]
IDLE_PIECES = [f"{w} action{'s' * ('two' in w)}" for w in IDLE_PIECES]


def pipeline(devices: int, microbatches: int, forward=1.0, backward=2.0) -> Timeline:
    """GPipe as it might be measured: a transfer of no length before what another device makes."""
    made = simulate(schedule("gpipe", devices, microbatches), forward, backward)
    spans = list(made.to_frame().itertuples(index=False, name=None))
    ends = {"F": 0, "B": devices - 1}
    come = [(d, "T", s, m, start, start) for d, k, s, m, start, _ in spans if d != ends[k]]
    return Timeline.of(devices, spans + come, origin="measured")


FORMULA = [
    ("x", (24, 32), Replicate()),
    ("W1", (32, 127), Shard(1)),
    "= GELU of",
    ("x W1", (24, 127), Shard(1)),
    ("W2", SimpleNamespace(shape=(127, 32), placement=Shard(0))),
    "=",
    ("partial", (24, 32), Partial()),
    "all_reduce",
    ("y", (24, 32), Replicate()),
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
QUARTERS = plots.Blocks([[0, 1], [2, 3]], [0, 500, 1001], [0, 512, 1024])
COPIES = plots.Blocks([[(0, 2), (1, 3)]], [0, 1024], [0, 300, 640])


CONTIGUOUS, ROUND_ROBIN = [n // 6 for n in range(24)], [n % 4 for n in range(24)]


STAYS = {"slot 0": [("nap", 0, 0.2), ("nap", 0.2, 0.4)], "slot 1": [("killed", 0.3, 0.3)]}
SPREAD = {
    "four workers": {64: 2e-3, 256: 2e-3, 2048: 0.3},
    "one process": {64: 1e-5, 256: 4e-4, 2048: 0.5},
}


# make test looks at those without a comma
FIGURES = {
    "gantt": lambda: plots.gantt(pipeline(4, 8), pipeline(4, 8, 1.1, 2.3), titles=["a", "b"]),
    "gantt, 16 x 24": lambda: plots.gantt(pipeline(16, 24)),
    "gantt, 40 devices": lambda: plots.gantt(pipeline(40, 2)),
    "gantt split": lambda: plots.gantt(SPLIT_BACKWARD),
    "gantt 8 x 32, in a V": lambda: plots.gantt(sweep.same_work("zb-v", 8, 32)),
    "gantt, a part": lambda: plots.gantt(sweep.same_work("zb-v", 8, 32), between=(10, 30)),
    "gantt, pairs": lambda: plots.gantt(PAIRS),
    "gantt of every cause": lambda: plots.gantt(EVERY_CAUSE, sweep.same_work("zb-v", 4, 8)),
    "memory timeline": lambda: plots.memory_timeline(
        {n: held(n, 4, 8) for n in ("gpipe", "1f1b", "zb-v")}, capacity=5.5, unit="activations"
    ),
    "memory timeline, 16": lambda: plots.memory_timeline(held("1f1b", 16, 20), 10),
    "memory": lambda: plots.memory_bars({"full copy": FULL, "split": SPLIT}, 40 * GB),
    "memory, by hand": lambda: plots.memory_bars({"mine": {"weights": 2, "gradients": 4}}),
    "traffic, equal": lambda: plots.traffic_matrix(RING, RING),
    "traffic differs": lambda: plots.traffic_matrix(RING, RING + Traffic.of(4, [(0, 1, 7)])),
    "traffic, 40": lambda: plots.traffic_matrix(dense(40)),
    "traffic, runs": lambda: plots.traffic_matrix(
        {"ring": RING.on("AABB"), "twice": RING.on("AABB") + RING}
    ),
    "matrices": lambda: plots.matrices({"up": (768, 3072), "down": (3072, 768)}),
    "corner": lambda: plots.corner(*(cut((600, 600), S0, S1) for _ in "XAY")),
    "corner, partial": lambda: plots.corner(
        cut((90, 80), R, S1), cut((80, 70), R, S0), cut((90, 70), R, Partial())
    ),
    "two levels": lambda: plots.two_levels(cut((512, 512), S0, S1), cut((512, 384), S0, S1)),
    "slots": lambda: plots.slots(STAYS, title="A worker dies"),
    "curves": lambda: plots.curves(SPREAD, xlabel="n", ylabel="seconds", title="n x n x n"),
    "owners": lambda: plots.owners({"A": QUARTERS, "B": COPIES, "C": QUARTERS}),
    "owners, thin": lambda: plots.owners({"A": thin(64, 8), "B": thin(8, 64)}),
    "layers": lambda: plots.layers_on_devices({"cut": CONTIGUOUS, "round robin": ROUND_ROBIN}),
    "placements": lambda: plots.placements({"forward": FORMULA, "backward": FORMULA}, 4),
    "idle blocks": lambda: plots.idle_blocks(pipeline(4, 8)),
}
LOOPED = sweep.same_work("interleaved-zb", 2, 2)
WHOLE = (0, "B", 0, 2, LOOPED.makespan, LOOPED.makespan + 2)
SPLIT_BACKWARD = Timeline.of(2, [*LOOPED.to_frame().itertuples(index=False, name=None), WHOLE])
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


def held(name: str, devices: int, microbatches: int):
    timeline = sweep.same_work(name, devices, microbatches)
    return memory_over_time(timeline, devices / timeline.evidence.schedule.stages)


def dense(ranks: int) -> Traffic:
    return Traffic.of(
        ranks, [(i, j, 123_456_789 * (i + j)) for i in range(ranks) for j in range(ranks)]
    )


R, S0, S1 = Replicate(), Shard(0), Shard(1)


def cut(shape: tuple[int, int], *placements) -> Tiling:
    """A matrix on 2 x 2 ranks."""
    return Tiling(shape, (2, 2), placements)


def thin(rows: int, columns: int) -> plots.Blocks:
    """One block a rank in each of ``rows`` rows, each 100 high, and one ragged column."""
    cells = [[i * columns + j for j in range(columns)] for i in range(rows)]
    return plots.Blocks(
        cells, [100 * i for i in range(rows + 1)], [*(90 * j for j in range(columns)), 90 * columns]
    )


@cache
def drawn(name: str) -> tuple:
    """(figure, its words), drawn once for all that is asked of it."""
    figure = FIGURES[name]()
    return figure, drawn_texts(figure)


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if "," in n else n for n in FIGURES],
)
def test_every_figure_has_a_title_and_units_and_every_word_can_be_read(name):
    figure, texts = drawn(name)
    assert len(texts) >= 3
    assert not clipped(figure, texts)
    assert not overlaps(texts)
    assert figure.get_suptitle()
    labels = " ".join(words(figure))
    units = ("time (", "(s)", "bytes", "row", "layer", "idle ", "busy /", "FLOP/byte", "k 0 to")
    units += ("rank 0", " x ", "chunk", "of k", "turn")
    assert any(unit in labels for unit in units)


def test_a_notebook_shows_a_figure_that_no_setting_changes_and_that_changes_no_setting():
    import matplotlib as mpl

    for dpi, wide in (("figure", 1350), (40, 360)):
        with mpl.rc_context({"savefig.dpi": dpi}):
            png, size = drawn("slots")[0]._repr_png_()
        assert (png[:4], int.from_bytes(png[16:20])) == (b"\x89PNG", wide)
        assert size == {"width": 900}
    expected = drawn("slots")[0].to_png()
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert FIGURES["slots"]().to_png() == expected
        assert mpl.rcParams["font.size"] == 30


def test_matplotlib_waits_for_the_first_figure():
    code = (
        "import sys, tiledask, tiledask.lab.plots, tiledask.lab.table;"
        "print([m for m in ('matplotlib', 'dask', 'bokeh', 'rich', 'jinja2', 'pandas')"
        " if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_gantt_draws_every_action_where_and_as_long_as_it_was_on_a_row_of_the_makespan():
    timeline = pipeline(3, 4)
    (axes,) = plots.gantt(timeline).axes
    for kind in "FB":
        rows = timeline.kind == kind
        drawn = sorted((round(y), x, w) for x, y, w, _ in boxes(axes, f"{kind}0"))
        times = timeline.start[rows], (timeline.end - timeline.start)[rows]
        spans = zip(timeline.device[rows].tolist(), *(t.tolist() for t in times), strict=True)
        # a box is centred on its row, so its lower edge rounds to the device
        assert drawn == sorted((d, s, pytest.approx(w)) for d, s, w in spans)
    found = timeline.idle_time
    for number, cause in enumerate(CAUSES):
        drawn = sorted((round(y), x, w) for x, y, w, _ in boxes(axes, cause))
        rows = found.code == number
        columns = found.device[rows], found.start[rows], (found.end - found.start)[rows]
        pieces = zip(*(c.tolist() for c in columns), strict=True)
        assert drawn == sorted((d, pytest.approx(s), pytest.approx(w)) for d, s, w in pieces)
    marks = boxes(axes, "T")
    assert len(marks) == (timeline.kind == "T").sum() == 16
    for _, y, _, height in marks:
        assert 0.36 < y - round(y - 0.4) < y - round(y - 0.4) + height < 0.5


def test_gantt_numbers_of_many_actions_are_there_and_in_their_box():
    timeline = sweep.same_work("1f1b", 8, 32)
    (axes,) = plots.gantt(timeline).axes
    places = [(t.get_position(), t.get_text()) for t in axes.texts]
    middles = (timeline.start + timeline.end) / 2
    assert sorted((round(x, 9), round(y), number) for (x, y), number in places) == sorted(
        (round(float(x), 9), int(d), str(i))
        for x, d, i in zip(middles, timeline.device, timeline.microbatch, strict=True)
    )
    across = axes.transData.transform([(0, 0), (1, 0)])[:, 0]
    for text in axes.texts:  # F lasts 1 s, B 2 s
        assert text.get_window_extent().width <= 1.02 * 2 * np.ptp(across)
    assert not plots.gantt(pipeline(2, 300)).axes[0].texts


def test_gantt_draws_the_path_that_decided_the_end():
    run = simulate(schedule("1f1b", 2, 2), 1, 2, latency=0.5)
    figure = plots.gantt(run, path=True)
    assert "the longest path" in words(figure)
    (line,) = (line for line in figure.axes[0].lines if line.get_gid() == "path")
    times, rows = line.get_xdata(), line.get_ydata()
    assert (times[0], times[-1]) == (0, run.makespan)
    assert sum(np.diff(rows) != 0) == 2 == (run.makespan - 9) / 0.5
    with pytest.raises(ConfigError, match="leave path out"):
        plots.gantt(pipeline(2, 2), path=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.gantt(), "got 0"),
        (lambda: plots.gantt(pipeline(1, 1), titles=["a", "b"]), "2 titles"),
        (lambda: plots.gantt(pipeline(1, 1), between=(3, 3)), "start < end"),
        (lambda: plots.memory_bars(Ledger.of([])), "got 0"),
        (lambda: plots.traffic_matrix(RING, Traffic.of(3)), "3 measured"),
        (lambda: plots.slots({"slot 0": [("nap", 2, 1)]}), "ends after it begins"),
        (lambda: plots.curves({"a": {0: 1}}, xlabel="n", ylabel="s"), "above 0"),
        (lambda: plots.corner(*(cut((4, 5), S0, S1) for _ in "XAY")), "m x k by k x n"),
        (lambda: plots.Blocks([[0], [1]], [0, 5, 3], [0, 5]), "ascend"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_memory_bars_are_the_bytes_of_the_fullest_moment_and_marked_over_the_capacity():
    (axes,) = plots.memory_bars(SPLIT, 40 * GB).axes
    for tensor in ("weights", "optimizer", "activations"):
        drawn = [w for _, _, w, _ in boxes(axes, tensor)]
        assert drawn == [SPLIT.by_tensor(place)[tensor] for place in SPLIT.places]
    ends = [x + w for x, _, w, _ in boxes(axes, "activations")]
    assert ends == list(SPLIT.per_place.values())
    assert [(x, w) for x, _, w, _ in boxes(axes, "over")] == [(40 * GB, 2 * GB)]
    (line,) = axes.lines
    assert list(line.get_xdata()) == [40 * GB] * 2
    assert not boxes(plots.memory_bars(SPLIT, 42 * GB).axes[0], "over")
    (axes,) = plots.memory_bars({"mine": {"A": 2, "B": 4}}, limit=("the bound", 5)).axes
    assert [line.get_xdata()[0] for line in axes.lines if line.get_gid() == "the bound"] == [5]


def test_memory_timeline_draws_what_is_held_and_where_it_is_most():
    footprint = held("1f1b", 4, 8)
    figure = plots.memory_timeline(footprint, capacity=3, unit="activations")
    assert len(figure.axes) == 4
    for device, axes in enumerate(figure.axes):
        (line,) = [line for line in axes.lines if line.get_gid() == f"device {device + 1}"]
        times, sizes = line.get_data()
        assert [footprint.at(device, t) for t in times] == list(sizes)
        assert len(times) == len(set(times)), "nothing that comes and goes at once"
        (peak,) = [line for line in axes.lines if line.get_gid() == "peak"]
        assert peak.get_ydata() == footprint.peaks[device] == 4 - device
        assert axes.get_ylim() == figure.axes[0].get_ylim()


def test_traffic_cells_are_the_bytes_and_those_that_differ_are_framed():
    for axes in plots.traffic_matrix(RING, RING).axes[:2]:
        np.testing.assert_array_equal(axes.images[0].get_array(), RING.bytes)
        numbers = [t.get_text() for t in axes.texts]
        assert (numbers.count("16.78\nMB"), numbers.count("·")) == (4, 4)
        assert not axes.patches
    for axes in drawn("traffic differs")[0].axes[:2]:
        (frame,) = axes.patches
        assert (round(frame.get_x() + 0.47), round(frame.get_y() + 0.47)) == (1, 0)
    ring, twice, *_ = drawn("traffic, runs")[0].axes
    for axes, traffic in ((ring, RING), (twice, RING + RING)):
        np.testing.assert_array_equal(axes.images[0].get_array(), traffic.bytes)
        assert axes.images[0].get_clim()[1] == 2 * RING.bytes.max()
        assert not axes.patches
        across, down = (line for line in axes.lines if line.get_gid() == "between hosts")
        assert ({*across.get_xdata()}, {*down.get_ydata()}) == ({1.5}, {1.5})


def test_owners_are_drawn_to_scale():
    figure = plots.owners({"A": QUARTERS, "B": COPIES})
    a, b = figure.axes
    drawn = sorted(boxes(a, ""), key=lambda at: at[1::-1])
    assert drawn == [(x, y, 512, h) for y, h in ((0, 500), (500, 501)) for x in (0, 512)]
    assert [t.get_text() for t in a.texts] == [f"rank {n}" for n in range(4)]
    assert [t.get_text() for t in b.texts] == ["ranks\n0, 2", "ranks\n1, 3"]
    assert a.get_title(loc="left") == "A, 1001 x 1024"
    assert a.get_aspect() == 1
    assert len({tuple(c.get_facecolor()[0]) for c in a.collections}) == 4
    (c,) = plots.owners({"both": QUARTERS}, sizes=False).axes
    assert c.get_title(loc="left") == "both"


def test_a_line_of_many_points_has_no_dots_and_no_ticks():
    few, many = {1: 1, 60: 60}, {x: x for x in range(1, 61)}
    (axes,) = plots.curves({"few": few, "many": many}, xlabel="x", ylabel="y").axes
    assert [line.get_marker() for line in axes.lines] == ["o", "None"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "60"]
    marks = {"first": {2: 2}, "second": {50: 50}}
    (axes,) = plots.curves({"many": many}, xlabel="bytes", ylabel="y", marks=marks).axes
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1 B", "10 B"]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["many"]
    assert {t.get_text(): t.xy for t in axes.texts} == {"first": (2, 2), "second": (50, 50)}


def test_a_corner_has_each_block_at_its_matrix_and_says_where_k_is_cut():
    (axes,) = plots.corner(*(cut((600, 600), S0, S1) for _ in "XAY")).axes
    assert sorted({h for *_, w, h in boxes(axes, "block")}) == [300]
    assert len(boxes(axes, "block")) == 12
    assert len(axes.lines) == 2
    (axes,) = FIGURES["corner, partial"]().axes
    assert len(boxes(axes, "partial sum")) == 4
    assert len(boxes(axes, "copies")) == 4
    flat = cut((50, 200), R, S1), cut((200, 100), R, S0), cut((50, 100), R, Partial())
    (small,) = plots.corner(*flat).axes
    assert axes.figure.get_figheight() > small.figure.get_figheight()
    assert "0 + 1 + 2 + 3" in [text.get_text() for text in small.texts]
    x, a = cut((500, 1000), R, R), cut((1000, 2000), S1, S1)
    lies = cut((500, 1000), S0, S1), cut((1000, 2000), S0, S1)
    (axes,) = plots.corner(x, a, cut((500, 2000), S1, S1), before=lies).axes
    assert {(w, h) for *_, w, h in boxes(axes, "before")} == {(500, 250), (1000, 500)}
    said = [text.get_text() for text in axes.texts]
    assert [said.count(f"on rank {rank}") for rank in range(4)] == [2] * 4
    assert {f"rank {rank}" for rank in range(4)} <= set(said)


def test_idle_time_pushed_together_is_one_block_of_p_minus_1_forwards_and_backwards():
    above, below, *_ = plots.idle_blocks(pipeline(4, 8)).axes
    for axes, ends in ((above, 33), (below, 9)):
        idle = [box for words in IDLE_PIECES for box in boxes(axes, words)]
        assert sum(width for _, _, width, _ in idle) == 4 * (4 - 1) * (1 + 2)
        assert max(x + width for x, _, width, _ in idle) == ends
    assert "9 s on each device, 36 s together" in below.get_title(loc="left")


@pytest.mark.parametrize("colour", [*PALETTE, "white", "black"])
def test_ink_has_the_contrast_that_small_text_needs(colour):
    from matplotlib.colors import to_rgb

    def luminance(c):
        r, g, b = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(c))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    dark, light = sorted((luminance(colour), luminance(ink_on(colour))))
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_an_array_is_drawn_as_the_parts_that_ranks_have():
    figure = plots.placements({"forward": FORMULA}, 4)
    drawn = figure.axes[0].collections
    gids = [each.get_gid() for each in drawn for _ in each.get_paths()]
    assert [gids.count(f"rank {rank}: {n}") for rank, n in enumerate((32, 32, 32, 31))] == [3] * 4
    assert [gids.count(f"partial {rank}") for rank in range(4)] == [1] * 4
    assert gids.count("whole") == 2
    assert {"24 x 32", "32 x 127", "127 x 32"} <= set(words(figure))
    collective = next(t for t in figure.axes[0].texts if t.get_text() == "all_reduce")
    assert collective.get_color() == plots.RED
