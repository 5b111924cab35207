"""Figures: every word inside the picture and no word upon another, also of large ones; what is
drawn is what was computed: boxes are as long as actions, bars as bytes."""

import base64
import io
import json

import numpy as np
import pytest
from oracles.figures import clipped, crossed, drawn_texts, overlaps, places, words
from PIL import Image, ImageChops

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab import plots, sweep
from tiledask.lab.plots.bars import PARTS
from tiledask.lab.plots.timelines import boxes_of
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import CAUSES, Timeline
from tiledask.plan.products.placement import Partial, Replicate, Shard, Tiling
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.units import format_seconds

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
    return td.memory_over_time(timeline, devices / timeline.schedule.stages)


def dense(ranks: int) -> Traffic:
    every = [(i, j, 123_456_789 * (i + j)) for i in range(ranks) for j in range(ranks)]
    return Traffic.of(ranks, every)


def steps(model: str, cluster: str, batch: int, sequence: int) -> dict:
    """The best plan of each (tp, pp), five at most."""
    best = {}
    for plan in td.search(model, cluster, batch, sequence=sequence)[:200]:
        best.setdefault((plan.layout.tp, plan.layout.pp), plan)
    return {str(plan.layout): plan.step for plan in [*best.values()][:5]}


def stages(layout: td.Layout):
    fit = td.fits("llama-3.1-405b", layout, "1008xH100")
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
    Row(place, tensor, ALWAYS, 400 * GB) for place in range(4) for tensor in ("weights", "variance")
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
    "gantt, 8 x 32 in a V": lambda: plots.gantt(sweep.same_work("zb-v", 8, 32)),
    "gantt, a part": lambda: plots.gantt(sweep.same_work("zb-v", 8, 32), between=(10, 30)),
    "gantt of every cause": lambda: plots.gantt(EVERY_CAUSE, sweep.same_work("zb-v", 4, 8)),
    "memory timeline": lambda: plots.memory_timeline(
        {n: held(n, 4, 8) for n in ("gpipe", "1f1b", "zb-v")}, unit="activations"
    ),
    "slots": lambda: plots.slots(STAYS, title="A worker dies"),
    "memory": lambda: plots.memory_bars({"full copy": FULL, "split": SPLIT}, 40 * GB),
    "memory, by hand": lambda: plots.memory_bars({"mine": {"weights": 2, "gradients": 4}}),
    "memory, 63": lambda: stages(td.Layout(pp=63, tp=8, dp=2, microbatches=126)),
    "step": lambda: plots.step_breakdown(steps("mixtral-8x7b", "32xH100", 256, 4096)),
    "curves": lambda: plots.curves(SPREAD, xlabel="n", ylabel="seconds", title="n x n x n"),
    "curves, marks": lambda: plots.curves(
        {"scale": {0: 24, 1: 23}}, marks={"out": {0: 24}}, log="", xlabel="step", ylabel="power"
    ),
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
    "traffic": lambda: plots.traffic_matrix({"ring": RING, "and more": RING + dense(4)}),
    "traffic, 40": lambda: plots.traffic_matrix({"dense": dense(40)}),
}


@pytest.mark.few(12)
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_title_and_every_word_can_be_read(name):
    figure = FIGURES[name]()
    texts = drawn_texts(figure)
    assert len(texts) >= 3
    assert not clipped(figure, texts, by=1)
    assert not overlaps(texts)
    assert not crossed(figure, texts)
    assert figure.get_suptitle() or name.startswith("curves")
    for axes in figure.axes:  # a layout without room for the words lets the axes collapse
        assert axes.get_window_extent().height > 25


def test_a_notebook_shows_a_figure_that_no_setting_changes_and_that_changes_no_setting():
    import matplotlib as mpl

    figure = FIGURES["slots"]()
    png, size = figure._repr_png_()
    assert (png[:4], int.from_bytes(png[16:20])) == (b"\x89PNG", 960)
    assert size == {"width": 640}
    expected = FIGURES["slots"]().to_png()
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert FIGURES["slots"]().to_png() == expected
        assert mpl.rcParams["font.size"] == 30
    assert repr(figure) == "Figure: A worker dies | time (s)"  # what it shows, for those who listen


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.gantt(pipeline(1, 1), titles=["a", "b"]), "2 titles"),
        (lambda: plots.memory_bars(Ledger.of([])), "got 0"),
        (lambda: plots.traffic_matrix({"a": RING, "b": Traffic.of(3)}), "'b': 3"),
        (lambda: plots.slots({"slot 0": [("nap", 2, 1)]}), "ends after it begins"),
        (lambda: plots.curves({"a": {0: 1}}, xlabel="n", ylabel="s"), "above 0"),
        (lambda: plots.corner(*(cut((4, 5), S0, S1) for _ in "XAY")), "m x k by k x n"),
        (lambda: plots.tile_step(13, 11, 9, 4, (0, 3, 0)), "begins beyond 13 x 11 x 9"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def draw(m, p=4):
    if m == 3:
        raise ConfigError("m = 3 has no picture; take 1 or 2")
    return plots.slots({"slot 0": [("nap", 0, m)]}, title=f"m = {m}, p = {p}")


def test_a_slider_that_is_moved_draws_anew_and_what_is_refused_is_said():
    shown = plots.sliders(draw, {"m": 2}, m=[1, 2, 3], p=[4, 8])
    m, p, words, image = shown.children
    first = image.value
    assert (m.value, p.value, first) == (2, 4, draw(2)._repr_png_()[0])
    p.value = 8
    assert image.value == draw(2, 8)._repr_png_()[0] != first
    m.value = 3
    assert words.value == "m = 3 has no picture; take 1 or 2"
    assert image.layout.visibility == "hidden"
    m.value = 1
    assert (words.value, image.layout.visibility) == ("", "visible")


def test_a_page_without_python_has_the_figure_of_every_choice(monkeypatch):
    def stored():
        script = plots.sliders(draw, {"m": 2}, m=[2, 3], p=["a", "b"]).data
        return json.loads(script.split(">", 1)[1].partition("<")[0])  # no other tag is in it

    monkeypatch.setenv("TILEDASK_FRAMES", "4")
    page = stored()
    assert page["choices"] == {"m": ["2", "3"], "p": ["a", "b"]}
    assert page["start"] == [0, 0]
    images = [Image.open(io.BytesIO(base64.b64decode(f))) for f, _, _ in page["frames"][:2]]
    for p, image in zip("ab", images, strict=True):
        png = Image.open(io.BytesIO(draw(2, p).to_png()))
        assert ImageChops.difference(image.convert("RGB"), png.convert("RGB")).getbbox() is None
    assert page["frames"][2:] == [["", 0, "m = 3 has no picture; take 1 or 2"]] * 2
    monkeypatch.setenv("TILEDASK_FRAMES", "3")
    assert stored()["frames"] == []


# -- what is drawn -------------------------------------------------------------------------------


def test_a_timeline_is_a_box_for_each_action_piece_of_idle_time_and_transfer():
    timeline = pipeline(3, 4)
    boxes = boxes_of(timeline)

    def of(gid):
        found = (box.at for box in boxes if box.gid == gid)
        return sorted((round(y), x, pytest.approx(wide)) for x, y, wide, _ in found)

    idle = timeline.idle_time
    rows = {f"{kind}0": (timeline, timeline.kind == kind) for kind in "FB"}
    rows |= {cause: (idle, idle.code == number) for number, cause in enumerate(CAUSES)}
    for gid, (all_of, some) in rows.items():
        columns = all_of.device, all_of.start, all_of.end - all_of.start
        assert of(gid) == sorted(zip(*(c[some].tolist() for c in columns), strict=True))
    assert len(of("T")) == (timeline.kind == "T").sum() == 16
    below = [(b.at[1] % 1, (b.at[1] + b.at[3]) % 1) for b in boxes if b.gid == "T"]
    assert all(top > 0.36 and bottom < 0.5 for top, bottom in below)
    stages = {box.gid for box in boxes_of(EVERY_CAUSE, causes=False)}
    assert stages == {"F0", "B0", "T", "idle", "transfer", "overhead"}


def test_a_forward_and_a_backward_at_once_share_the_lane():
    ends = [(d, i, 3.0 * i + d) for d in range(2) for i in range(3)]
    pairs = [(d, *of, i, at, at + 3) for d, i, at in ends for of in (("F", d), ("B", 3 - d))]
    boxes = boxes_of(Timeline.of(2, pairs))
    above, below = ([box.at for box in boxes if box.gid == gid] for gid in ("F0", "B1"))
    assert len(above) == len(below) == 6
    for (x, y, wide, high), box in zip(above, below, strict=True):
        assert (x, y + high, wide, 0.36) == pytest.approx(box)


def test_gantt_numbers_of_many_actions_are_there_and_in_their_box():
    timeline = sweep.same_work("1f1b", 6, 6)
    (axes,) = plots.gantt(timeline).axes
    at = [(t.get_position(), t.get_text()) for t in axes.texts]
    middles = (timeline.start + timeline.end) / 2
    assert sorted((round(x, 9), round(y), number) for (x, y), number in at) == sorted(
        (round(float(x), 9), int(d), str(i))
        for x, d, i in zip(middles, timeline.device, timeline.microbatch, strict=True)
    )
    across = axes.transData.transform([(0, 0), (1, 0)])[:, 0]
    widths = [text.get_window_extent().width for text in axes.texts]
    assert max(widths) <= 1.02 * 2 * np.ptp(across)  # F lasts 1 s, B 2 s
    uneven = plots.gantt(td.simulate(td.schedule("gpipe", 2, 4), forward=[21, 0.5], backward=0))
    drawn = [(*t.get_position(), t.get_text()) for t in uneven.axes[0].texts]
    assert drawn == [(21 * i + 10.5, 0, f"{i}") for i in range(4)]
    many = plots.gantt(pipeline(2, 300))
    assert not many.axes[0].texts
    assert "too narrow to number" in words(many)


def test_gantt_names_its_rows_and_says_how_long_each_device_idles():
    run = td.simulate(td.schedule("1f1b", 2, 2), latency=0.5)
    assert {"one", "two"} <= {*words(plots.gantt(run, lanes=["one", "two", "three"]))}
    (axes,) = plots.gantt(run, between=(1, 2)).axes
    assert axes.get_xlim() == (1, 2)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["device 0", "device 1"]
    shares = [
        f"{100 * idle / EVERY_CAUSE.makespan:.1f} % idle" for idle in EVERY_CAUSE.idle_per_device
    ]
    assert {*shares} <= {*words(plots.gantt(EVERY_CAUSE))}


def test_memory_timeline_draws_what_is_held_and_where_it_is_most():
    footprint = held("1f1b", 4, 8)
    figure = plots.memory_timeline({"1F1B": footprint}, unit="activations")
    (axes,) = figure.axes
    drawn = places(axes, "held")
    for x, y, wide, high in drawn:
        times, sizes = footprint.steps[round(y + high - 0.45)]
        size = sizes[np.searchsorted(times, x + wide / 2, side="right") - 1]
        assert high == pytest.approx(0.9 * size / 4)
    assert {round(y + high - 0.45) for _, y, _, high in drawn} == {0, 1, 2, 3}
    names = [f"device {d}: max {4 - d}" for d in range(4)]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == names


def test_memory_bars_are_the_bytes_of_the_fullest_moment_and_marked_over_the_capacity():
    (axes,) = plots.memory_bars(SPLIT, 40 * GB).axes
    for tensor in ("weights", "optimizer", "activations"):
        drawn = [w for _, _, w, _ in places(axes, tensor)]
        assert drawn == [SPLIT.by_tensor(place)[tensor] for place in SPLIT.places]
    ends = [x + w for x, _, w, _ in places(axes, "activations")]
    assert ends == list(SPLIT.per_place.values())
    assert [(x, w) for x, _, w, _ in places(axes, "over")] == [(40 * GB, 2 * GB)]
    (line,) = axes.lines
    assert list(line.get_xdata()) == [40 * GB] * 2
    assert not places(plots.memory_bars(SPLIT, 42 * GB).axes[0], "over")
    assert "42 GB: 105 % of capacity" in words(axes)
    every = plots.memory_bars({"small": {"A": GB}, "large": {"A": 7 * GB, "B": GB}}).axes
    assert [axes.get_xlim()[1] for axes in every] == [10 * GB, 1.25 * GB]


def test_the_parts_of_a_step_are_stacked_to_its_time():
    found = steps("gpt-200b", "160xA100-40GB", 160, 2048)
    (axes,) = plots.step_breakdown(found).axes
    rows = {}
    for part in PARTS:
        for x, y, width, _ in places(axes, part):
            rows.setdefault(round(y, 6), []).append((x, width, part))
    for row, step in zip((sorted(rows[y]) for y in sorted(rows)), found.values(), strict=True):
        assert {part: width for _, width, part in row} == pytest.approx(
            {part: getattr(step, part) for part in PARTS if getattr(step, part)}
        )
        ends = [x + width for x, width, _ in row]
        assert [x for x, *_ in row[1:]] == pytest.approx(ends[:-1])
        assert f"{format_seconds(step.total)}\nMFU {100 * step.mfu:.1f} %" in words(axes)


def test_a_line_of_many_points_has_no_dots_and_no_ticks():
    few, many = {1: 1, 60: 60}, {x: x for x in range(1, 61)}
    (axes,) = plots.curves({"few": few, "many": many}, xlabel="x", ylabel="y").axes
    assert [line.get_marker() for line in axes.lines] == ["o", "None"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "60"]
    marks = {"first": {2: 2}, "second": {50: 50}}
    (axes,) = plots.curves({"many": many}, xlabel="bytes", ylabel="y", marks=marks).axes
    assert {"1 B", "10 B"} <= {t.get_text() for t in axes.get_xticklabels()}
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["many"]
    assert {t.get_text(): t.xy for t in axes.texts} == {"first": (2, 2), "second": (50, 50)}


def test_an_array_is_drawn_as_the_parts_that_ranks_have():
    shared = td.collectives.shards.deal_heads(query=10, kv=2, ranks=4)[1]
    row = [*FORMULA, ("keys", (32, 2), td.Shard(1, shared))]
    figure = plots.placements({"forward": row}, 4)
    drawn = figure.axes[0].collections
    gids = [each.get_gid() for each in drawn for _ in each.get_paths()]
    assert [gids.count(f"rank {rank}: {n}") for rank, n in enumerate((32, 32, 32, 31))] == [3] * 4
    assert [gids.count(f"partial {rank}") for rank in range(4)] == [1] * 4
    assert (gids.count("whole"), gids.count("rank 2: all")) == (1, 1)
    holders = sum(len(ranks) for ranks, _ in shared.shared())
    assert sum(gid.startswith("shared") for gid in gids) == holders > 1
    assert {"24 × 32", "32 × 127", "127 × 32", "on several workers"} <= set(words(figure))
    (collective,) = (t for t in figure.axes[0].texts if t.get_text() == "all_reduce")
    assert collective.get_color() == plots.RED


def test_owners_are_drawn_to_scale():
    copies = cut((1001, 1024), Replicate(), S1)
    a, b = plots.owners({"A": cut((1001, 1024), S0, S1), "B": copies}).axes
    drawn = sorted(places(a, "block"), key=lambda at: at[1::-1])
    assert drawn == [(x, y, 512, h) for y, h in ((0, 501), (501, 500)) for x in (0, 512)]
    assert [t.get_text() for t in a.texts][::3] == ["worker 0\n501 × 512", "worker 3\n500 × 512"]
    assert [t.get_text() for t in b.texts] == [
        f"workers {r}\n1,001 × 512" for r in ("0, 2", "1, 3")
    ]
    assert (a.get_title(loc="left"), a.get_aspect()) == ("A, 1,001 × 1,024", 1)
    assert len({tuple(c.get_facecolor()[0]) for c in a.collections}) == 4


def test_a_corner_has_each_block_at_its_matrix_and_says_where_k_is_cut():
    figure = FIGURES["corner"]()
    (axes,) = figure.axes
    assert {h for *_, h in places(axes, "block")} == {300}
    assert len(places(axes, "block")) == 12
    assert "K, the summed index, is cut here" in words(figure)
    assert [len(c.get_paths()) for c in axes.collections if c.get_gid() == "k is cut"] == [1, 1]
    figure = FIGURES["corner, partial"]()
    assert len(places(figure.axes[0], "partial sum")) == 4
    assert len(places(figure.axes[0], "copies")) == 4
    assert "held by several workers" in words(figure)


def test_a_step_loads_one_tile_of_each_and_the_last_ones_are_smaller():
    figure = plots.tile_step(13, 11, 9, (5, 4, 4), (2, 2, 2), inner=2)
    gids = "needed of A", "loaded of A", "needed of B", "loaded of B", "made"
    outer, inner = (
        [[(high, wide) for *_, wide, high in places(axes, gid)] for gid in gids]
        for axes in figure.axes
    )
    assert outer == [[(3, 8)], [(3, 1)], [(8, 3)], [(1, 3)], [(3, 3)]]
    assert inner == [[], [(2, 1)], [], [(1, 2)], [(2, 2)]]
    (xs, ys) = zip(*(places(figure.axes[0], gid)[0][:2] for gid in gids), strict=True)
    assert (ys[0] == ys[1] == ys[4], xs[2] == xs[3] == xs[4]) == (True, True)
    assert (xs[1] - xs[0], ys[3] - ys[2]) == (8, 8)
    first = plots.tile_step(13, 11, 9, 4)
    pale = "loaded in the steps before"
    assert [pale in words(each) for each in (figure, first)] == [True, False]


def test_layers_lie_on_their_devices_and_crossings_are_red():
    (axes,) = plots.layers_on_devices({"round robin": [0, 1, 1, 0]}).axes
    assert [line.get_color() == plots.RED for line in axes.lines] == [True, False, True]
    assert sorted((round(x + 0.42), round(y + 0.36)) for x, y, *_ in places(axes, "")) == [
        (0, 0), (1, 1), (2, 1), (3, 0),
    ]  # fmt: skip
    assert axes.get_title(loc="left") == "round robin: 2 crossings"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["device 0", "device 1"]
    for place, entry in ([0, 0], "stays"), ([0, 1], "crossing:"):
        _, text = plots.layers_on_devices({"": place}).legends[0].get_texts()
        assert text.get_text().split()[0] == entry


def test_traffic_cells_are_the_bytes_and_hosts_are_told_apart():
    axes, on = plots.traffic_matrix({"ring": RING, "on": RING.on("AABB")}).axes
    np.testing.assert_array_equal(axes.images[0].get_array(), RING.bytes)
    numbers = [t.get_text() for t in axes.texts]
    assert (numbers.count("16.78\nMB"), numbers.count("·")) == (4, 4)
    assert not axes.lines
    across, down = (line for line in on.lines if line.get_gid() == "between hosts")
    assert ({*across.get_xdata()}, {*down.get_ydata()}) == ({1.5}, {1.5})
