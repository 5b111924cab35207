"""What of each collective is waited for: as calibrated, and as the streams of a program leave it.

work       F F F F | B B B B        streams    each kind alone, as long as its bytes take:
stream       g g g |   s s s        leave      (waited for) / (as much on the stream of the work)

A mixture has no program of its step. Its experts' exchange is timed in one of its layers: of one
micro-batch, or of two that hide each other's (Megatron-Core's --overlap-moe-expert-parallel-comm).

work       attention F  experts B  experts F  attention B
exchange   B come       F go       B go       F come
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from tiledask.lab.accuracy.rows import published
from tiledask.lab.accuracy.stacks import StackRun, run_of
from tiledask.plan.arrays import Values
from tiledask.plan.data import shipped_json
from tiledask.plan.frameworks.megatron import OVERLAPPED
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Numbers
from tiledask.plan.inputs.load import as_cluster
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.program.instructions import (
    AllToAll,
    Collective,
    Do,
    Instruction,
    ProgramLine,
    ProgramPart,
    ProgramRole,
)
from tiledask.plan.program.making.layers import TENSOR
from tiledask.plan.program.making.of_layout import layout_program
from tiledask.plan.program.making.unit_states import DATA
from tiledask.plan.program.prices import prices_of
from tiledask.plan.program.program import Program
from tiledask.plan.timing.calibration import Calibration, Reached
from tiledask.plan.timing.collective_time import p2p
from tiledask.plan.timing.step_time import StepTime

__all__ = ["ExposedShare", "exchange_program", "exposed_by_streams", "exposed_shares", "reasons"]

CASES = (
    "dgxc-nemotron15b-tp4-bf16-64",
    "nemo2407-fp8-nemotron22b",
    "mbridge-fp8-2509-h100-llama8b",
    "simumax-b200-llama3_70b_tp2_pp1_dp4_l12_mbc8_cef",
    "mpt-13b-T2048-8xh100_80gb-33",
    "titan2506-70b-vanilla",
    "titan2506-70b-async",
    "automodel-deepseekv3-1024",
    "dgxc-grok1-64l-bf16-512",
    "dgxc-deepseekv3-bf16-1024",
)
"""Published runs that stand for their frameworks: each way to split, and each kind once or more."""
OTHERWISE = {"dgxc-deepseekv3-bf16-1024": OVERLAPPED}
"""By case, a framework that it is looked at with too."""


class ExposedShare(NamedTuple):
    """One kind of collective of one run."""

    case: str
    framework: str
    kind: str
    """As in a framework's file: "tp", "dp", "fsdp", "pp", "ep"."""
    calibrated: Reached
    streams: float
    """The part that the streams of the ranks' programs leave exposed."""
    of_step: float
    """Seconds of the kind if all were waited for, over the step's without it."""
    why: str
    """Why the streams leave another part than the calibration's range has; else empty."""

    @property
    def within(self) -> bool:
        """Whether the streams leave a part that lies in the calibration's range."""
        return self.calibrated.low <= self.streams <= self.calibrated.high


@cache
def exposed_shares() -> tuple[ExposedShare, ...]:
    """The table, of CASES; the reasons are those of data/calibration/streams.json."""
    found = []
    runs = [(case, run_of(published("plan2")[case])) for case in CASES]
    runs += [(case, run._replace(framework=OTHERWISE[case])) for case, run in runs
             if case in OTHERWISE]  # fmt: skip
    for case, run in runs:
        known = run.step().calibration
        for kind, streams, of_step in exposed_by_streams(run, known):
            range_ = _range(known, kind)
            row = ExposedShare(case, known.framework, kind, range_, streams, of_step, "")
            why = "" if row.within else reasons().get((known.framework, kind), "")
            found.append(row._replace(why=why))
    return tuple(found)


@cache
def reasons() -> dict[tuple[str, str], str]:
    """Why the streams of programs leave another part exposed than runs showed, by framework and
    kind."""
    told = shipped_json("calibration", "streams.json")
    return {(name, each["kind"]): each["why"] for each in told for name in each["frameworks"]}


def exposed_by_streams(run: StackRun, known: Calibration) -> Iterator[tuple[str, float, float]]:
    """(kind, the part of it that the streams leave exposed, all of it over the step without) for
    each kind of collective that the run has; of a mixture, of its experts' exchange alone."""
    model, layout, recipe = run.model, run.layout, load_recipe(run.recipe)
    cluster = as_cluster(run.cluster)
    if model.experts:
        yield "ep", *_exchange_by_streams(run, cluster, recipe, known)
        return
    program = layout_program(model, layout, recipe, run.sequence)
    few, prices = program.representatives(), prices_of(cluster, recipe, True, known)
    kernels, whole = prices.kernels(few), prices.collective(program.shape, exposed=False)
    moved = layout.microbatch * run.sequence // layout.tp * model.hidden * recipe.compute_bytes
    hop = float(p2p(1.0 * moved, layout.pp, layout.tp * layout.dp, cluster))

    def seconds(which: Program, axis: int | None = None, latency: float = 0.0) -> float:
        """Of a step in which nothing else is sent between ranks."""

        def collective(each: Collective) -> float:
            return whole(each) if each.axes == (axis,) else 0.0

        line = which.timeline(kernels, latency=latency, collective=collective)
        return float(line.end.max())

    alone = seconds(few)
    for kind, axis, size in (("tp", TENSOR, layout.tp), ("dp", DATA, layout.dp)):
        if size > 1:
            waited = seconds(few, axis) - alone
            most = seconds(few.on_compute(kind), axis) - alone
            name = "fsdp" if (kind, layout.zero) == ("dp", 3) else kind
            yield name, waited / most, most / alone
    if layout.pp > 1:  # where every chunk waits for each of its messages: the closed form
        all_, none = (run.step(_exposing(known, "pp", part)).total for part in (1.0, 0.0))
        yield "pp", (seconds(few, None, hop) - alone) / (all_ - none), (all_ - none) / alone


def _exchange_by_streams(
    run: StackRun, cluster: ClusterSpec, recipe: Recipe, known: Calibration
) -> tuple[float, float]:
    """Of the exchange in layers of experts, the part that streams leave exposed, and all of it
    over the layers' work."""
    all_of_it, numbers = _exposing(known, "ep", 1.0), Numbers.of(run.layout)
    time = StepTime(run.model, cluster, numbers, recipe, run.sequence, all_of_it)
    weights = next(each for _, _, each in run.model.layer_kinds if any(w.copies > 1 for w in each))
    layer = time.layer(weights)
    around = time.layer(tuple(weight for weight in weights if weight.copies == 1))
    again = run.layout.recompute == "full"
    whole, attention = (w.compute if again else w.compute + w.recompute for w in (layer, around))
    kernels = {
        "attention": attention.forward,
        "experts": whole.forward - attention.forward,
        "experts_grad": whole.backward - attention.backward,
        "attention_grad": attention.backward,
    }
    program = exchange_program(run.model.layers, known.waits("ep") < 1, again)

    def seconds(which: Program, exchange: Values = 0.0) -> float:
        line = which.timeline(
            lambda each: float(kernels[each.kernel]), collective=lambda _: float(exchange)
        )
        return line.makespan

    alone, once = seconds(program), layer.ep.forward / 2
    most = seconds(program.on_compute("ep"), once) - alone
    return (seconds(program, once) - alone) / most, most / alone


FORWARD = "attention", "", "experts", ""
BACKWARD = "", "experts_grad", "", "attention_grad"
"""What a micro-batch does in a layer; "": tokens go to their experts, and come back."""


def exchange_program(layers: int, paired: bool = False, again: bool = False) -> Program:
    """What a device does in ``layers`` of experts: a micro-batch goes forward and then backward,
    ``again``: computing each layer again first; ``paired``: one goes forward while another goes
    backward.

    >>> exchange_program(1, paired=True).role(0).parts[0].instructions[1]
    d1 = all_to_all d0 {'axes': (0,), 'counts': (1,), 'itemsize': 1} @ep
    """

    def along(way: str, steps: tuple[str, ...]) -> list[Instruction]:
        names = pairwise(f"{way}{n}" for n in range(len(steps) * layers + 1))
        return [
            Do(step, (x,), (y,)) if step else AllToAll(x, y, (0,), (1,), 1, stream="ep")
            for step, (x, y) in zip(steps * layers, names, strict=True)
        ]

    forward, backward = along("x", FORWARD), along("d", FORWARD * again + BACKWARD)
    turns = forward + backward
    if paired:
        turns = [*chain.from_iterable(zip(forward, backward, strict=True))]
    part = ProgramPart("pair" if paired else "turn", -1, tuple(turns))
    sizes = {name: 1 for each in turns for name in (*each.reads, *each.writes)}
    begin = {name: sizes.pop(name) for name in ("x0", "d0")}
    role = ProgramRole((part,), sizes, stays=begin, given=frozenset(begin))
    line = ProgramLine(*(np.zeros(1, kind) for kind in (np.int32, np.int32, np.bool_)))
    return Program((role,), (line,), (0,), "experts")


def _exposing(known: Calibration, kind: str, part: float) -> Calibration:
    """``known``, where ``part`` of that kind is waited for."""
    return replace(known, exposed=tuple((k, part if k == kind else v) for k, v in known.exposed))


def _range(known: Calibration, kind: str) -> Reached:
    """The calibration's number, of both ways where they have each their own."""
    numbers = {key.split(".exposed.")[-1]: number for key, number in known.numbers}
    there = numbers[kind]
    back = numbers.get(f"{kind}_backward", there)
    value, low, high = ((a + b) / 2 for a, b in zip(_ends(there), _ends(back), strict=True))
    return Reached(value, low, high, there.unit, there.origin)


def _ends(number: Reached) -> tuple[float, float, float]:
    return number.value, number.low, number.high
