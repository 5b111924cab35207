"""What figures draw is what was computed: boxes are as long as actions, bars as bytes."""

import numpy as np
import pytest
from lab.plots.test_plots import (
    EVERY_CAUSE,
    FORMULA,
    GB,
    PAIRS,
    RING,
    S0,
    S1,
    SPLIT,
    TIGHT,
    curve,
    cut,
    held,
    pipeline,
    plans,
    steps,
)
from oracles.figures import places, words

import tiledask as td
from tiledask.lab import plots, sweep
from tiledask.lab.plots.plans import PARTS, round_bytes
from tiledask.lab.plots.timelines import KINDS, boxes_of, chunks_of
from tiledask.plan.fitting.overhead import CUDA_CONTEXT
from tiledask.plan.pipelines.causes import CAUSES
from tiledask.plan.products.placement import Partial, Replicate
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.units import format_seconds


def test_a_timeline_is_a_box_for_each_action_piece_of_idle_time_and_transfer():
    timeline = pipeline(3, 4)
    boxes = boxes_of(timeline)

    def of(gid):
        found = (box.at for box in boxes if box.gid == gid)
        return sorted((round(y), x, pytest.approx(wide)) for x, y, wide, _ in found)

    for kind in "FB":
        rows = timeline.kind == kind
        columns = timeline.device, timeline.start, timeline.end - timeline.start
        assert of(f"{kind}0") == sorted(zip(*(c[rows].tolist() for c in columns), strict=True))
    idle = timeline.idle_time
    for number, cause in enumerate(CAUSES):
        rows = idle.code == number
        columns = idle.device, idle.start, idle.end - idle.start
        assert of(cause) == sorted(zip(*(c[rows].tolist() for c in columns), strict=True))
    assert len(of("T")) == (timeline.kind == "T").sum() == 16
    assert all(y % 1 > 0.36 and (y + high) % 1 < 0.5 for _, y, _, high in places_of(boxes, "T"))
    stages = {box.gid for box in boxes_of(EVERY_CAUSE, causes=False)}
    assert stages == {"F0", "B0", "T", "idle", "transfer", "overhead"}


def places_of(boxes, gid):
    return [box.at for box in boxes if box.gid == gid]


def test_a_forward_and_a_backward_at_once_share_the_lane():
    above, below = (places_of(boxes_of(PAIRS), gid) for gid in ("F0", "B1"))
    assert len(above) == len(below) == 6
    for (x, y, wide, high), (to, under, far, low) in zip(above, below, strict=True):
        assert (x, wide, y + high) == pytest.approx((to, far, under))
        assert high == low == pytest.approx(0.36)


def test_gantt_numbers_of_many_actions_are_there_and_in_their_box():
    timeline = sweep.same_work("1f1b", 8, 32)
    (axes,) = plots.gantt(timeline).axes
    at = [(t.get_position(), t.get_text()) for t in axes.texts]
    middles = (timeline.start + timeline.end) / 2
    assert sorted((round(x, 9), round(y), number) for (x, y), number in at) == sorted(
        (round(float(x), 9), int(d), str(i))
        for x, d, i in zip(middles, timeline.device, timeline.microbatch, strict=True)
    )
    across = axes.transData.transform([(0, 0), (1, 0)])[:, 0]
    for text in axes.texts:  # F lasts 1 s, B 2 s
        assert text.get_window_extent().width <= 1.02 * 2 * np.ptp(across)
    many = plots.gantt(pipeline(2, 300))
    assert not many.axes[0].texts
    assert "too narrow to number; see between=" in words(many)


def test_gantt_draws_the_path_that_decided_the_end_and_how_long_each_device_idles():
    run = td.simulate("1f1b", 2, 2, latency=0.5)
    figure = plots.gantt(run, path=True, lanes=["one", "two", "three"])
    assert {"the longest path", "one", "two"} <= {*words(figure)}
    (line,) = (line for line in figure.axes[0].lines if line.get_gid() == "path")
    times, rows = line.get_data()
    assert (times[0], times[-1]) == (0, run.makespan)
    assert sum(np.diff(rows) != 0) == 2
    assert plots.gantt(run, between=(1, 2)).axes[0].get_xlim() == (1, 2)
    shares = [
        f"{100 * idle / EVERY_CAUSE.makespan:.1f} % idle" for idle in EVERY_CAUSE.idle_per_device
    ]
    assert {*shares} <= {*words(plots.gantt(EVERY_CAUSE))}


def test_an_update_is_none_of_the_stages_of_its_device():
    """Where it came first, the device's one stage would be drawn as a later one, paler."""
    program = td.training_program(td.GPT(59, 16, 2, 4, 8), (1, 1, 2), batch=2)
    timeline = program.timeline(lambda kernel: 1.0)
    assert {"F", "B", "U"} <= set(timeline.kind)
    assert set(chunks_of(timeline).values()) == {0}
    said = words(plots.gantt(timeline))
    assert KINDS["U"][0] in said
    assert not any(text.startswith("paler") for text in said)


def test_memory_timeline_draws_what_is_held_and_where_it_is_most():
    footprint = held("1f1b", 4, 8)
    figure = plots.memory_timeline({"1F1B": footprint}, capacity=3, unit="activations")
    (axes,) = figure.axes
    drawn = {gid: places(axes, gid) for gid in ("held", "over")}
    for gid, found in drawn.items():
        for x, y, wide, high in found:
            size = footprint.at(round(y + high - 0.45), x + wide / 2)
            assert high == pytest.approx(0.9 * size / 4)
            assert (size > 3) == (gid == "over")
    assert {round(y + high - 0.45) for _, y, _, high in drawn["held"]} == {0, 1, 2, 3}
    names = [f"device {d + 1}, {4 - d}" for d in range(4)]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == names
    assert "over the capacity of 3" in words(figure)


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
    assert "42 GB: 2.1 times capacity" in words(plots.memory_bars(SPLIT, 20 * GB))
    every = plots.memory_bars({"small": {"A": GB}, "large": {"A": 7 * GB, "B": GB}}).axes
    assert [axes.get_xlim()[1] for axes in every] == [10 * GB, 1.25 * GB]


def test_the_parts_of_a_step_are_stacked_to_its_time():
    found = steps(TIGHT)
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


def test_a_cell_is_the_best_plan_that_has_this_tp_and_pp():
    found = plans(*TIGHT)
    (axes,) = plots.feasibility(found).axes
    columns, rows = (
        [int(t.get_text()) for t in side()] for side in (axes.get_xticklabels, axes.get_yticklabels)
    )
    texts = {tuple(round(z) for z in t.get_position()): t.get_text() for t in axes.texts}
    cells = {
        (round(x + 0.48), round(y + 0.36)): verdict
        for verdict in ("fits", "tight", "no")
        for x, y, *_ in places(axes, verdict)
    }
    best = {}
    for plan in found:  # the best is the first
        best.setdefault((plan.layout.tp, plan.layout.pp), plan)
    assert len(cells) == len(best)
    for (tp, pp), plan in best.items():
        at = columns.index(tp), rows.index(pp)
        assert cells[at] == plan.verdict
        first, second = texts[at].removeprefix("★ ").split("\n")
        over = plan.peak + CUDA_CONTEXT - found.cluster.device.memory_bytes
        assert first == (
            f"+{round_bytes(over)}" if plan.verdict == "no" else format_seconds(plan.seconds)
        )
        assert second == round_bytes(plan.peak)


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


def test_losses_and_their_differences():
    first, second = curve(), curve(off=1e-6)
    runs = {"one": first, "two": second}
    above, below = plots.losses(runs).axes
    drawn = {line.get_label().partition(":")[0]: line for line in above.get_lines()}
    assert [drawn[name].get_ydata().tolist() for name in runs] == [
        run.losses.tolist() for run in runs.values()
    ]
    off = np.abs(first.losses - second.losses) / np.maximum(first.losses, second.losses)
    (points,) = below.get_lines()
    assert points.get_xdata().tolist() == np.flatnonzero(off).tolist()
    assert points.get_ydata().tolist() == off[off > 0].tolist()
    assert points.get_label() == f"two:\nat most {off.max():.1e}"


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
    assert {"24 x 32", "32 x 127", "127 x 32", "on several ranks"} <= set(words(figure))
    collective = next(t for t in figure.axes[0].texts if t.get_text() == "all_reduce")
    assert collective.get_color() == plots.RED


def test_owners_are_drawn_to_scale():
    copies = cut((1001, 1024), Replicate(), S1)
    a, b = plots.owners({"A": cut((1001, 1024), S0, S1), "B": copies}).axes
    drawn = sorted(places(a, "block"), key=lambda at: at[1::-1])
    assert drawn == [(x, y, 512, h) for y, h in ((0, 501), (501, 500)) for x in (0, 512)]
    sizes = "501 x 512", "501 x 512", "500 x 512", "500 x 512"
    assert [t.get_text() for t in a.texts] == [f"rank {n}\n{s}" for n, s in enumerate(sizes)]
    assert [t.get_text() for t in b.texts] == [f"ranks {r}\n1,001 x 512" for r in ("0, 2", "1, 3")]
    assert a.get_title(loc="left") == "A, 1,001 x 1,024"
    assert a.get_aspect() == 1
    assert len({tuple(c.get_facecolor()[0]) for c in a.collections}) == 4


def test_a_corner_has_each_block_at_its_matrix_and_says_where_k_is_cut():
    figure = plots.corner(*(cut((600, 600), S0, S1) for _ in "XAY"))
    (axes,) = figure.axes
    assert {h for *_, h in places(axes, "block")} == {300}
    assert len(places(axes, "block")) == 12
    assert "K, the summed index, is cut here" in words(figure)
    assert [len(c.get_paths()) for c in axes.collections if c.get_gid() == "k is cut"] == [1, 1]
    partial = cut((90, 80), Replicate(), S1), cut((80, 70), Replicate(), S0)
    figure = plots.corner(*partial, cut((90, 70), Replicate(), Partial()))
    assert len(places(figure.axes[0], "partial sum")) == 4
    assert len(places(figure.axes[0], "copies")) == 4
    assert "held by several ranks" in words(figure)


def test_a_step_loads_one_tile_of_each_and_the_last_ones_are_smaller():
    figure = plots.tile_step(13, 11, 9, (5, 4, 4), (2, 2, 2), inner=2)
    gids = "needed of A", "loaded of A", "needed of B", "loaded of B", "made"
    outer, inner = (
        [[(high, wide) for *_, wide, high in places(axes, gid)] for gid in gids]
        for axes in figure.axes
    )
    assert outer == [[(3, 8)], [(3, 1)], [(8, 3)], [(1, 3)], [(3, 3)]]
    assert inner == [[], [(2, 1)], [], [(1, 2)], [(2, 2)]]
    needed_a, loaded_a, needed_b, loaded_b, made = (
        places(figure.axes[0], gid)[0][:2] for gid in gids
    )
    assert needed_a[1] == loaded_a[1] == made[1]  # the same rows, and the same columns
    assert needed_b[0] == loaded_b[0] == made[0]
    assert (loaded_a[0] - needed_a[0], loaded_b[1] - needed_b[1]) == (8, 8)
    assert "loaded now: 6 numbers, for 18 FLOP" in words(figure)


def test_layers_lie_on_their_devices_and_crossings_are_red():
    (axes,) = plots.layers_on_devices({"round robin": [0, 1, 1, 0]}).axes
    assert [line.get_gid() for line in axes.lines] == ["crossing", "stays", "crossing"]
    assert sorted((round(x + 0.42), round(y + 0.36)) for x, y, *_ in places(axes, "")) == [
        (0, 0), (1, 1), (2, 1), (3, 0),
    ]  # fmt: skip
    assert axes.get_title(loc="left") == "round robin: 2 crossings"


def test_traffic_cells_are_the_bytes_and_those_that_differ_are_framed():
    for axes in plots.traffic_matrix(RING, RING).axes[:2]:
        np.testing.assert_array_equal(axes.images[0].get_array(), RING.bytes)
        numbers = [t.get_text() for t in axes.texts]
        assert (numbers.count("16.78\nMB"), numbers.count("·")) == (4, 4)
        assert not axes.patches
    more = RING + Traffic.of(4, [(0, 1, 7)])
    figure = plots.traffic_matrix(RING, more)
    assert [axes.patches[0].get_gid() for axes in figure.axes] == ["wrong 0 to 1"] * 2
    assert "1 cell differs" in figure.get_suptitle()
    on = plots.traffic_matrix({"a": RING.on("AABB")}).axes[0]
    across, down = (line for line in on.lines if line.get_gid() == "between hosts")
    assert ({*across.get_xdata()}, {*down.get_ydata()}) == ({1.5}, {1.5})
