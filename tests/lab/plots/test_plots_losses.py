"""Figures of trainings: what they draw is what was counted, and every word can be read.

Holds `tiledask.lab.plots.training.layers_traffic`, `tiledask.lab.plots.training.live`,
`tiledask.lab.plots.training.losses`, `tiledask.lab.plots.training.rank_grid`,
`tiledask.lab.plots.training.rank_groups` and `tiledask.lab.plots.training.time_lost`,
`tiledask.lab.plots.ranges`.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from jupyter_client.manager import start_new_kernel
from oracles.figures import clipped, drawn_texts, overlaps

import tiledask as td
from tiledask.distributed.training import Progress
from tiledask.errors import ConfigError
from tiledask.lab import plots
from tiledask.lab.plots.style import INK
from tiledask.lab.plots.training import live
from tiledask.lab.plots.training.layers_traffic import PARTS, layer_bars
from tiledask.lab.precision.drift import SAFETY, likely

TEXT = td.load_text("tales")
MODEL = td.GPT(TEXT.vocabulary, hidden=8, layers=2, heads=2, sequence=8)


@pytest.fixture(scope="module")
def trained():
    options = {"steps": 3, "batch": 4, "microbatches": 2, "progress": False, "clip": 1.0}
    shapes = {(1, 1, 1): 0, (2, 2, 2): 3}
    return {
        shape: td.train(MODEL, TEXT, shape, zero=zero, **options) for shape, zero in shapes.items()
    }


def curve(n=30, off=0.0, first=0):
    steps = np.arange(first, n)
    return SimpleNamespace(losses=4 * 0.95**steps * (1 + off * np.sin(steps)), first=first)


def deep(layers: int):
    """Layers of a large model, as `Trained.layers` gives them."""
    import pandas as pd

    index = [(f"layer {n}/mlp/w_2", w) for n in range(layers) for w in ("forward", "backward")]
    columns = {"parallel": "tensor", "calls": 1, "seconds": 0.1}
    for what, number in (("barriers", 4), ("bytes", 10**9), ("messages", 8)):
        columns |= {what: number, f"predicted_{what}": number}
    names = pd.MultiIndex.from_tuples(index, names=["layer", "when"])
    frame = pd.DataFrame(columns, index=names)
    return SimpleNamespace(layers=lambda: frame)


def told(n, floor=0.1419):
    losses = [4 * 0.95**i for i in range(n)]
    return [Progress(i, 30, loss, 0.01, 4096, 10, 1, 1, floor) for i, loss in enumerate(losses)]


VALLEY = {k: 0.5 / k + k / 200 for k in (1, 2, 4, 8, 40, 2_000)}
HIGHER = {k: 1.1 * y for k, y in VALLEY.items()}
OF_EIGHT = {"dtype": "bfloat16", "ranks": 8, "layers": 24}
FIGURES = {
    "losses, one": lambda t: plots.losses({"one rank": t[1, 1, 1]}),
    "losses, two": lambda t: plots.losses(
        {str(shape): run for shape, run in t.items()}, floor=TEXT.floor, dtype="float32"
    ),
    "losses, equal": lambda t: plots.losses({"first": curve(), "again": curve()}),
    "losses, many": lambda t: plots.losses(
        {f"dp={n}, tp=2, pp=2": curve(off=n * 1e-7) for n in range(7)}, floor=0.5, **OF_EIGHT
    ),
    "losses, a step": lambda t: plots.losses({"one": [2.5], "two": [2.5000001]}),
    "losses, controls": lambda t: plots.losses(
        {"one device": curve(), "split": curve(off=1e-6)},
        controls=[curve(off=n * 1e-4) for n in range(3)],
        **OF_EIGHT,
    ),
    "losses, lost": lambda t: plots.losses({"one": [2.5, 2.4], "two": [2.5, np.inf]}),
    "losses, later": lambda t: plots.losses({"one": curve(), "later": curve(40, first=20)}),
    "live, nothing": lambda t: plots.LiveLoss().figure(),
    "live, a step": lambda t: live._drawn(told(1), ""),
    "live, more": lambda t: live._drawn(told(25), "GPT, 8 ranks"),
    "live, no floor": lambda t: live._drawn(told(30, None), ""),
    "time lost": lambda t: plots.time_lost(
        {
            "first order (Young)": VALLEY,
            "whole sum (Daly)": HIGHER,
        },
        {"simulated: 1,000 draws": VALLEY, "run": {2: 0.3}},
        best={"the square root": 8.0},
    ),
    "time lost, flat": lambda t: plots.time_lost({"formula": {1: 0.5, 2: 0.49, 900: 0.6}}),
    "curves": lambda t: plots.curves(
        {"within": {8: 1e-4, 4096: 3e-4}, "between": {8: 1e-4, 4096: 9e-4}},
        xlabel="bytes",
        ylabel="seconds",
    ),
    "curves, marks": lambda t: plots.curves(
        {"scale": {0: 24, 1: 23, 2: 22}},
        marks={"left out": {0: 24}},
        log="",
        xlabel="step",
        ylabel="power of two",
    ),
    "ranges": lambda t: plots.ranges(
        {"float32": (-149, 128), "float16": (-24, 16)}, x="power of two", points={"float16": 0}
    ),
    "ranges, limit": lambda t: plots.ranges(
        {"one copy": (0, 25_000), "sum": (0, 100_000)}, x="value", limit=("largest", 65_504)
    ),
    "layers": lambda t: plots.layers_traffic(t[2, 2, 2]),
    "layers, many": lambda t: plots.layers_traffic(deep(96)),
    "layers, of each": lambda t: plots.layers_traffic({str(shape): t[shape] for shape in t}),
    "grid": lambda t: plots.rank_grid(MODEL, (2, 2, 2)),
    "grid, one copy": lambda t: plots.rank_grid(MODEL, (1, 3, 2), title="Six ranks"),
    "grid, copies": lambda t: plots.rank_grid(MODEL, (4, 1, 1)),
}


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("name", FIGURES)
def test_every_word_can_be_read(name, trained):
    figure = FIGURES[name](trained)
    drawn = drawn_texts(figure)
    assert drawn
    assert not clipped(figure, drawn, by=1)
    for axes in figure.axes:  # a layout without room for the words lets the axes collapse
        assert axes.get_window_extent().height > 60, f"no room for {axes.get_title(loc='left')!r}"
    assert not overlaps(drawn)


def test_charts_are_where_their_numbers_are():
    series = {"scale": {1: 23, 2: 24}}
    (axes,) = plots.curves(series, marks={"out": {2: 24}}, xlabel="step", ylabel="y", log="x").axes
    drawn = {line.get_gid(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert drawn == {"scale": [[1, 23], [2, 24]], "out": [[2, 24]]}
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    bars = {"A": (1, 3), "B": (0, 2)}
    (axes,) = plots.ranges(bars, x="s", points={"B": 1.5}, limit=("end", 4)).axes
    assert [(p.get_x(), p.get_x() + p.get_width()) for p in axes.patches] == [*bars.values()]
    assert [line.get_xdata()[0] for line in axes.get_lines()] == [1.5, 4]
    (axes,) = plots.ranges({"A": (0, 100_000)}, x="bytes").axes
    assert axes.xaxis.get_major_formatter()(25_000, 0) == "25,000"


def lines(axes):
    return {line.get_label().partition(":")[0]: line for line in axes.get_lines()}


@pytest.mark.long
def test_the_band_holds_all_controls_and_so_a_split_that_parts_no_farther():
    """With one of them alone, a run that parts as another control does looks faulty."""
    alone, near, far = curve(), curve(off=1e-7), curve(off=1e-3)
    split = {"one device": alone, "split": curve(off=5e-4)}
    steps, both = range(len(alone.losses)), np.array([near.losses, far.losses])
    apart = abs(alone.losses - far.losses) / np.maximum(alone.losses, far.losses)
    for controls in ([near, far], [far, near]):
        figure, heights = plots.losses(split, controls=controls), []
        for axes in figure.axes:
            (band,) = (c for c in axes.collections if c.get_gid() == "controls")
            corners = band.get_paths()[0].vertices
            heights.append([corners[corners[:, 0] == step, 1] for step in steps])
        above, below = heights
        assert [h.max() for h in above] == both.max(axis=0).tolist()
        assert [h.min() for h in above] == both.min(axis=0).tolist()
        assert [h.max() for h in below] == pytest.approx(apart)
        dots = dict(zip(*lines(figure.axes[1])["split"].get_data(), strict=True))
        assert all(dots[n] <= below[int(n)].max() for n in dots)


def test_losses_and_differences_are_drawn():
    first, second = curve(), curve(off=1e-6)
    figure = plots.losses({"one": first, "two": second}, floor=0.5)
    above, below = figure.axes
    for name, run in (("one", first), ("two", second)):
        assert lines(above)[name].get_ydata().tolist() == run.losses.tolist()
    assert lines(above)["best"].get_ydata() == [0.5, 0.5]
    off = np.abs(first.losses - second.losses) / np.maximum(first.losses, second.losses)
    drawn = lines(below)["two"]
    assert drawn.get_xdata().tolist() == np.flatnonzero(off).tolist()
    assert drawn.get_ydata().tolist() == off[off > 0].tolist()
    assert below.get_yscale() == "log"
    assert drawn.get_label() == f"two:\nat most {off.max():.1e}"


def test_of_two_equal_differences_both_are_seen_where_steps_are_few():
    runs = {"one": curve(30), "two": curve(30, 1e-6), "three": curve(30, 1e-6)}
    two, three = (lines(plots.losses(runs).axes[1])[name] for name in ("two", "three"))
    assert two.get_marker() != three.get_marker()
    assert two.get_fillstyle() == three.get_fillstyle() == "none"
    many = lines(plots.losses({"one": curve(300), "two": curve(300, 1e-6)}).axes[1])["two"]
    assert many.get_markersize() < two.get_markersize()


@pytest.mark.long
def test_the_envelope_is_that_of_the_theory(trained):
    runs = {str(shape): run for shape, run in trained.items()}
    below = plots.losses(runs, dtype="float32").axes[1]
    line = lines(below)[f"envelope, {SAFETY:g} x random walk\n(8 ranks, 2 layers)"]
    expected = [SAFETY * likely(n, "float32", 8, 2) for n in (1, 2, 3)]
    assert line.get_ydata().tolist() == pytest.approx(expected)
    assert not below.collections  # no band: nothing was run as a control
    (points,) = [each for name, each in lines(below).items() if name == "(2, 2, 2)"]
    assert (points.get_ydata() < expected[-1]).all()


def test_the_first_step_outside_of_the_envelope_is_marked():
    runs = {"one": curve(), "near": curve(off=1e-9), "far": curve(off=1e-2)}
    apart = abs(runs["one"].losses - runs["far"].losses) / runs["far"].losses
    said = {"dtype": "float32", "ranks": 2, "layers": 2}
    inside = [SAFETY * likely(n + 1, *said.values()) for n in range(len(apart))]
    first = int((apart > inside).argmax())
    (line,) = [
        each
        for name, each in lines(plots.losses(runs, **said).axes[1]).items()
        if name == "first outside"
    ]
    assert line.get_xdata() == [first, first]
    del runs["far"]
    assert "first outside" not in lines(plots.losses(runs, **said).axes[1])


def test_losses_that_lie_on_one_line_are_drawn_lower():
    def heights(off):
        above, _ = plots.losses({"one": curve(), "two": curve(off=off)}).axes
        return above.get_gridspec().get_height_ratios()

    assert heights(0.5)[0] == heights(0.5)[1] > 1.9 * heights(1e-6)[0]


@pytest.mark.long
def test_steps_are_compared_by_their_numbers():
    below = plots.losses({"one": curve(), "later": curve(40, 1e-6, first=20)}).axes[1]
    assert set(lines(below)["later"].get_xdata()) <= set(range(20, 30))
    below = plots.losses({"one": curve(5), "later": curve(9, first=6)}).axes[1]
    assert "no step in common" in below.get_legend().get_texts()[0].get_text()


@pytest.mark.parametrize("runs", [{}, {"none": []}, {"a": [], "b": []}])
def test_no_losses_are_refused(runs):
    with pytest.raises(ConfigError, match=f"1 step or more, got {len(runs)} runs with 0 steps"):
        plots.losses(runs)


@pytest.mark.parametrize(
    ("takes", "every", "least", "most"), [(0.0, 0.06, 4, 9), (1.0, 1.0, 1, 8)], ids=["fast", "slow"]
)
def test_it_is_drawn_now_and_then_and_rarely_if_it_takes_long(
    monkeypatch, takes, every, least, most
):
    """Four times a second; a fifth of the time, not half of it; and at the end."""
    now, drawn = [0.0], []

    def update(what):
        now[0] += takes
        drawn.append(len(what.steps))

    monkeypatch.setattr(live, "monotonic", lambda: now[0])
    monkeypatch.setattr(live, "_shown", lambda what: SimpleNamespace(update=update))
    with plots.LiveLoss() as drawing:
        for step in told(30):
            drawing(step)
            now[0] += every
    assert drawn[-1] == 30
    assert least <= len(drawn) <= most


@pytest.mark.long
def test_outside_of_notebooks_nothing_is_shown(capfd):
    drawing = plots.LiveLoss()
    trained = td.train(MODEL, TEXT, (1, 1, 2), steps=3, batch=2, progress=drawing)
    assert [step.loss for step in drawing.steps] == trained.losses.tolist()
    assert capfd.readouterr() == ("", "")
    line = lines(drawing.figure().axes[0])["loss"]
    assert line.get_ydata().tolist() == trained.losses.tolist()
    td.train(MODEL, TEXT, (1, 1, 1), steps=2, batch=2, progress=drawing)
    assert len(drawing.steps) == 2  # a new training is a new curve


def test_the_best_loss_and_the_speed_are_said():
    axes = live._drawn(told(25), "").axes[0]
    assert axes.get_title(loc="left") == f"step 25 of 30, loss {4 * 0.95**24:.4f}, 409,600 tokens/s"
    assert "best loss there is: 0.1419" in [t.get_text() for t in axes.texts]
    assert not live._drawn(told(25, None), "").axes[0].texts


IN_A_CELL = """
import tiledask as td
from tiledask.lab import plots
text = td.load_text("tales")
model = td.GPT(text.vocabulary, hidden=8, layers=1, heads=2, sequence=8)
live = plots.LiveLoss()
trained = td.train(model, text, (1, 2, 1), steps=5, batch=2, progress=live)
"""


@pytest.mark.cluster
def test_in_a_notebook_one_figure_is_drawn_again_in_place():
    manager, client = start_new_kernel(startup_timeout=240)
    said = []
    try:
        reply = client.execute_interactive(IN_A_CELL, timeout=240, output_hook=said.append)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply["content"]
    shown = [m for m in said if m["msg_type"] in ("display_data", "update_display_data")]
    kinds = [m["msg_type"] for m in shown]
    assert kinds == ["display_data", *["update_display_data"] * (len(kinds) - 1)]
    assert len(kinds) >= 2
    assert len({m["content"]["transient"]["display_id"] for m in shown}) == 1
    assert {m["parent_header"]["msg_id"] for m in shown} == {reply["parent_header"]["msg_id"]}
    first, last = (m["content"]["data"]["image/png"] for m in (shown[0], shown[-1]))
    assert first != last
    assert not [m for m in said if m["msg_type"] == "stream"]


@pytest.mark.long
def test_bars_are_the_frame(trained):
    run = trained[2, 2, 2]
    figure, frame = plots.layers_traffic(run), run.layers()
    for axes, what in zip(figure.axes, ("bytes", "barriers"), strict=True):
        patches = [p for p in axes.patches if p.get_gid() in PARTS]
        (ticks,) = [c for c in axes.collections if c.get_gid() == "predicted"]
        ends = [segment[0][0] for segment in ticks.get_segments()]
        assert sum(ends) == frame[f"predicted_{what}"].sum() == frame[what].sum()
        for row, end in enumerate(ends):
            assert end == sum(p.get_width() for p in patches if round(p.get_y() + 0.36) == row)
    assert "counted equals predicted" in figure.get_suptitle()


def test_a_bar_that_is_not_as_predicted_is_said():
    made = deep(3)
    made.layers().iloc[0, 4] += 1
    assert "1 bar not as predicted" in plots.layers_traffic(made).get_suptitle()


@pytest.mark.long
def test_a_bar_for_each_training_is_its_bytes_and_the_barriers_of_its_busiest_rank(trained):
    run = trained[2, 2, 2]
    figure, step = plots.layers_traffic({"run": run, "again": run}), run.to_frame().iloc[0]
    for axes, wanted in zip(figure.axes, (step.bytes_sent, step.barriers), strict=True):
        (ticks,) = [c for c in axes.collections if c.get_gid() == "predicted"]
        assert [segment[0][0] for segment in ticks.get_segments()] == [wanted, wanted]
        patches = [p for p in axes.patches if p.get_gid() in PARTS]
        assert sum(p.get_width() for p in patches) == 2 * wanted
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["run", "again"]
    assert figure.get_suptitle() == "Bytes and barriers by training: counted equals predicted"


def test_one_rank_has_nothing_to_draw(trained):
    with pytest.raises(ConfigError, match=r"2 ranks or more .* have 0 collectives"):
        plots.layers_traffic(trained[1, 1, 1])


def test_parts_of_a_layer():
    rows = [
        ("layer 0/mlp/w_2", "forward", "tensor", 4, 4),
        ("layer 0", "gradients", "data", 1, 2),
        ("stages 0-1", "backward", "pipeline", 0, 0),
        ("all layers", "norm", "all ranks", 1, 1),
    ]
    bars = layer_bars(rows)
    assert bars.rows == ("layer 0", "stages 0-1", "all layers")
    assert bars.parts == {
        "tensor, forward": [4, 0, 0],
        "data, gradients": [1, 0, 0],
        "all ranks": [0, 0, 1],
    }
    assert bars.predicted == [6, 0, 1]
    assert INK not in {colour for colour, _ in PARTS.values()}  # that of what is predicted


def test_what_is_lost_is_drawn_where_it_is_and_nothing_at_zero():
    axes = plots.time_lost({"formula": VALLEY}, {"run": {2: 0.3}}, best={"root": 10.0}).axes[0]
    found = lines(axes)
    assert dict(zip(*found["formula"].get_data(), strict=True)) == VALLEY
    assert [*found["run"].get_xydata()[0]] == [2, 0.3]
    assert found["root"].get_xdata() == [10.0, 10.0]
    assert axes.get_xlabel() == "steps from one save to the next"
    two = lines(plots.time_lost({"A": VALLEY, "B": {**VALLEY}}).axes[0])
    assert [two[name].get_linestyle() for name in "AB"] == ["-", "--"]
    timed = plots.time_lost({"formula": VALLEY}, unit="seconds").axes[0]
    assert timed.get_xlabel() == "seconds from one save to the next"
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    with pytest.raises(ConfigError, match="1 curve or more of 1 point or more"):
        plots.time_lost({"formula": {}})
    with pytest.raises(ConfigError, match="steps and shares above 0"):
        plots.time_lost({"formula": {1: 0.0}})
    with pytest.raises(ConfigError, match="1 line or more"):
        plots.curves({"run": {}}, xlabel="step", ylabel="loss")
    with pytest.raises(ConfigError, match="no smaller"):
        plots.ranges({"plan": (2, 1)}, x="s")


@pytest.mark.parametrize(
    ("shape", "hosts", "across"),
    [
        ((2, 2, 2), "", {"dp": 0, "tp": 0, "pp": 0}),
        ((1, 2, 2), "AABB", {"tp": 2, "pp": 0}),
        ((1, 2, 2), "ABAB", {"tp": 0, "pp": 2}),
        ((2, 4, 1), "AABBAABB", {"dp": 0, "tp": 2}),
    ],
)
def test_a_group_is_a_line_through_its_ranks_red_where_it_lies_on_several_hosts(
    shape, hosts, across
):
    figure = plots.rank_groups(shape, hosts=hosts)
    top, *panels = figure.axes
    at = {text.get_text(): text.get_position()[0] for text in top.texts}
    assert [axes.get_ylabel() for axes in panels] == list(across)
    for axes in panels:
        groups = axes.get_lines()
        axis = ("dp", "tp", "pp").index(axes.get_ylabel())
        found = sorted(sorted(line.get_xdata()) for line in groups)
        grid = np.moveaxis(np.arange(np.prod(shape)).reshape(shape), axis, -1)
        ranks = grid.reshape(-1, shape[axis]).tolist()
        assert found == sorted(sorted(at[f"rank {r}"] for r in group) for group in ranks)
        assert sum(line.get_gid() == "across" for line in groups) == across[axes.get_ylabel()]
        rows = [(line.get_ydata()[0], *sorted(line.get_xdata())) for line in groups]
        for y, *xs in rows:  # no other group of this row begins within it
            assert not any(y == other and xs[0] < x[0] <= xs[-1] for other, *x in rows)
    drawn = drawn_texts(figure)
    assert not clipped(figure, drawn, by=1)
    assert not overlaps(drawn)


def test_groups_on_hosts_in_two_ways_are_side_by_side():
    figure = plots.rank_groups((1, 2, 2), hosts={"in order": "AABB", "tp inside": "ABAB"})
    axes = np.array(figure.axes).reshape(3, 2)
    assert [top.get_title(loc="left") for top in axes[0]] == ["in order", "tp inside"]
    across = [[line.get_gid() for line in each.get_lines()] for each in axes[1:].flat]
    assert across == [["across"] * 2, ["within"] * 2, ["within"] * 2, ["across"] * 2]
    drawn = drawn_texts(figure)
    assert not clipped(figure, drawn, by=1)
    assert not overlaps(drawn)


def test_boxes_too_narrow_for_the_word_rank_have_it_beside_them():
    hosts = {"dp across": "AAAABBBB", "pp across": "ABABABAB"}
    figure = plots.rank_groups((2, 2, 2), hosts=hosts)
    for top in figure.axes[:2]:
        assert top.get_ylabel() == "rank"
        words = {text.get_text() for text in top.texts} - {"A", "B"}
        assert words == {str(rank) for rank in range(8)}
    drawn = drawn_texts(figure)
    assert not clipped(figure, drawn, by=1)
    assert not overlaps(drawn)


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 3, 2), (4, 1, 1)])
def test_the_grid_joins_the_ranks_of_each_group(shape):
    """A frame holds the ranks of a group of tp, a line joins those along dp, or two stages."""
    (axes,) = plots.rank_grid(MODEL, shape).axes
    boxes = {p.get_gid(): p.get_bbox() for p in axes.patches if p.get_gid() != "tp"}
    at = {int(name.removeprefix("rank ")): box for name, box in boxes.items()}
    grid = np.arange(np.prod(shape)).reshape(shape)
    assert sorted(at) == sorted(grid.flat)
    frames = [p.get_bbox() for p in axes.patches if p.get_gid() == "tp"]
    held = [[r for r, box in at.items() if frame.fully_overlaps(box)] for frame in frames]
    wanted = np.moveaxis(grid, 1, -1).reshape(-1, shape[1]).tolist()
    assert sorted(held) == sorted(wanted if shape[1] > 1 else [])
    for axis, kind in ((0, "dp"), (2, "pp")):
        found = [
            [next(r for r, box in at.items() if box.contains(*point)) for point in xy]
            for xy in (x.get_xydata() for x in axes.get_lines() if x.get_gid() == kind)
        ]
        groups = np.moveaxis(grid, axis, -1).reshape(-1, shape[axis]).tolist()
        assert sorted(found) == sorted(groups if shape[axis] > 1 else [])
    for stage in range(shape[2]):
        units = ", ".join(MODEL.stage_units(stage, MODEL.even_cut(shape[2])))
        said = [" ".join(text.get_text().split()) for text in axes.texts]
        assert sum(words.endswith(units) for words in said) == shape[0] * shape[1]


def test_groups_of_names_or_hosts_that_are_too_few_are_refused():
    with pytest.raises(ConfigError, match="a name for each of 2 axes and a host for each of 4"):
        plots.rank_groups((2, 2), ("tp",))
    with pytest.raises(ConfigError, match="got 2 names and 3 hosts"):
        plots.rank_groups((2, 2), ("tp", "pp"), "AAB")
