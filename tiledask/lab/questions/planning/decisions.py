"""19. Advice as a table: the best layout for each kind of GPU, and what binds on those at hand."""

from functools import lru_cache

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.planning.scaled import trained
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.choosing.search import Plan, Plans
from tiledask.plan.choosing.sensitivity import Relaxed
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["QUESTION"]

RECIPE = "mixed-adam-16"
MEMORIES = (24, 40, 80, 141)
"""GB of the GPUs in the table."""
NODES = (1, 2, 4)
"""Times the GPUs at hand."""
RANKED = 0.02
"""By which a search, which ranks by formula, may miss the fastest plan."""


@lru_cache(maxsize=64)
def _plans(
    billions: float, memory: int, devices: int, within: float, between: float, batch: int
) -> Plans:
    machine = sized.machine(devices, memory, 8, within, between)
    return td.search(sized.decoder(billions), machine, batch)


@lru_cache(maxsize=64)
def _limits(
    billions: float, memory: int, devices: int, within: float, between: float, batch: int
) -> tuple[Relaxed, ...]:
    machine = sized.machine(devices, memory, 8, within, between)
    return tuple(td.sensitivity(sized.decoder(billions), machine, batch))


def _said(plan: Plan) -> str:
    if plan.verdict != "fits":
        return "nothing that fits" if plan.verdict == "no" else "nothing that surely fits"
    return f"{sized.brief(plan.layout)}, {format_seconds(plan.seconds)}"


def _changed(relaxed: Relaxed) -> str:
    """What a limit doubled changes, in a line."""
    gain = "" if not _fits(relaxed.before) else f", {relaxed.speedup:.3g} times as fast"
    return f"{relaxed.limit} x 2: {_said(relaxed.after)}{gain}"


def _fits(plan: Plan) -> bool:
    return plan.verdict == "fits"


def work(
    billions: float, memory: int, devices: int, within: float, between: float, batch: int
) -> WorkedAnswer:
    """The best layout for GPUs of each size and for more of them, and what binds."""
    links = within, between
    n, best = sized.parameters(billions), _plans(billions, memory, devices, *links, batch).best
    lines = [
        f"states, {RECIPE}: 16 B x {billions:g}e9 / {sized.gpus(devices)} = "
        f"{format_bytes(16 * n / devices)} of {format_bytes(memory)} (GB = 1e9 bytes), "
        f"{sized.holds(16 * n / devices, memory)}; below activations, buffers and a CUDA context "
        f"count too, as in `tiledask fit`; seconds are of a step",
        f"at hand, {devices} x {format_bytes(memory)}: {_said(best)}",
    ]
    decisions = {}
    for gb in MEMORIES:
        cells = []
        for times in NODES:
            plan = _plans(billions, gb * 10**9, devices * times, *links, batch).best
            decisions[f"{devices * times} x {gb} GB"] = _said(plan)
            cells.append(f"{devices * times} GPUs: {_said(plan)}")
        lines.append(f"{gb} GB: {'; '.join(cells)}")
    limits = _limits(billions, memory, devices, *links, batch)
    lines += [_changed(each) for each in limits if each.speedup > 1]
    none = [each.limit for each in limits if each.speedup <= 1]
    lines += [f"doubled alone, these change nothing: {', '.join(none)}"] if none else []
    first = limits[0]
    if not _fits(first.before) and first.speedup > 1:
        advice = f"what binds is {first.limit}: doubled, {_said(first.after)}"
    elif first.speedup > 1:
        advice = f"what binds is {first.limit}: doubled, a step takes {first.after.seconds:.3g} s"
    else:
        advice = "no limit that is doubled alone makes a plan fit"
    now = f"run {_said(best)}" if _fits(best) else "nothing fits"
    return WorkedAnswer(
        f"On {devices} GPUs of {format_bytes(memory)}, with {batch} sequences a step: {now}. "
        f"{advice[0].upper()}{advice[1:]}.",
        tuple(lines),
        {
            "best": _said(best),
            "decisions": decisions,
            "binds": first.limit if first.speedup > 1 else None,
            "speedups": {r.limit: str(round(r.speedup, 4)) for r in limits},
        },
        lambda: td.plots.sensitivity_bars(limits),
    )


def _doubled(billions: float, relaxed: Relaxed) -> list[Claim]:
    """Claims on one limit doubled: states that cannot fit do not, and a plan chosen anew is no
    slower than the one that was chosen before."""
    cluster, before, after = relaxed.after.found.cluster, relaxed.before, relaxed.after
    whole = 16 * sized.parameters(billions)
    can = whole < cluster.devices * cluster.device.memory_bytes
    rows = []
    if not _fits(before):
        rows.append(
            Claim(
                f"{relaxed.limit} doubled: a plan fits",
                can,
                _fits(after),
                rule=None if can else "equal",
                note=f"predicted: {format_bytes(whole)} of states on {cluster.devices} x "
                f"{format_bytes(cluster.device.memory_bytes)}",
            )
        )
    if _fits(before) and before.layout.devices == cluster.devices:
        kept = td.estimate_step(sized.decoder(billions), before.layout, cluster).total
        rows.append(
            Claim(
                f"{relaxed.limit} doubled: the new plan's step, and the old plan's",
                after.seconds,
                kept,
                None,
                "seconds",
                ("ratio", 1 - RANKED, 1000.0),
                f"before {format_seconds(before.seconds)}",
            )
        )
    return rows


def run(
    cluster: Cluster,
    billions: float,
    memory: int,
    devices: int,
    within: float,
    between: float,
    batch: int,
) -> Comparison:
    """Limits doubled one at a time; the plans before and after held, and the last one trained."""
    limits = _limits(billions, memory, devices, within, between, batch)
    first = limits[0]
    before, after = first.before, first.after
    plans = {}
    for name, plan, room in (
        ("now", before, memory),
        (f"{first.limit} doubled", after, memory),
        (f"{first.limit} doubled", after, after.found.cluster.device.memory_bytes),
    ):
        layout = plan.layout
        plain = Layout(dp=layout.dp, tp=layout.tp, pp=layout.pp, zero=layout.zero)
        plans[f"{name}: {plain} on {format_bytes(room)}"] = plain, RECIPE, room
    table = sized.held(cluster, "Best plans", billions, plans)
    rows = [row for relaxed in limits for row in _doubled(billions, relaxed)]
    changes = before.verdict != after.verdict or after.seconds < before.seconds
    rows += [
        Claim(f"{first.limit} doubled changes the answer", None, changes, rule="true"),
        *trained(cluster, "the best plan with it", after.layout),
    ]
    return Comparison(table.title, (*table.rows, *rows))


QUESTION = CourseQuestion(
    19,
    "You're advising an internal platform team that must ...",
    "A platform team has {devices} GPUs of {memory} for a model of {billions} billion parameters. "
    "What should it run, "
    "what would other GPUs or more of them change, and which limit binds?",
    {
        "billions": sized.size_of(30.0, 7.0),
        "memory": sized.memory_of("40GB", "80GB"),
        "devices": Input(8, 16, whole(1, 1024), "GPUs at hand, 8 in a node"),
        "within": Input(300e9, 16e9, number(1e6), "bytes/s of a GPU within its node"),
        "between": Input(25e9, 2.5e9, number(1e6), "bytes/s of a GPU between nodes"),
        "batch": Input(64, 256, whole(1, 100_000), "sequences of a step"),
    },
    work,
    run,
    largest_run={"devices": 256},
)
