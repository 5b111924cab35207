"""Choose whole layouts: the planner works out every answer, and searches all others for the best.

answer = td.Layout(...)  ->  legal? fits?  ->  bytes, seconds, idle share, faults   |  targets
                             all layouts of the task searched: the best there is    |
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from textwrap import fill
from typing import TYPE_CHECKING, Any

from tiledask.errors import ConfigError
from tiledask.lab import plots
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.planning.feasibility import short_layout
from tiledask.plan.choosing.critique import critique
from tiledask.plan.choosing.search import Plans, Space, search
from tiledask.plan.fitting.fit import Fit, fits
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.timing.step import StepEstimate, estimate_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["fastest_within", "fewest_devices", "repair", "shorten_bubble"]

GB = 10**9
SEARCHED = "best of the search"
FIRST = 12
"""Plans of a search that are simulated: formulas ranked them, and may err between neighbours."""


@dataclass(frozen=True)
class _Task:
    """What is trained, and on what."""

    model: Model
    cluster: ClusterSpec
    batch: int
    """Sequences of a step."""
    sequence: int = 2048
    recipe: str = "mixed-adam-16"

    def fit(self, answer: Any) -> Fit:
        """Whether ``answer``, a layout of this task, fits."""
        if not isinstance(answer, Layout):
            raise ConfigError(
                f"an answer is a Layout such as td.Layout(tp=2, pp=4), got {answer!r}"
            )
        if answer.cp > 1:
            raise ConfigError(f"sequences stay whole here: cp is 1, got {answer.cp}")
        if answer.sequences != self.batch:
            raise ConfigError(
                f"dp {answer.dp} x microbatch {answer.microbatch} x microbatches "
                f"{answer.microbatches} = {answer.sequences} sequences a step, the task has "
                f"{self.batch}; dp x microbatches of {self.batch} with microbatch 1 will do"
            )
        return fits(self.model, answer, self.cluster, self.recipe, self.sequence)

    def fitting(self, answer: Any) -> Fit:
        """The plan of a layout that must fit."""
        fit = self.fit(answer)
        if fit.verdict != "fits":
            raise ConfigError(f'the verdict is "{fit.verdict}": {fit.reason}')
        return fit

    def step(self, layout: Layout) -> StepEstimate:
        return estimate_step(self.model, layout, self.cluster, self.recipe, self.sequence)

    def seconds(self, wanted: float, got: StepEstimate, best: StepEstimate) -> Target:
        return Target(
            "seconds a step", *(round(s, 2) for s in (wanted, got.total, best.total)), SEARCHED
        )


@lru_cache(maxsize=64)
def _search(task: _Task, devices: int | None = None, stages: int = 1) -> Plans:
    """All layouts of the task, on ``devices`` devices, of ``stages`` stages or more."""
    most = min(task.model.layers, task.cluster.devices)
    return search(
        task.model,
        task.cluster,
        task.batch,
        sequence=task.sequence,
        recipe=task.recipe,
        devices=None if devices is None else (devices,),
        space=Space(pp=tuple(range(stages, most + 1))),
    )


@lru_cache(maxsize=16)
def _fastest(task: _Task, room: int | None = None, stages: int = 1) -> StepEstimate:
    """The fastest step of a layout that fits, with ``room`` bytes of tensors or fewer."""
    found = _search(task, stages=stages)
    inside = (found[n] for n in range(found.counts["fits"]))
    first = list(islice((p for p in inside if room is None or p.peak <= room), FIRST))
    if not first:
        raise ConfigError(
            f"no layout of the task fits{'' if room is None else f' within {room:,} bytes'}; the "
            f"nearest takes {found.best.peak:,}: raise the room or the number of devices"
        )
    return min((plan.step for plan in first), key=lambda step: step.total)


def fastest_within(
    model: Model,
    cluster: ClusterSpec,
    batch: int,
    *,
    room: int,
    within: float = 0.05,
    sequence: int = 2048,
) -> Exercise:
    """Find a Layout that takes ``room`` bytes or fewer on the fullest device, without the overhead
    of a run, and at most ``within`` (a share) longer than the fastest such layout."""
    task = _Task(model, cluster, batch, sequence)

    def measure(answer: Any) -> list[Target]:
        fit, best = task.fitting(answer), _fastest(task, room)
        peak = round(fit.memory.peak / GB, 2)
        return [
            Target("GB on the fullest device", room / GB, peak, None),
            task.seconds((1 + within) * best.total, task.step(answer), best),
        ]

    def figure(answer: Any) -> "Figure":
        return _beside(task, "the best of the search", _fastest(task, room), answer)

    return Exercise(name="the fastest within a memory cap", measured=measure, drawn=figure)


def fewest_devices(
    model: Model, cluster: ClusterSpec, batch: int, *, recipe: str = "mixed-adam-16"
) -> Exercise:
    """Find a Layout with which ``model`` trains on the fewest devices of ``cluster``."""
    task = _Task(model, cluster, batch, recipe=recipe)

    def measure(answer: Any) -> list[Target]:
        layout = task.fitting(answer).layout
        counts = range(1, cluster.devices + 1)
        best = next(n for n in counts if _search(task, n).counts["fits"])
        return [Target("devices", best, layout.devices, best, SEARCHED, least=True)]

    def figure(answer: Any) -> "Figure":
        layout = Layout(tp=cluster.devices_per_node, microbatches=batch)
        fit = task.fit(layout if answer is None else answer)
        title = f"{fit.layout.devices} devices, without overhead: {short_layout(fit.layout)}"
        ledger = fit.memory.ledger
        return plots.memory_bars(ledger, fit.capacity, place="stage", title=fill(title, 84))

    return Exercise(name="the fewest devices", measured=measure, drawn=figure)


def repair(model: Model, layout: Layout, cluster: ClusterSpec, *, sequence: int = 2048) -> Exercise:
    """Find a Layout of as many sequences a step as ``layout`` in which ``critique`` finds no
    fault, and which is no slower."""
    task = _Task(model, cluster, layout.sequences, sequence)
    before = task.step(layout)

    def measure(answer: Any) -> list[Target]:
        task.fitting(answer)
        lines = critique(model, answer, cluster, sequence=sequence).lines
        # a fault with its numbers, without its formula
        faults = [f"{line.about}: {line.why.split('. ')[0]}" for line in lines if not line.good]
        name = f"faults ({'; '.join(faults)})" if faults else "faults"
        return [
            Target(name, 0, len(faults), 0),
            task.seconds(before.total, task.step(answer), _fastest(task)),
        ]

    def figure(answer: Any) -> "Figure":
        return _beside(task, f"before: {layout}", before, answer)

    return Exercise(name="repair the plan", measured=measure, drawn=figure)


def shorten_bubble(
    model: Model,
    layout: Layout,
    cluster: ClusterSpec,
    *,
    share: float = 0.05,
    sequence: int = 2048,
) -> Exercise:
    """Find a Layout of as many stages or more, and of as many sequences a step, that fits and
    whose pipeline is idle for at most ``share`` of a step, and which is no slower."""
    task = _Task(model, cluster, layout.sequences, sequence)

    before = task.step(layout)

    def measure(answer: Any) -> list[Target]:
        if task.fit(answer).layout.pp < layout.pp:
            raise ConfigError(f"the task has {layout.pp} stages or more, got pp={answer.pp}")
        task.fitting(answer)
        step = task.step(answer)
        idle = round(100 * step.bubble / step.total, 2)
        return [
            Target("% of a step idle in the pipeline", 100 * share, idle, None),
            task.seconds(before.total, step, _fastest(task, stages=layout.pp)),
        ]

    def figure(answer: Any) -> "Figure":
        return _beside(task, f"before: {layout}", before, answer)

    return Exercise(name="a shorter bubble", measured=measure, drawn=figure)


def _beside(task: _Task, name: str, step: StepEstimate, answer: Any) -> "Figure":
    """Where the time goes in ``step`` and in the answer."""
    if answer is None:
        return plots.step_breakdown({name: step}, title="Not attempted yet")
    task.fit(answer)
    return plots.step_breakdown({name: step, f"yours: {answer}": task.step(answer)})
