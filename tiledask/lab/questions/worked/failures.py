"""21, 24 and 25: runs that fail or idle: sizes they can have had, their gaps, NaN; a hybrid."""

from fractions import Fraction
from math import ceil
from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.claim import Claim
from tiledask.lab.questions.question import Input, WorkedAnswer, question
from tiledask.lab.questions.shares import count
from tiledask.lab.questions.worked import runs, sizes
from tiledask.lab.questions.worked.sizes import ADAM, BILLIONS, COUNTED, GB, MEMORY, brief, holds
from tiledask.lab.table import Comparison
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.pipelines.closed_form import bubble_fraction, naive_utilisation
from tiledask.plan.units import format_bytes

MICROBATCHES = Input("micro-batches of a copy in a step", 1, 1024, run=256)
LARGEST_HALF = 65504
SHARE = Fraction(9, 10)
"""Of the time, that devices are to be busy."""


@question(
    21,
    "Postmortem and Redesign of a Distributed Training Run with Divergence and Low GPU Utilization",
    "A model that does not fit one GPU of {memory} in single precision was trained in {stages} "
    "stages x {replicas} replicas, {microbatches} micro-batches each, in fp16 with fp32 masters. "
    "The loss became NaN and GPUs idled unevenly. What was the cause of each, and what would you "
    "change?",
    memory=MEMORY,
    stages=Input("stages of a replica", 2, 512, run=64),
    replicas=Input("data-parallel replicas", 2, 4096, run=32),
    microbatches=Input("micro-batches of a replica in a step", 1, 1024, run=256),
    slowest=Input("time of the last stage; the others take 1", 0.1),
    scale=Input("by which the loss is multiplied", 1),
)
def postmortem(
    memory: int = 40 * GB,
    stages: int = 4,
    replicas: int = 2,
    microbatches: int = 4,
    slowest: float = 1.5,
    scale: float = 2.0**18,
) -> WorkedAnswer:
    """The sizes for which the story can be true, busy shares, and where fp16 overflows."""
    each = load_recipe("fp32-weights").bytes_per_parameter
    least, p, m = memory / each / 1e9, stages, microbatches
    a_billion = [sizes.states(1.0, Layout(dp=replicas, pp=p, zero=z))[0] for z in range(4)]
    most = [memory / size for size in a_billion]
    shares = {n: Fraction(n, n + p - 1) for n in sorted({1, 4, 8, 16, 32, m})}
    enough = ceil(SHARE * (p - 1) / (1 - SHARE))
    times = [1.0] * (p - 1) + [slowest]
    uneven = td.simulate(td.schedule("1f1b", p, m), forward=times, backward=[2 * t for t in times])
    alike = LARGEST_HALF / replicas
    works = next((zero for zero, high in enumerate(most) if high > least), None)
    story = "No size is both too large for one GPU and small enough for the stages"
    if works is not None:
        story = (
            "The story holds "
            + f"with ZeRO-{works} " * bool(works)
            + f"for {least:.4g} to {most[works]:.4g} billion parameters"
            + f", up to {most[3]:.4g} with ZeRO-3" * (0 < works < 3)
        )

    def run(cluster: Cluster) -> Comparison:
        """States at the edge; idle time; NaN made and taken away; the redesign."""
        from tiledask.lab.precision import REMEDIES, train_replicas

        rows = [runs.bubble(cluster, p, m), runs.bubble(cluster, p, m, slowest=slowest)]
        ranks = min(replicas, cluster.slots)
        mesh = td.Mesh(cluster, (ranks,))
        for name, how in REMEDIES.items():
            played = td.run_threads(train_replicas, ranks, how, scale).results[0]
            found = td.run_ranks(train_replicas, mesh, how, scale, timeout=240).results[0]
            name = f"{ranks} replicas, fp16, {name}: all losses are numbers"
            note = f"largest scaled gradient before a sum {found.largest:g}"
            rows.append(Claim(name, None, played.finite, found.finite, rule="equal", note=note))
        redesign = Layout(dp=replicas, pp=p, zero=1)
        rows += runs.trained(cluster, "the redesign, fp16", redesign, "float16")
        size, layouts = least * 1.05, (Layout(dp=replicas, pp=p, zero=z) for z in (0, 1, 2))
        plans = {f"{size:.4g} billion, ZeRO-{each.zero}": (each, ADAM, memory) for each in layouts}
        return runs.held(cluster, "The run again", sizes.parameters(size), plans, rows)

    return WorkedAnswer(
        f"{story}. Of the time, the ramp of m = {m} on {p} stages leaves "
        f"{100 * (1 - float(shares[m])):.1f} % idle, {100 * (1 - uneven.utilisation):.1f} % with "
        f"a stage that takes {slowest:g} times as long: "
        + f"more micro-batches ({enough} for 90 % busy) and "
        * (m < enough)
        + f"layers cut evenly help. The NaN comes from fp16 sums of {replicas} replicas above "
        f"{LARGEST_HALF}: divide before the sum, sum in fp32, or let the loss scale give way.",
        [
            sizes.convention(),
            f"too large for one GPU in fp32: {each} B x P > {format_bytes(memory)}, so P > "
            f"{least:.4g} billion; P parameters on {p} stages x {replicas} replicas:",
            *(
                f"ZeRO-{z}: {format_bytes(memory)} / ({a_billion[z] / 1e9:.4g} B a parameter) = at "
                f"most {high:.4g} billion on the stages: "
                + (f"{least:.4g} to {high:.4g} billion" if high > least else "no size is both")
                for z, high in enumerate(most)
            ),
            f"busy, m / (m + p - 1), p = {p}: "
            + ", ".join(f"m = {n} {100 * float(share):.1f} %" for n, share in shares.items()),
            f"{100 * float(SHARE):.0f} % or more takes m >= 9 (p - 1) = {enough}: m = {m} "
            f"{'reaches' if shares[m] >= SHARE else 'does not reach'} it",
            f"one stage takes {slowest:g} times as long: max / mean = "
            f"{max(times) * p / sum(times):.4g}, and with m = {m} devices are busy "
            f"{100 * uneven.utilisation:.1f} % of the time, simulated",
            f"fp16 ends at {LARGEST_HALF}; {replicas} replicas whose scaled gradients are each "
            f"above {LARGEST_HALF} / {replicas} = {alike:g} sum to more: inf, then NaN; with the "
            f"loss times {scale:g} that is a gradient of {alike / scale:.4g}",
        ],
        {
            "least_billions": least,
            "most_billions": most,
            "zero_needed": works,
            "busy": float(shares[m]),
            "enough": enough,
            "busy_uneven": uneven.utilisation,
            "overflows_above": alike / scale,
        },
        run,
        figure=lambda: td.plots.gantt(uneven, title="One stage slower than the others"),
    )


@question(
    24,
    "Choosing a Distributed Training Configuration After a Hardware Refresh",
    "GPUs of {memory} replace larger ones, and a model of {billions} billion parameters is to be "
    "trained in mixed precision. Configuration A is data parallel over all of them; B has {pp} "
    "stages x {tp} tensor slices x {dp} copies, {microbatches} micro-batches each. It is said that "
    "A runs out of memory, and that B starts and shows idle gaps. Which of that is so, and what "
    "would you run?",
    billions=BILLIONS,
    memory=MEMORY,
    dp=Input("copies in B", 1, 4096, run=512),
    tp=Input("tensor slices in B", 1, 8),
    pp=Input("stages in B", 1, 64),
    microbatches=Input("micro-batches of a copy in a step", 1, 4096, run=256),
)
def refresh(
    billions: float = 30.0,
    memory: int = 24 * GB,
    dp: int = 4,
    tp: int = 2,
    pp: int = 4,
    microbatches: int = 4,
) -> WorkedAnswer:
    """What A and B keep under each stage of ZeRO, and how idle B's stages are."""
    n, devices, room = sizes.parameters(billions), dp * tp * pp, format_bytes(memory)
    whole = n * load_recipe(ADAM).bytes_per_parameter
    layouts = [Layout(dp=dp, tp=tp, pp=pp, zero=zero) for zero in range(4)]
    worked = [sizes.states(billions, layout) for layout in layouts]
    held = [size for size, _ in worked]
    zero = next((z for z, size in enumerate(held) if size <= memory), None)
    kept: dict[str, Any] = {
        "zero": zero or 0,
        "microbatches": microbatches,
        "flash_attention": True,
    }
    fit = td.fits(
        sizes.decoder(billions), Layout(dp=dp, tp=tp, pp=pp, **kept), sizes.machine(devices, memory)
    )
    fix, all_else = fit.smallest_fix, ""
    if fix:
        all_else = f"{brief(fix.layout)} on {count(fix.devices, 'GPU')} fits"
    bubbles = {str(m): bubble_fraction(pp, m) for m in sorted({microbatches, 4, 8, 16, 32})}
    either = " either" * (whole > memory)
    starts = f"B as written does not start{either}, it needs ZeRO-{zero} or more"
    if zero is None:
        starts = "B does not start under any stage of ZeRO"
    elif zero == 0:
        starts = "B starts as it is written"
        if fit.verdict != "fits":
            starts = (
                f"B's states fit as it is written, with all else counted it is {sizes.verdict(fit)}"
            )
    plans = {"A": (Layout(dp=devices), ADAM), "B as written": (layouts[0], ADAM)}
    plans |= {f"B, ZeRO-{layout.zero}": (layout, ADAM) for layout in layouts[1:]}
    return WorkedAnswer(
        f"A needs {format_bytes(whole)} on every GPU of {room} and "
        f"{'cannot start' if whole > memory else 'starts'}. {starts}: the states are "
        f"{', '.join(f'{format_bytes(size)} (ZeRO-{z})' for z, size in enumerate(held))}"
        + f"; with all else counted {all_else}" * bool(fix)
        + f". B's {pp} stages are busy {100 * (1 - bubbles[str(microbatches)]):.0f} % of the time "
        f"with {microbatches} micro-batches; more of them, or chunks, fill the gaps.",
        [
            sizes.convention(),
            f"A, dp {devices}: 16 B x {billions:g}e9 = {format_bytes(whole)} a GPU of {room}, "
            f"{holds(whole, memory)}; fp16 weights alone {format_bytes(2 * n)}",
            f"B, pp {pp} x tp {tp} x dp {dp}: {billions:g}e9 / ({pp} x {tp}) = "
            f"{n / (tp * pp) / 1e9:.4g}e9 parameters a GPU",
            *(
                f"B, ZeRO-{z}: {how}, {holds(size, memory)}"
                for z, (size, how) in enumerate(worked)
            ),
            f"{COUNTED}, B with ZeRO-{zero or 0}: {sizes.verdict(fit)}{'; ' * bool(fix)}{all_else}",
            f"busy, m / (m + p - 1), p = {pp}: "
            + ", ".join(f"m = {m} {100 * (1 - idle):.1f} %" for m, idle in bubbles.items()),
        ],
        {
            "copy_bytes": whole,
            "states": held,
            "lowest_zero": zero,
            "idle": bubbles,
            "idle_now": bubbles[str(microbatches)],
            "verdict": fit.verdict,
        },
        lambda cluster: runs.held(
            cluster, "A, B and what B lacks", n, runs.under(plans, memory),
            [runs.bubble(cluster, pp, microbatches),
             *runs.trained(cluster, "B, ZeRO-2", layouts[2])],
        ),
        figure=lambda: sizes.bars(billions, plans, memory),
    )  # fmt: skip


@question(
    25,
    "Selecting a Hybrid Parallelism + Mixed-Precision Strategy for a Memory-Bound LLM Training Run",
    "A model of {billions} billion parameters is to be trained on {devices} GPUs of {memory}. Data "
    "parallelism ran out of memory; {stages} stages in single precision ran, it is said, but were "
    "mostly idle; fp16 was unstable. Which hybrid, and which precision, would you choose?",
    billions=BILLIONS,
    memory=MEMORY,
    devices=Input("GPUs", 1, 4096),
    stages=Input("stages of the run that idled", 1, 512, run=64),
    microbatches=MICROBATCHES,
    gradient="a typical small gradient",
    scale="by which the loss is multiplied",
)
def hybrid(
    billions: float = 30.0,
    memory: int = 80 * GB,
    devices: int = 8,
    stages: int = 4,
    microbatches: int = 8,
    gradient: float = 1e-8,
    scale: float = 2.0**16,
) -> WorkedAnswer:
    """What every plan that was tried keeps, how busy stages are, and what fp16 loses."""
    from tiledask.lab.precision import FORMATS, lost_update, underflow

    room, p, d = format_bytes(memory), stages, max(1, devices // stages)
    plans = {
        "copies, fp32": (Layout(dp=devices), "fp32-adam"),
        f"{p} stages, fp32 Adam": (Layout(pp=p), "fp32-adam"),
        f"{p} stages, fp32 SGD": (Layout(pp=p), "fp32-sgd"),
        f"dp {d} x pp {p}": (Layout(dp=d, pp=p), ADAM),
        f"dp {d} x pp {p}, ZeRO-1": (Layout(dp=d, pp=p, zero=1), ADAM),
        f"dp {d} x pp {p}, ZeRO-2": (Layout(dp=d, pp=p, zero=2), ADAM),
        f"{devices} slices": (Layout(tp=devices), ADAM),
    }
    worked = {name: sizes.states(billions, *plan) for name, plan in plans.items()}
    busy, piped = naive_utilisation(p), 1 - bubble_fraction(p, microbatches)
    half, single = FORMATS["float16"], FORMATS["float32"]
    alone, kept = half.nearest(gradient), half.nearest(gradient * scale) / scale
    step, digits = 1 + 2.0**-half.digits, half.digits
    found = td.search(
        sizes.decoder(billions), sizes.machine(devices, memory), devices * microbatches
    )
    best, fits = found.best, found.best.verdict == "fits"
    fitting = [f"{name} ({format_bytes(n)})" for name, (n, _) in worked.items() if n <= memory]
    layout = "No layout fits with activations and overhead"
    if fits:
        layout = (
            f"The fastest layout with everything counted is {brief(best.layout)} "
            f"({format_bytes(best.peak)}, {best.seconds:.3g} s a step)"
        )

    def run(cluster: Cluster) -> Comparison:
        """Plans held or refused; idle time; the hybrid trained in fp16; small numbers lost."""
        rows = [
            runs.bubble(cluster, p, 1, "naive"),
            runs.bubble(cluster, p, microbatches),
            *runs.trained(cluster, "the hybrid, fp16", Layout(dp=d, pp=p, zero=1), "float16"),
            *underflow(gradient=gradient, scale=scale).rows,
            *lost_update().rows,
        ]
        n = sizes.parameters(billions)
        return runs.held(cluster, "Layouts that were tried", n, runs.under(plans, memory), rows)

    return WorkedAnswer(
        f"By their states these fit {room}: {'; '.join(fitting) or 'none'}. {layout}; with "
        f"micro-batches stages are busy {100 * piped:.0f} % of the time and not "
        f"{100 * busy:.0f} %; fp16 needs a loss scale and fp32 masters.",
        [
            sizes.convention(ADAM, "fp32-adam", "fp32-sgd"),
            *(f"{name}: {how} of {room}, {holds(n, memory)}" for name, (n, how) in worked.items()),
            f"{p} stages, one batch at a time: 1 / {p} = {100 * busy:.1f} % busy; {microbatches} "
            f"micro-batches: {microbatches} / {microbatches + p - 1} = {100 * piped:.1f} %",
            f"fp16, a gradient of {gradient:g}: {alone:.4g}; times {scale:g}, rounded, and back: "
            f"{kept:.4g}; a weight of 1 and an update of 2^-{digits}: {half.nearest(step)!r}, in "
            f"an fp32 master {single.nearest(step)!r}",
            f"{COUNTED}, {found.counts['fits']:,} of {found.considered:,} layouts fit; "
            f"{'the fastest' if fits else 'the nearest'} is {brief(best.layout)}: "
            f"{format_bytes(best.peak)} and overhead",
        ],
        {
            "states": {name: size for name, (size, _) in worked.items()},
            "busy_naive": busy,
            "busy": piped,
            "gradient_alone": alone,
            "gradient_scaled": kept,
            "fitting": found.counts["fits"],
            "best": str(best.layout) if fits else None,
        },
        run,
        figure=lambda: sizes.bars(billions, plans, memory),
        more=(f"all of the layout: {best.layout}",),
    )
