"""Choose layouts: the planner works out every answer, and searches all others for the best."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from textwrap import fill
from typing import Any

from tiledask.errors import ConfigError, RuleError
from tiledask.lab import plots
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.planning.feasibility import short_layout
from tiledask.lab.plots.planning.step_breakdown import PARTS
from tiledask.lab.plots.primitives import Figure, limit_line, mark_box
from tiledask.plan.choosing.search import Plans, Space, search
from tiledask.plan.fitting.fit import Fit, fits
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_cluster, load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.timing.step import StepEstimate, estimate_step
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.plan.whole import is_whole

__all__ = ["copies_that_fit", "fastest_within", "fewest_devices", "fewest_gpus", "layout_of"]


def fewest_gpus(model: str = "llama-2-13b", device: str = "A10", most: int = 16) -> Exercise:
    """Find a Layout with which ``model`` trains on the fewest of ``most`` devices."""
    spec, what = load_cluster(f"{most}x{device}"), load_model(model)
    counts = range(1, most + 1)
    best = next(n for n in counts if search(what, spec, n, devices=(n,)).counts["fits"])

    def measure(answer: Any) -> list[Target]:
        fit = _fit(what, answer, spec)
        if fit.verdict != "fits":
            raise RuleError(f'the verdict is "{fit.verdict}": {fit.reason}')
        place, _, tensor = fit.memory.ledger.binding
        largest = format_bytes(fit.memory.ledger.by_tensor(place)[tensor])
        where = f"on the fullest the {tensor} take most, {largest}: share or cut them further"
        return [Target("GPUs", best, answer.devices, best, where=where)]

    def figure(answer: Any) -> Figure:
        layout = Layout() if answer is None else answer
        ledger = _fit(what, layout, spec).memory.ledger
        title = f"{model} on {layout.devices} {device}, without overhead: {layout}"
        return plots.memory_bars(ledger, spec.device.memory_bytes, place="stage", title=title)

    return Exercise(
        name="the fewest GPUs",
        form="a td.Layout, for example td.Layout(tp=2, pp=4)",
        hints=(
            "Where are the 16 bytes of each parameter, and which of dp, tp, pp and zero shares "
            "each of them out?",
            "What is left of a device beside the states is for activations: recompute='full' and "
            "sequence_parallel=True make them small.",
            "With zero=3 every state is shared by all dp x tp GPUs. Divide the states by the "
            "number of GPUs, add the overhead that td.fits(...).overhead names, and take the first "
            "number, a product of dp and a tp of the node, that leaves a gigabyte.",
        ),
        measured=measure,
        drawn=figure,
        read=layout_of,
    )


def layout_of(answer: Any) -> Layout | None:
    """``answer``, if it is a layout."""
    return answer if isinstance(answer, Layout) else None


def _fit(model: Model, layout: Layout, spec: ClusterSpec) -> Fit:
    if layout.tp > spec.devices_per_node:
        raise RuleError(
            f"tp={layout.tp} would leave the node of {spec.devices_per_node} GPUs; "
            f"use tp of {spec.devices_per_node} or less"
        )
    return fits(model, layout, spec)


ENDLESS = 2**20
"""Data-parallel GPUs that stand for any number: beyond them a share changes by bytes."""


def copies_that_fit(model: str = "llama-2-13b", device: str = "A100-40GB") -> Exercise:
    """Say for each ZeRO stage the fewest data-parallel GPUs that fit, or None if no number does.

    The answer is a tuple of four: ZeRO 0, 1, 2 and 3, with full recomputation.
    """
    what, one = load_model(model), load_cluster(f"{ENDLESS}x{device}")

    def fit(zero: int, dp: int) -> Fit:
        return fits(what, Layout(dp=dp, zero=zero, recompute="full"), one)

    def right(zero: int, dp: int | None) -> bool:
        if dp is None:
            return fit(zero, ENDLESS).verdict != "fits"
        fewer = dp > 1 and fit(zero, dp - 1).verdict == "fits"
        return fit(zero, dp).verdict == "fits" and not fewer

    def remark(zero: int, dp: int | None) -> str:
        """What is wrong with ``dp``, and in which direction."""
        if dp is None:
            return f"ZeRO-{zero}: None, and there is a number of GPUs with which it fits"
        found, at = fit(zero, dp), f"ZeRO-{zero} on {dp:,} GPU{'s' * (dp > 1)}"
        if found.verdict == "fits":
            far = dp > 3 and fit(zero, dp // 2).verdict == "fits"
            return f"{at} fits, and so it does on fewer" + (", on half as many too" if far else "")
        low, high = map(format_bytes, found.band)
        needs = f"{low}, with overhead {high}"
        if found.verdict == "tight":
            over = format_bytes(found.expected - found.sure)
            limit = f"{over} more than the {format_bytes(found.sure)} up to which it fits"
            return f"{at} does not fit, but nearly: {needs}, {limit}"
        return f"{at} does not fit: {needs}, of {format_bytes(found.capacity)} each"

    def measure(numbers: tuple[int | None, ...]) -> list[Target]:
        wrong = [remark(zero, dp) for zero, dp in enumerate(numbers) if not right(zero, dp)]
        return [Target("ZeRO levels judged wrongly", 0, len(wrong), 0, remarks=wrong)]

    def figure(answer: Any) -> Figure:
        numbers = answer or (4,) * 4  # too few of any: gives nothing away
        ledgers = {
            f"ZeRO-{zero}, dp {'as you like' if dp is None else dp}": fit(
                zero, dp or ENDLESS
            ).memory.ledger
            for zero, dp in enumerate(numbers)
        }
        title = f"{model} on {device}: bytes per data-parallel GPU, without overhead"
        return plots.memory_bars(ledgers, one.device.memory_bytes, place="GPU", title=title)

    return Exercise(
        name="how many copies fit",
        form=f"a tuple of four, for ZeRO 0, 1, 2 and 3: numbers of GPUs from 1 to {ENDLESS:,}, "
        f"or None, for example (1, 2, 4, None)",
        hints=(
            "Which of weights, gradients and optimizer states does each level still keep whole?",
            "What stays whole has to fit by itself, whatever the number of GPUs: 13 billion "
            "parameters times the bytes of what isn't shared."
            if model == "llama-2-13b"
            else "What stays whole has to fit by itself, whatever the number of GPUs.",
            "What is shared is divided by the number of GPUs; with what stays whole, activations "
            "and overhead it must not exceed a device. td.fits(model, td.Layout(dp=..., zero=..., "
            'recompute="full"), cluster) tells for any number.',
        ),
        measured=measure,
        drawn=figure,
        read=_degrees,
    )


def _degrees(answer: Any) -> tuple[int | None, ...] | None:
    numbers = tuple(answer) if isinstance(answer, tuple | list) else ()
    whole = all(n is None or is_whole(n, 1, ENDLESS) for n in numbers)
    return numbers if len(numbers) == 4 and whole else None


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

    def fit(self, answer: Layout) -> Fit:
        """Whether ``answer``, a layout of this task, fits."""
        if answer.cp > 1:
            raise RuleError(f"sequences stay whole here: cp is 1, got {answer.cp}")
        if answer.sequences != self.batch:
            raise RuleError(
                f"dp {answer.dp} x microbatch {answer.microbatch} x microbatches "
                f"{answer.microbatches} = {answer.sequences} sequences a step, the task has "
                f"{self.batch}; dp x microbatches of {self.batch} with microbatch 1 will do"
            )
        return fits(self.model, answer, self.cluster, self.recipe, self.sequence)

    def fitting(self, answer: Layout) -> Fit:
        """The plan of a layout that must fit."""
        fit = self.fit(answer)
        if fit.verdict != "fits":
            raise RuleError(f'the verdict is "{fit.verdict}": {fit.reason}')
        return fit

    def step(self, layout: Layout) -> StepEstimate:
        return estimate_step(self.model, layout, self.cluster, self.recipe, self.sequence)

    def seconds(self, wanted: float, got: StepEstimate, best: StepEstimate) -> Target:
        """The target of a step's seconds; which part of it is furthest above the best step's."""
        part = _lost(got, best)
        where = f"most is lost to {PARTS[part][1]}, {format_seconds(getattr(got, part))}"
        numbers = (round(s, 2) for s in (wanted, got.total, best.total))
        return Target("seconds a step", *numbers, SEARCHED, where=where)

    @property
    def words(self) -> str:
        """What is trained, on what."""
        device = self.cluster.device
        return (
            f"{self.model.name or 'the model'} on at most {self.cluster.devices} {device.name}s of "
            f"{format_bytes(device.memory_bytes)}, {self.cluster.devices_per_node} to a node; "
            f"{self.batch} sequences of {self.sequence:,} tokens a step, and tensors by the recipe "
            f"{self.recipe}"
        )

    @property
    def form(self) -> str:
        """How an answer is written, and one that has the right number of sequences."""
        most = self.cluster.devices_per_node
        return f"a td.Layout, for example td.Layout(tp={most}, microbatches={self.batch})"


def _lost(step: StepEstimate, best: StepEstimate) -> str:
    """The part of ``step`` that is furthest above that of ``best``."""
    return max(PARTS, key=lambda part: getattr(step, part) - getattr(best, part))


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

    def measure(answer: Layout) -> list[Target]:
        fit, best = task.fitting(answer), _fastest(task, room)
        peak = round(fit.memory.peak / GB, 2)
        place, moment, tensor = fit.memory.ledger.binding
        held = format_bytes(fit.memory.ledger.by_tensor(place)[tensor])
        where = f"stage {place + 1} is the fullest, at {moment}, and its {tensor} take most, {held}"
        return [
            Target("GB on the fullest device", room / GB, peak, None, where=where),
            task.seconds((1 + within) * best.total, task.step(answer), best),
        ]

    def figure(answer: Any) -> Figure:
        best = _fastest(task, room)
        if answer is None:  # its parts would tell its layout
            drawn = plots.canvas(1.4, "The time to reach")
            axes = drawn.subplots()
            axes.barh(["the fastest that keeps to the cap"], best.total)
            limit_line(axes, (1 + within) * best.total, gid="at most")
            axes.set_xlabel("seconds of a step; at most those of the dashed line")
            return drawn

        task.fit(answer)
        mine = task.step(answer)
        yours = f"yours: {short_layout(mine.layout)}"
        drawn = plots.step_breakdown({"the best of the search": best, yours: mine})
        if mine.total > (1 + within) * best.total:
            part = _lost(mine, best)
            *_, bar = (patch for patch in drawn.axes[0].patches if patch.get_gid() == part)
            mark_box(drawn.axes[0], bar.get_bbox().bounds, part)
        return drawn

    return Exercise(
        name="the fastest within a memory cap",
        form=task.form,
        hints=(
            "How many bytes are the states, if all devices share them, and what does the cap "
            "leave for activations?",
            "Activations shrink with recompute, sequence_parallel and smaller micro-batches. What "
            "each of them costs is a part of the step: draw shows which.",
            "td.search(model, cluster, batch, sequence=...) lists what fits, fastest first, and "
            "each of its plans has a peak: take the first that keeps to the cap.",
        ),
        measured=measure,
        drawn=figure,
        read=layout_of,
    )


def fewest_devices(
    model: Model, cluster: ClusterSpec, batch: int, *, recipe: str = "mixed-adam-16"
) -> Exercise:
    """Find a Layout with which ``model`` trains on the fewest devices of ``cluster``."""
    task = _Task(model, cluster, batch, recipe=recipe)

    def measure(answer: Layout) -> list[Target]:
        layout = task.fitting(answer).layout
        counts = range(1, cluster.devices + 1)
        best = next(n for n in counts if _search(task, n).counts["fits"])
        return [Target("devices", best, layout.devices, best, SEARCHED, least=True)]

    def figure(answer: Any) -> Figure:
        layout = Layout(tp=cluster.devices_per_node, microbatches=batch)
        fit = task.fit(layout if answer is None else answer)
        title = f"{fit.layout.devices} devices, without overhead: {short_layout(fit.layout)}"
        ledger = fit.memory.ledger
        return plots.memory_bars(ledger, fit.capacity, place="stage", title=fill(title, 84))

    return Exercise(
        name="the fewest devices",
        form=task.form,
        hints=(
            "The bytes of a parameter times the parameters, over the room of a device without the "
            "overhead of a run: how many devices is that at least?",
            "Not every number of devices can be made of tp, pp and dp: tp divides the heads and "
            "keeps to the node.",
            "td.search(model, cluster, batch, recipe=..., devices=[n]) tries everything on n "
            "devices, and .counts['fits'] says how much fits. Go up from the least number there "
            "can be.",
        ),
        measured=measure,
        drawn=figure,
        read=layout_of,
    )
