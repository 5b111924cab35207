"""Find a layout on the fewest GPUs; say for each ZeRO stage how many copies it takes."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any

from tiledask.errors import RuleError
from tiledask.lab import plots
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.fitting.fit import Fit, fits
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import RECOMPUTE, Layout
from tiledask.plan.inputs.load import load_cluster, load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole

__all__ = ["copies_that_fit", "fewest_gpus", "layout_of", "layouts_that_fit"]


def fewest_gpus(model: str = "llama-2-13b", device: str = "A10", most: int = 16) -> Exercise:
    """Find a Layout with which ``model`` trains on the fewest of ``most`` devices."""
    spec, what = load_cluster(f"{most}x{device}"), load_model(model)
    best = min(layout.devices for layout in layouts_that_fit(what, spec))
    room = format_bytes(spec.device.memory_bytes)

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
        question=(
            f"Train {model} (16 bytes per parameter, sequences of 2,048 tokens, one per "
            f"micro-batch) on {device}s of {room}, {spec.devices_per_node} to a node. Find a "
            f'layout with the verdict "fits" on at most {best} GPUs; tp may be at most '
            f"{spec.devices_per_node}."
        ),
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


@lru_cache(maxsize=16)
def layouts_that_fit(model: Model, spec: ClusterSpec) -> tuple[Layout, ...]:
    """Every layout of micro-batches of one sequence that fits on ``spec``: all of them tried."""
    return tuple(
        layout for layout in _layouts(model, spec) if fits(model, layout, spec).verdict == "fits"
    )


def _layouts(model: Model, spec: ClusterSpec) -> Iterator[Layout]:
    counts = range(1, spec.devices + 1)
    for tp, pp, dp in product(range(1, spec.devices_per_node + 1), counts, counts):
        if tp * pp * dp > spec.devices or pp > model.layers or model.heads % tp:
            continue
        for zero, recompute, sequence_parallel in product(range(4), RECOMPUTE, (False, True)):
            yield Layout(
                dp=dp,
                tp=tp,
                pp=pp,
                zero=zero,
                recompute=recompute,
                sequence_parallel=sequence_parallel,
            )


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
        question=(
            f"{model} on {device}s, {format_bytes(one.device.memory_bytes)} each: full copies, "
            f"everything recomputed, one sequence each. For each of the 4 ZeRO levels 0, 1, 2 and "
            f'3 give the fewest data-parallel GPUs with which it fits (verdict "fits"), or None if '
            f"no number of GPUs helps; 0 levels may be judged wrongly."
        ),
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
