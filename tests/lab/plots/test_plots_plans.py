"""Figures of the planner: the numbers drawn are the planner's, and every word can be read."""

from collections.abc import Callable
from functools import cache

import pytest
from oracles.figures import clipped, drawn_texts, overlaps, words

import tiledask as td
from tiledask.lab import plots
from tiledask.lab.plots.plans import round_bytes
from tiledask.lab.plots.primitives import places
from tiledask.lab.plots.step_breakdown import PARTS
from tiledask.plan.choosing.search import search
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
SOME = ("tight", "none", "large", "experts", "empty", "devices")
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
    **{f"map {n}": lambda f, n=n: plots.feasibility(f[n]) for n in SOME},
    **{f"front {n}": lambda f, n=n: plots.pareto(f[n]) for n in SOME},
    **{
        f"step {n}": lambda f, n=n: plots.step_breakdown(each_shape(f[n]))
        for n in ("tight", "large", "experts")
    },
    "one step": lambda f: plots.step_breakdown(f["tight"][0].step),
    "steps unlike": lambda f: plots.step_breakdown(best_steps(f)),
    "steps in seconds": lambda f: plots.step_breakdown(best_steps(f), shares=False),
    "memory 63 stages": lambda f: memory("llama-3.1-405b", "1008xH100", pp=63, tp=8, dp=2),
    "memory 1 stage": lambda f: memory("mixtral-8x7b", "32xH100", dp=32, ep=8, zero=3),
}


def memory(model: str, cluster: str, **layout):
    fit = fits(td.load_model(model), Layout(microbatches=126, **layout), td.load_cluster(cluster))
    return plots.memory_bars(
        fit.memory.ledger, fit.capacity, place="stage", overhead=fit.overhead.total
    )


@pytest.fixture(scope="module")
def drawn(found) -> Callable[[str], tuple]:
    """name -> (figure, its words), drawn once for all that is asked of it."""

    @cache
    def draw(name: str) -> tuple:
        figure = FIGURES[name](found)
        return figure, drawn_texts(figure)

    return draw


@pytest.mark.few(2)
@pytest.mark.parametrize("name", FIGURES)
def test_every_word_is_inside_the_picture_and_upon_no_other(name, drawn):
    figure, texts = drawn(name)
    assert figure.get_suptitle()
    assert len(texts) >= 5
    assert not clipped(figure, texts)
    assert not overlaps(texts)


def ticks(axes) -> tuple[list[int], list[int]]:
    return tuple(
        [int(t.get_text()) for t in side()] for side in (axes.get_xticklabels, axes.get_yticklabels)
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["tight", "large"])
def test_a_cell_is_the_best_plan_that_has_this_tp_and_pp(name, found, drawn):
    plans = found[name]
    (axes,) = drawn(f"map {name}")[0].axes
    columns, rows = ticks(axes)
    texts = {tuple(round(z) for z in t.get_position()): t.get_text() for t in axes.texts}
    cells = {
        (round(x + 0.48), round(y + 0.46)): verdict
        for verdict in ("fits", "tight", "no")
        for x, y, *_ in places(axes, verdict)
    }
    by_shape = {}
    for plan in plans:
        by_shape.setdefault((plan.layout.tp, plan.layout.pp), []).append(plan)
    assert {tp for tp, _ in by_shape} <= set(columns)
    assert {pp for _, pp in by_shape} <= set(rows)
    for i, tp in enumerate(columns):
        for j, pp in enumerate(rows):
            if (tp, pp) not in by_shape:
                assert (i, j) not in cells
                continue
            order = ("fits", "tight", "no").index
            best = min(by_shape[tp, pp], key=lambda p: (order(p.verdict), p.by_formula, p.peak))
            head = [plan for plan in plans[:10] if (plan.layout.tp, plan.layout.pp) == (tp, pp)]
            best = head[0] if head else best  # the first ten are in the order of the simulation
            assert cells[i, j] == best.verdict
            first, second = texts[i, j].removeprefix("★ ").split("\n")
            seconds = format_seconds(best.seconds)
            over = best.peak + CUDA_CONTEXT - plans.cluster.device.memory_bytes
            assert first == (f"+{round_bytes(over)}" if best.verdict == "no" else seconds)
            assert second == round_bytes(best.peak)


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
@pytest.mark.parametrize("name", ["large", "devices"])
def test_the_line_goes_through_the_plans_that_no_other_beats(name, found, drawn):
    plans = found[name]
    axes = drawn(f"front {name}")[0].axes[0]
    counts = sorted(set(plans.devices.tolist()))
    lines = {line.get_gid(): line for line in axes.lines}
    for devices in counts:
        (line,) = (each for name, each in lines.items() if name.startswith(f"{devices:,} device"))
        assert [tuple(point) for point in line.get_xydata()] == front_of(plans, devices)
        assert line.get_drawstyle() == "steps-post"
    assert len({line.get_color() for line in lines.values()}) == len(counts) + 1  # the capacity


def test_the_parts_of_a_step_are_stacked_to_its_time(found, drawn):
    (axes,) = drawn("step tight")[0].axes
    rows = {}
    for part in PARTS:
        for x, y, width, _ in places(axes, part):
            rows.setdefault(round(y, 6), []).append((x, width, part))
    steps = each_shape(found["tight"]).values()
    for row, step in zip((sorted(rows[y]) for y in sorted(rows)), steps, strict=True):
        assert {part: width for _, width, part in row} == pytest.approx(
            {part: getattr(step, part) for part in PARTS if getattr(step, part)}
        )
        ends = [x + width for x, width, _ in row]
        assert [x for x, *_ in row[1:]] == pytest.approx(ends[:-1])
        assert ends[-1] == pytest.approx(step.total)
        assert f"{format_seconds(step.total)}\nMFU {100 * step.mfu:.1f} %" in words(axes)
