"""16. A model on a single node: every layout that fits, ranked, and the best one executed."""

from functools import lru_cache

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.planning.scaled import trained
from tiledask.lab.questions.planning.scaling import syncs
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.choosing.search import Plans
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["QUESTION"]

RECIPE = "mixed-adam-16"
MEMORIES = (24, 40, 48, 80, 141)
"""GB of GPUs that a node may have."""
SHOWN = 4
CHECKED = 400
"""Layouts whose memory is counted once more, one by one."""
DEGREES = ["tp", "pp", "dp", "zero"]


@lru_cache(maxsize=64)
def _plans(billions: float, memory: int, devices: int, link: float, batch: int) -> Plans:
    machine = sized.machine(devices, memory, devices, within=link)
    return td.search(sized.decoder(billions), machine, batch)


def work(billions: float, memory: int, devices: int, link: float, batch: int) -> WorkedAnswer:
    """All layouts of the node: how many fit, by degree and by memory, and the fastest ones."""
    n, plans = sized.parameters(billions), _plans(billions, memory, devices, link, batch)
    model, room = sized.decoder(billions), format_bytes(memory)
    lines = [
        f"states, {RECIPE}: 16 B x {billions:g}e9 = {format_bytes(16 * n)} (GB = 1e9 bytes); a "
        f"full copy {sized.holds(16 * n, memory)}; / {devices} GPUs = "
        f"{format_bytes(16 * n / devices)}",
        f"with activations, buffers and a CUDA context, as `tiledask fit` counts: of "
        f"{plans.considered:,} layouts for {batch} sequences a step {plans.counts['fits']:,} fit, "
        f"{plans.counts['tight']:,} fit barely",
    ]
    frame = plans.to_frame(None)
    fitting = frame[frame["verdict"] == "fits"]
    best_of = fitting.groupby(DEGREES, sort=False).head(1)
    feasible = [list(map(int, row)) for row in best_of[DEGREES].itertuples(index=False)]
    lines.append(
        f"{len(feasible)} combinations of tp, pp, dp and ZeRO fit: "
        + ("; ".join(f"{t} {p} {d} {z}" for t, p, d, z in sorted(feasible)) or "none")
    )
    for at in best_of.index[:SHOWN]:
        plan = plans[int(at)]
        sent = ", ".join(
            f"{s.name} {format_bytes(s.bytes)}" for s in syncs(model, plan.layout, billions)
        )
        lines.append(
            f"{sized.brief(plan.layout)}: {format_bytes(plan.peak)} a GPU, bubble "
            f"{100 * plan.step.bubble / plan.step.total:.1f} %, "
            f"a GPU sends {sent or 'nothing'}, {format_seconds(plan.seconds)} a step"
        )
    counts = {}
    for gb in MEMORIES:
        there = _plans(billions, gb * 10**9, devices, link, batch)
        counts[str(gb)] = there.counts["fits"]
        lines.append(
            f"{devices} x {gb} GB: {format_bytes(16 * n / devices)} of states a GPU, "
            + (
                f"{counts[str(gb)]:,} fit, best {sized.brief(there.best.layout)}"
                if counts[str(gb)]
                else "nothing fits"
            )
        )
    best = plans.best
    if best.verdict == "fits":
        answer = (
            f"It fits: {len(feasible)} combinations do, the fastest {sized.brief(best.layout)} "
            f"with {format_bytes(best.peak)} a GPU, {format_seconds(best.seconds)} for "
            f"{batch} sequences ({best.step.tokens_per_second:,.0f} tokens/s)."
        )
    else:
        answer = (
            f"{'Nothing fits surely' if best.verdict == 'tight' else 'Nothing fits'}: the nearest, "
            f"{sized.brief(best.layout)}, needs {format_bytes(best.peak)} and overhead, of {room}; "
            f"the states alone, over {sized.gpus(devices)}, are {format_bytes(16 * n / devices)}."
        )
    return WorkedAnswer(
        answer,
        tuple(lines),
        {
            "states_each": 16 * n / devices,
            "fitting": plans.counts["fits"],
            "feasible": sorted(feasible),
            "best": str(best.layout),
            "verdict": best.verdict,
            "seconds": best.seconds if best.verdict != "no" else None,
            "fitting_by_memory": counts,
        },
        lambda: td.plots.feasibility(plans),
    )


def run(
    cluster: Cluster, billions: float, memory: int, devices: int, link: float, batch: int
) -> Comparison:
    """The search's verdicts counted again one by one; the best plan held, and trained."""
    plans = _plans(billions, memory, devices, link, batch)
    layout, some = plans.best.layout, plans[:: max(1, len(plans) // CHECKED)]
    plain = Layout(dp=layout.dp, tp=layout.tp, pp=layout.pp, zero=layout.zero)
    table = sized.held(
        cluster,
        "The best plan and a full copy",
        billions,
        {
            "the best": (plain, RECIPE, memory),
            "full copies": (Layout(dp=devices), RECIPE, memory),
        },
    )
    machine = sized.machine(devices, memory, devices, within=link)
    each = [td.fits(plans.model, plan.layout, machine) for plan in some]
    rows = [
        Claim(
            f"of {len(some)} layouts, those that fit; simulated: one by one",
            sum(plan.verdict == "fits" for plan in some),
            sum(fit.verdict == "fits" for fit in each),
            rule="equal",
        ),
        Claim(
            "peaks of all at once and one by one, greatest difference",
            0,
            max(abs(p.peak - f.memory.peak) for p, f in zip(some, each, strict=True)),
            None,
            "bytes",
            "equal",
        ),
        *trained(cluster, "the best plan", layout),
    ]
    return Comparison(table.title, (*table.rows, *rows))


QUESTION = CourseQuestion(
    16,
    "Your team must train a {billions}B-parameter LLM on a ...",
    "A model of {billions} billion parameters is to be trained on one node of {devices} GPUs of "
    "{memory}, {batch} sequences a step. Which "
    "degrees of tensor, pipeline and data parallelism and of ZeRO fit, and which is best?",
    {
        "billions": sized.size_of(30.0, 13.0),
        "memory": sized.memory_of("80GB", "40GB"),
        "devices": Input(8, 4, whole(1, 72), "GPUs of the node"),
        "link": Input(300e9, 16e9, number(1e6), "bytes/s of a GPU to the others"),
        "batch": Input(64, 256, whole(1, 100_000), "sequences of a step"),
    },
    work,
    run,
    largest_run={"devices": 16},
)
