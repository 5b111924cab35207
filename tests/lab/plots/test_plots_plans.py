"""Figures of the planner: the numbers drawn are the planner's, and every word can be read.

Holds `tiledask.lab.plots.planning.between_nodes`, `tiledask.lab.plots.planning.feasibility`,
`tiledask.lab.plots.planning.pareto`, `tiledask.lab.plots.planning.sensitivity_bars` and
`tiledask.lab.plots.planning.step_breakdown`.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from oracles.figures import clipped, drawn_texts, overlaps, words

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab import plots
from tiledask.lab.plots.planning.feasibility import WHY, round_bytes, short_layout, why_not
from tiledask.lab.plots.planning.step_breakdown import PARTS
from tiledask.plan.choosing.search import Space, search
from tiledask.plan.choosing.sensitivity import sensitivity
from tiledask.plan.fitting.fit import fits
from tiledask.plan.fitting.overhead import CUDA_CONTEXT
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.units import format_seconds

TASKS = {
    "llama": ("llama-2-70b", "64xA100-80GB", 256, 4096),
    "tight": ("gpt-200b", "160xA100-40GB", 160, 2048),
    "none": ("gpt-200b", "80xA100-40GB", 160, 2048),
    "large": ("llama-3.1-405b", "10000xH100", 2000, 8192),
    "small": ("gpt2", "8xA100-40GB", 512, 1024),
    "experts": ("mixtral-8x7b", "32xH100", 256, 4096),
    "far": ("llama-3.1-70b", "8xH100", 64, 4096),
    "alone": ("gpt2", "1xT4", 8, 1024),
    "empty": ("gpt2", "13xH100", 1, 1024),
}
"""Model, cluster, sequences of a step, tokens of a sequence."""
LIMITS = ("llama", "tight", "none", "far", "alone")
FITTING = ("llama", "tight", "large", "small", "experts", "alone")


def task(name: str, **options) -> tuple[tuple, dict]:
    model, cluster, batch, sequence = TASKS[name]
    given = td.load_model(model), td.load_cluster(cluster), batch
    return given, {"sequence": sequence, **options}


@pytest.fixture(scope="module")
def found() -> dict:
    every = {name: task(name) for name in TASKS}
    every["devices"] = task("llama", devices=(16, 32, 64))
    every["counts"] = task("small", devices=(3, 8))
    return {name: search(*given, **options) for name, (given, options) in every.items()}


@pytest.fixture(scope="module")
def relaxed() -> dict:
    every = {name: task(name) for name in LIMITS}
    return {name: sensitivity(*given, **options) for name, (given, options) in every.items()}


def each_shape(plans) -> dict:
    """The best fitting plan of each (tp, pp), five at most."""
    best = {}
    for plan in plans:
        if plan.verdict != "fits" or len(best) == 5:
            break
        best.setdefault((plan.layout.tp, plan.layout.pp), plan)
    return {str(plan.layout): plan.step for plan in best.values()}


def best_steps(found, names=FITTING) -> dict:
    return {name: found[name][0].step for name in names}


FIGURES = {
    **{f"map {n}": lambda f, r, n=n: plots.feasibility(f[n]) for n in (*TASKS, "devices")},
    **{f"front {n}": lambda f, r, n=n: plots.pareto(f[n]) for n in (*TASKS, "devices")},
    **{f"step {n}": lambda f, r, n=n: plots.step_breakdown(each_shape(f[n])) for n in FITTING},
    **{f"limits {n}": lambda f, r, n=n: plots.sensitivity_bars(r[n]) for n in LIMITS},
    "map dp x tp": lambda f, r: plots.feasibility(f["llama"], x="dp", y="tp"),
    "map zero x recompute": lambda f, r: plots.feasibility(f["llama"], x="zero", y="recompute"),
    "map wide": lambda f, r: plots.feasibility(f["llama"], x="microbatch", y="interleave"),
    "front, 20 knees": lambda f, r: plots.pareto(f["small"], knees=20),
    "one step": lambda f, r: plots.step_breakdown(f["tight"][0].step),
    "steps unlike": lambda f, r: plots.step_breakdown(best_steps(f)),
    "steps in seconds": lambda f, r: plots.step_breakdown(best_steps(f), shares=False),
    "memory 63 stages": lambda f, r: memory("llama-3.1-405b", "1008xH100", pp=63, tp=8, dp=2),
    "memory 10 stages": lambda f, r: memory("gpt-200b", "160xA100-40GB", pp=10, tp=8, dp=2),
    "memory 1 stage": lambda f, r: memory("mixtral-8x7b", "32xH100", dp=32, ep=8, zero=3),
}


def memory(model: str, cluster: str, **layout):
    fit = fits(td.load_model(model), Layout(microbatches=126, **layout), td.load_cluster(cluster))
    return plots.memory_bars(
        fit.memory.ledger, fit.capacity, place="stage", overhead=fit.overhead.total
    )


@pytest.fixture(scope="module")
def drawn(found, relaxed) -> Callable[[str], tuple]:
    """name -> (figure, its words), drawn once for all that is asked of it."""

    @cache
    def draw(name: str) -> tuple:
        figure = FIGURES[name](found, relaxed)
        return figure, drawn_texts(figure)

    return draw


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("name", FIGURES)
def test_every_word_is_inside_the_picture_and_upon_no_other(name, drawn):
    figure, texts = drawn(name)
    assert figure.get_suptitle()
    assert len(texts) >= 5
    assert not clipped(figure, texts)
    assert not overlaps(texts)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["map tight", "front devices", "step llama", "limits llama"])
def test_the_same_data_is_the_same_file_however_often_it_is_drawn(name, found, relaxed, drawn):
    assert drawn(name)[0].to_png() == FIGURES[name](found, relaxed).to_png()


def cells(axes, gid: str) -> dict[tuple[int, int], object]:
    """(column, row) -> patch, of the cells drawn with this gid."""
    found = [patch for patch in axes.patches if patch.get_gid() == gid]
    return {(round(p.get_x() + 0.48), round(p.get_y() + 0.46)): p for p in found}


def at(axes) -> dict[tuple[int, int], str]:
    """(column, row) -> what is written in the cell."""
    return {tuple(round(z) for z in t.get_position()): t.get_text() for t in axes.texts}


def ticks(axes) -> tuple[list[int], list[int]]:
    return tuple(
        [int(t.get_text()) for t in side()] for side in (axes.get_xticklabels, axes.get_yticklabels)
    )


@pytest.mark.few(1)
@pytest.mark.long
@pytest.mark.parametrize("name", ["tight", "large"])
def test_a_cell_is_the_best_plan_that_has_this_tp_and_pp(name, found, drawn):
    plans = found[name]
    (axes,) = drawn(f"map {name}")[0].axes
    columns, rows = ticks(axes)
    texts, verdicts = at(axes), {v: cells(axes, v) for v in ("fits", "tight", "no", "none")}
    by_shape = {}
    for plan in plans:
        by_shape.setdefault((plan.layout.tp, plan.layout.pp), []).append(plan)
    assert {tp for tp, _ in by_shape} <= set(columns)
    assert {pp for _, pp in by_shape} <= set(rows)
    for i, tp in enumerate(columns):
        for j, pp in enumerate(rows):
            if (tp, pp) not in by_shape:
                assert (i, j) in verdicts["none"]
                assert texts[i, j] in WHY
                continue
            order = ("fits", "tight", "no").index
            best = min(by_shape[tp, pp], key=lambda p: (order(p.verdict), p.by_formula, p.peak))
            head = [plan for plan in plans[:10] if (plan.layout.tp, plan.layout.pp) == (tp, pp)]
            best = head[0] if head else best  # the first ten are in the order of the simulation
            assert (i, j) in verdicts[best.verdict]
            first, second = texts[i, j].removeprefix("★ ").split("\n")
            seconds = format_seconds(best.seconds)
            over = best.peak + CUDA_CONTEXT - plans.cluster.device.memory_bytes
            said = {"fits": seconds, "tight": f"tight: {seconds}", "no": f"+{round_bytes(over)}"}
            assert first == said[best.verdict]
            assert second.split(", ")[0] == round_bytes(best.peak)
            assert ("ZeRO" in second) == (best.layout.zero > 0)
            assert ("recompute" in second) == (best.layout.recompute != "none")


@pytest.mark.long
def test_the_best_cell_has_the_frame_and_the_darkest_colour(found, drawn):
    plans = found["llama"]
    (axes,) = drawn("map llama")[0].axes
    columns, rows = ticks(axes)
    (where,) = cells(axes, "best")
    best = plans.best.layout
    assert (columns[where[0]], rows[where[1]]) == (best.tp, best.pp)
    assert at(axes)[where].startswith("★ ")
    brightness = {cell: sum(to_rgb(p.get_facecolor())) for cell, p in cells(axes, "fits").items()}
    assert min(brightness, key=brightness.get) == where
    assert len(set(brightness.values())) > 10


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("small", {"tp": 8}, "heads"),
        ("small", {"tp": 4, "pp": 4}, "devices"),
        ("small", {"pp": 16}, "layers"),
        ("small", {"pp": 4, "interleave": 6}, "layers"),
        ("small", {"ep": 2}, "experts"),
        ("experts", {"ep": 3}, "experts"),
        ("large", {"tp": 8, "pp": 1}, "batch"),
        ("large", {"tp": 8, "pp": 4}, "devices"),
        ("large", {"dp": 10000}, "batch"),
        ("large", {"tp": 8, "pp": 5}, "none"),
    ],
)
def test_a_cell_without_layouts_says_what_forbids_them(name, values, why, found):
    assert why_not(found[name], values) == why


@pytest.mark.long
@pytest.mark.parametrize("name", ["small", "large", "experts", "none", "counts"])
def test_no_rule_forbids_what_the_search_found(name, found):
    frame = found[name].to_frame(None)
    for fields in (["tp", "pp"], ["dp", "tp"], ["ep", "dp"], ["pp", "interleave"]):
        for values in frame[fields].drop_duplicates().itertuples(index=False):
            assert why_not(found[name], values._asdict()) == "none"


@pytest.mark.long
def test_a_cell_that_was_not_searched_does_not_claim_a_rule():
    given, options = task("llama", space=Space(tp=(4, 8), pp=(2, 4), microbatch=(1,)))
    (axes,) = plots.feasibility(search(*given, **options)).axes
    assert ticks(axes) == ([4, 8], [2, 4])
    assert not cells(axes, "none")


@pytest.mark.long
def test_the_words_of_all_cells_are_of_one_kind(drawn):
    """A "ZeRO 3" that only some cells have room for would be read as none in the others."""
    wide = drawn("map wide")[0].axes[0]
    assert not [text for text in words(wide) if "ZeRO 1" in text]
    assert len(wide.texts) == sum(patch.get_gid() != "best" for patch in wide.patches)
    assert [text for text in words(drawn("map llama")[0].axes[0]) if "ZeRO 1" in text]


@pytest.mark.few(2)
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("map tight", "tight: fits or not, by the overhead of a run"),
        ("map tight", "too large: with a CUDA context, bytes over 40 GB"),
        ("map none", "★ the nearest"),
        ("map none", "nothing fits; the nearest takes 41.9 GB, 2.9 GB too much"),
        ("front far", "nothing fits:\n63.7 GB are missing"),
        ("limits far", "still nothing fits: 63.7 GB too much"),
    ],
)
def test_the_legend_names_what_is_there(name, said, drawn):
    assert said in "|".join(words(drawn(name)[0]))
    assert "tight: fits or not" not in "|".join(words(drawn("map experts")[0]))


def front_of(plans, devices: int) -> list[tuple[float, float]]:
    """(bytes, seconds) of the plans that fit and that no other beats in both, by comparison of
    each with each."""
    rows = (plans.devices == devices) & (plans.to_frame(None).verdict == "fits").to_numpy()
    peak, seconds = plans.peak[rows], plans.by_formula[rows]
    better = (peak[:, None] <= peak) & (seconds[:, None] <= seconds)
    strictly = better & ((peak[:, None] < peak) | (seconds[:, None] < seconds))
    unbeaten = ~strictly.any(axis=0)
    return sorted(set(zip(peak[unbeaten].tolist(), seconds[unbeaten].tolist(), strict=True)))


@pytest.mark.few(1)
@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "small", "devices"])
def test_the_line_goes_through_the_plans_that_no_other_beats(name, found, drawn):
    plans = found[name]
    axes = drawn(f"front {name}")[0].axes[0]
    counts = sorted(set(plans.devices.tolist()))
    lines = {line.get_gid(): line for line in axes.lines}
    for devices in counts:
        line = lines[f"front of {devices}"]
        assert [tuple(point) for point in line.get_xydata()] == front_of(plans, devices)
        assert line.get_drawstyle() == "steps-post"
    assert len({lines[f"front of {n}"].get_color() for n in counts}) == len(counts)


@pytest.mark.long
def test_every_plan_that_fits_is_a_point_and_the_tight_ones_are_crosses(found, drawn):
    plans = found["tight"]
    axes = drawn("front tight")[0].axes[0]
    clouds = {c.get_gid(): c.get_offsets() for c in axes.collections}
    count = plans.counts
    assert len(clouds["160 devices"]) == count["fits"] > 0
    assert len(clouds["tight"]) == count["tight"] > 0
    both = np.stack([plans.peak, plans.by_formula], axis=1)[: count["fits"]]
    assert sorted(clouds["160 devices"].tolist()) == sorted(both.tolist())
    (capacity,) = [line for line in axes.lines if line.get_gid() == "capacity"]
    assert capacity.get_xdata()[0] == 40e9


@pytest.mark.few(1)
@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "devices", "experts"])
def test_the_numbered_plans_lie_on_the_lines_and_their_layouts_are_listed(name, found):
    plans = found[name]
    axes, table = plots.pareto(plans, knees=6).axes
    knees = [tuple(l.get_xydata()[0]) for l in axes.lines if l.get_gid() == "knee"]
    fronts = [point for n in set(plans.devices.tolist()) for point in front_of(plans, n)]
    assert 3 <= len(knees) <= 6
    assert set(knees) <= set(fronts)
    fastest = plans.by_formula[: plans.counts["fits"]].argmin()
    assert (plans.peak[fastest], plans.by_formula[fastest]) in knees
    assert [t.get_text() for t in axes.texts] == [str(n + 1) for n in range(len(knees))]
    listed = [t.get_text() for t in table.texts]
    for peak, seconds in knees:
        at = (plans.peak == peak) & (plans.by_formula == seconds)
        assert {format_seconds(plans[int(n)].seconds) for n in at.nonzero()[0]} & {*listed}
        assert round_bytes(peak) in listed
    assert short_layout(plans.best.layout) in listed


@pytest.mark.few(1)
@pytest.mark.long
@pytest.mark.parametrize("name", ["tight", "small"])
def test_a_front_begins_at_0_unless_all_plans_are_far_from_it(name, drawn, found):
    axes = drawn(f"front {name}")[0].axes[0]
    least, capacity = found[name].peak.min(), found[name].cluster.device.memory_bytes
    left = axes.get_xlim()[0]
    assert left < least
    assert (left == 0) == (least < capacity / 2)


@pytest.mark.long
def test_where_nothing_fits_the_front_shows_how_far_the_nearest_is(found, drawn):
    axes = drawn("front far")[0].axes[0]
    (nearest,) = [line for line in axes.lines if line.get_gid() == "nearest"]
    assert nearest.get_xdata()[0] == found["far"].peak.min() < axes.get_xlim()[1]


@pytest.mark.parametrize(
    ("layout", "held", "sent"),
    [
        ({"tp": 8, "pp": 4}, ["stage 0", "stage 1", "stage 2", "stage 3"], {"pp": 3}),
        (
            {"dp": 2, "tp": 8, "pp": 2},
            [f"stage {p}\ncopy {d}" for p in (0, 1) for d in (0, 1)],
            {"pp": 2, "dp": 2},
        ),
        ({"dp": 32, "zero": 3}, [f"copies {n} to {n + 7}" for n in (0, 8, 16, 24)], {"zero": 4}),
        ({"dp": 4, "tp": 8}, [f"copy {n}" for n in range(4)], {"dp": 4}),
        (
            {"tp": 16, "pp": 2},
            [f"stage {p}\ntp ranks {t} to {t + 7}" for p in (0, 1) for t in (0, 8)],
            {"pp": 2, "tp": 2},
        ),
        ({"dp": 2, "tp": 4, "pp": 4}, [f"stage {n}" for n in range(4)], {"pp": 3}),
    ],
)
def test_nodes_are_joined_where_an_axis_leaves_them(layout, held, sent):
    """Each line ends in the middle of two nodes that hold neighbours along its axis."""
    figure = plots.between_nodes({"one": Layout(**layout)})
    (axes,) = figure.axes
    at = {text.get_position(): text.get_text() for text in axes.texts[1:]}
    assert list(at.values()) == held
    lines = [(line.get_gid(), line.get_xydata().tolist()) for line in axes.get_lines()]
    assert {kind: [k for k, _ in lines].count(kind) for kind, _ in lines} == sent
    where = {"pp": "stage", "dp": "copy", "zero": "copies", "tp": "tp ranks"}
    for kind, (*first, last) in lines:
        ends = first[0], last  # a ring's last line goes round below
        a, b = (
            next(t for (u, v), t in at.items() if (u, v) == pytest.approx((x, y))) for x, y in ends
        )
        unlike = {*a.split("\n")} ^ {*b.split("\n")}
        assert len(unlike) == 2
        assert all(part.startswith(where[kind]) for part in unlike)
    found = drawn_texts(figure)
    assert not clipped(figure, found, by=1)
    assert not overlaps(found)


def test_nodes_that_are_not_whole_or_too_many_axes_are_refused():
    for few in (Layout(dp=8), Layout(dp=12)):
        with pytest.raises(ConfigError, match="several whole nodes of 8; got one of"):
            plots.between_nodes({"few": few})
    with pytest.raises(ConfigError, match="two axes that leave a node at most, got three"):
        plots.between_nodes({"three": Layout(dp=2, tp=16, pp=2)})


@pytest.mark.long
def test_the_parts_of_a_step_are_stacked_to_its_time(found, drawn):
    (axes,) = drawn("step tight")[0].axes
    rows = {}
    for bar in sorted(axes.patches, key=lambda bar: (round(bar.get_y(), 6), bar.get_x())):
        rows.setdefault(round(bar.get_y(), 6), []).append(bar)
    for row, step in zip(rows.values(), each_shape(found["tight"]).values(), strict=True):
        assert {b.get_gid(): b.get_width() for b in row} == pytest.approx(
            {part: getattr(step, part) for part in PARTS if getattr(step, part)}
        )
        ends = [b.get_x() + b.get_width() for b in row]
        assert [b.get_x() for b in row[1:]] == pytest.approx(ends[:-1])
        assert ends[-1] == pytest.approx(step.total)
        assert f"{format_seconds(step.total)}\nMFU {100 * step.mfu:.1f} %" in words(axes)


def test_steps_of_more_devices_are_drawn_in_seconds_of_fewer():
    steps = {
        n: td.estimate_step("gpt2", Layout(dp=n, microbatches=8 // n), f"{n}xA100-40GB")
        for n in (1, 4)
    }
    (axes,) = plots.step_breakdown({f"{n}": step for n, step in steps.items()}, per=2).axes
    ends = {}
    for bar in axes.patches:
        ends[bar.get_y()] = max(ends.get(bar.get_y(), 0), bar.get_x() + bar.get_width())
    totals = [n / 2 * step.total for n, step in steps.items()]
    assert list(ends.values()) == pytest.approx(totals)
    for total, step in zip(totals, steps.values(), strict=True):
        assert f"{format_seconds(total)}\nMFU {100 * step.mfu:.1f} %" in words(axes)
    assert axes.get_xlabel() == "time of a step x devices / 2"
    narrow = [word for word in words(axes) if "MFU" not in word and ", " not in word]
    assert not any("%" in word and "\n" not in word for word in narrow), narrow


@pytest.mark.long
def test_steps_of_unlike_length_are_drawn_as_shares(found):
    steps = best_steps(found, ("small", "llama"))
    (axes,) = plots.step_breakdown(steps).axes
    ends = {}
    for bar in axes.patches:
        ends[bar.get_y()] = max(ends.get(bar.get_y(), 0), bar.get_x() + bar.get_width())
    assert list(ends.values()) == pytest.approx([1, 1])
    assert axes.get_xlabel() == "share of the step's time"
    (seconds,) = plots.step_breakdown(steps, shares=False).axes
    longest = max(bar.get_x() + bar.get_width() for bar in seconds.patches)
    assert longest == pytest.approx(steps["llama"].total)


@pytest.mark.long
def test_every_part_is_drawn_and_a_single_step_has_its_numbers_in_the_legend(found, drawn):
    assert set(PARTS) == {row.part for row in found["llama"][0].step.rows}
    step = found["tight"][0].step
    label = f"tp: waiting for tensor parallelism: {format_seconds(step.tp)}, "
    assert f"{label}{100 * step.tp / step.total:.1f} %" in words(drawn("one step")[0])


@pytest.mark.long
def test_the_bars_of_limits_are_the_speedups(relaxed, drawn):
    (axes,) = drawn("limits llama")[0].axes
    bars = [bar for bar in axes.patches if bar.get_gid() == "speedup"]
    assert [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars] == [
        (1, pytest.approx(each.speedup)) for each in relaxed["llama"]
    ]
    first = relaxed["llama"][0]
    assert f"{first.speedup:.3g} x: {format_seconds(first.after.seconds)} a step" in words(axes)
    labels = [t.get_text() for t in axes.get_yticklabels()]
    assert labels == [f"{each.limit} x 2" for each in relaxed["llama"]]


@pytest.mark.long
def test_where_nothing_fits_limits_are_judged_by_memory(relaxed, drawn):
    (axes,) = drawn("limits far")[0].axes
    far = relaxed["far"]
    idle = [e for e in far if e.after.verdict == "no" and e.after.peak == e.before.peak]
    drawn_anew = [each for each in far if each not in idle] + idle[:1]
    labels = [t.get_text() for t in axes.get_yticklabels()]
    assert len(idle) > 1
    assert labels[-1] == f"each of the other {len(idle)}"
    assert labels[:-1] == [f"{each.limit} x 2" for each in drawn_anew[:-1]]
    for bar, each in zip(axes.patches, drawn_anew, strict=True):
        after = each.after
        assert bar.get_gid() == after.verdict
        room = after.found.cluster.device.memory_bytes
        assert bar.get_width() == pytest.approx(after.peak / room)
        assert (bar.get_width() > 1) == (after.verdict == "no")


@pytest.mark.long
def test_memory_of_many_stages_fits_a_page_and_names_the_fullest(drawn):
    (axes,) = drawn("memory 63 stages")[0].axes
    assert axes.figure.get_figheight() < 11
    assert sum(bar.get_gid() == "weights" for bar in axes.patches) == 63
    assert "stage 0" in words(axes)
    assert "stage 1" not in words(axes)


@pytest.mark.long
def test_the_overhead_of_a_run_is_the_last_part_of_each_bar():
    fit = fits(td.load_model("gpt2"), Layout(pp=3, microbatches=3), td.load_cluster("8xA100-40GB"))
    bare = plots.memory_bars(fit.memory.ledger, place="stage")
    (axes,) = plots.memory_bars(fit.memory.ledger, place="stage", overhead=fit.overhead.total).axes
    last = [bar for bar in axes.patches if bar.get_gid() == "overhead of a run"]
    assert [bar.get_width() for bar in last] == [fit.overhead.total] * 3
    assert [bar.get_x() for bar in last] == list(fit.memory.per_stage)
    assert axes.get_xlabel().startswith("bytes per device at")
    assert "overhead of a run" not in words(bare)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: plots.feasibility(f, x="width"), "fields of a layout, .*; got 'width'"),
        (lambda f: plots.feasibility(f, x="tp", y="tp"), "two fields, got 'tp' twice"),
        (lambda f: plots.pareto(f, knees=0), "whole number of 1 or more, got 0"),
        (lambda f: plots.pareto(f, knees=True), "whole number of 1 or more, got True"),
        (lambda f: plots.step_breakdown({}), "1 step or more, got 0"),
        (lambda f: plots.sensitivity_bars([]), "1 relaxed limit or more, got 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, message, found):
    with pytest.raises(ConfigError, match=message):
        call(found["small"])
