"""What of each collective is waited for: as calibrated, and as the streams of a program leave it.

work       F F F F | B B B B        streams    each kind alone, as long as its bytes take:
stream       g g g |   s s s        leave      (waited for) / (as much on the stream of the work)
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from tiledask.lab.accuracy.rows import published
from tiledask.lab.accuracy.stacks import StackRun, run_of
from tiledask.plan.data import shipped_json
from tiledask.plan.inputs.load import as_cluster
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.program.instructions import Collective
from tiledask.plan.program.making.layers import TENSOR
from tiledask.plan.program.making.of_layout import layout_program
from tiledask.plan.program.making.unit_states import DATA
from tiledask.plan.program.prices import prices_of
from tiledask.plan.program.program import Program
from tiledask.plan.timing.calibration import Calibration, Reached
from tiledask.plan.timing.collective_time import p2p

__all__ = ["ExposedShare", "exposed_by_streams", "exposed_shares", "reasons"]

CASES = (
    "dgxc-nemotron15b-tp4-bf16-64",
    "nemo2407-fp8-nemotron22b",
    "mbridge-fp8-2509-h100-llama8b",
    "simumax-b200-llama3_70b_tp2_pp1_dp4_l12_mbc8_cef",
    "mpt-13b-T2048-8xh100_80gb-33",
    "titan2506-70b-vanilla",
    "titan2506-70b-async",
)
"""Published runs that stand for their frameworks: each way to split, and each kind once or more."""


class ExposedShare(NamedTuple):
    """One kind of collective of one run."""

    case: str
    framework: str
    kind: str
    """As in a framework's file: "tp", "dp", "fsdp", "pp"."""
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
    for case in CASES:
        run = run_of(published("plan2")[case])
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
    each kind of collective that the run has. Experts have no program."""
    model, layout, recipe = run.model, run.layout, load_recipe(run.recipe)
    cluster = as_cluster(run.cluster)
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
        ends = (
            replace(known, exposed=tuple((k, x if k == "pp" else v) for k, v in known.exposed))
            for x in (1.0, 0.0)
        )
        all_, none = (run.step(each).total for each in ends)
        yield "pp", (seconds(few, None, hop) - alone) / (all_ - none), (all_ - none) / alone


def _range(known: Calibration, kind: str) -> Reached:
    """The calibration's number, of both ways where they have each their own."""
    numbers = {key.split(".exposed.")[-1]: number for key, number in known.numbers}
    there = numbers[kind]
    back = numbers.get(f"{kind}_backward", there)
    value, low, high = ((a + b) / 2 for a, b in zip(_ends(there), _ends(back), strict=True))
    return Reached(value, low, high, there.unit, there.origin)


def _ends(number: Reached) -> tuple[float, float, float]:
    return number.value, number.low, number.high
