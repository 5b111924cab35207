"""2, 3, 13 to 15, 18, 21, 24 and 25: what no device holds, in copies or in slices, on how many."""

from dataclasses import replace
from fractions import Fraction

import numpy as np

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.course import runs, sizes
from tiledask.lab.course.question import Worked, count, cut_over, question
from tiledask.lab.course.runs import held
from tiledask.lab.course.sizes import ADAM, COUNTED, GB, brief, holds
from tiledask.plan.fitting.fit import Fit
from tiledask.plan.fitting.states import minimum_devices, zero3_minimum_degree
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import load_recipe, state_bytes
from tiledask.plan.pipelines.closed_form import bubble_fraction, naive_utilisation
from tiledask.plan.units import format_bytes

ROWS, TOKENS = 1000, 8
"""Rows of a large layer's matrix and of the batch."""
OPTIMIZERS = {
    "forward": "fp32-weights",
    "sgd": "fp32-sgd",
    "momentum": "fp32-momentum",
    "adam": "fp32-adam",
}
"""Step -> what is kept, in fp32: 1 to 4 arrays as large as the weights."""
BATCH = 0.6
"""Seconds that all layers take for one batch, whoever does them."""
LIGHTER = ("mixed-momentum", "mixed-adam-8bit", "bf16-adam", "bf16-adam-8bit", "fp16-sgd", "lora")
"""Recipes that keep less of each parameter, most first."""


@question(2)
def large_layer(weights: int, memory: int, gpus: int, step: str) -> Worked:
    """The bytes of each strategy on the fullest GPU, and which have room."""
    arrays, columns = [*OPTIMIZERS].index(step) + 1, weights // (4 * ROWS)
    room = memory // (4 * (arrays * ROWS + TOKENS))
    cut_over(gpus, columns=columns)
    if not room:
        raise ConfigError(f"a GPU of {memory} B has room for 0 columns of W; give it more memory")
    # strategy -> rows and columns of the part of W, rows of the batch, on the fullest GPU
    strategies = {
        "copies": (ROWS, columns, -(-TOKENS // gpus)),
        "smaller batches": (ROWS, columns, 1),
        "a layer each": (ROWS, columns, TOKENS),
        "columns": (ROWS, -(-columns // gpus), TOKENS),
        "rows": (-(-ROWS // gpus), columns, TOKENS),
    }
    size = {name: 4 * c * (arrays * r + tokens) for name, (r, c, tokens) in strategies.items()}
    survive, fewest = [name for name in size if size[name] <= memory], -(-columns // room)
    way = f"Only cutting the matrix itself helps, by columns over {count(fewest, 'GPU')} or more"
    recipe = OPTIMIZERS[step]
    plans = {"copies": (Layout(dp=gpus), recipe), "columns": (Layout(tp=gpus), recipe)}
    return Worked(
        f"These fit: {', '.join(survive) or 'nothing'}. "
        f"{'W fits a GPU whole, and need not be cut' if 'copies' in survive else way}.",
        f"W of {ROWS:,} x {columns:,} takes {format_bytes(weights)} of {format_bytes(memory)}; "
        f"fp32, {step}: {arrays} x its size; and y of {TOKENS} tokens; nothing else is counted",
        *(f"by {name}: {arrays} x {format_bytes(weights)} x {r * c / ROWS / columns:.4g} + "
          f"{format_bytes(4 * c * tokens)} = {format_bytes(size[name])}, "
          f"{holds(size[name], memory)}" for name, (r, c, tokens) in strategies.items()),
        values={"survive": survive, "held": size, "fewest": fewest},
        run=lambda cluster: held(cluster, weights // 4, plans, memory),
    )  # fmt: skip


@question(3)
def bottleneck(weights: int, memory: int, gpus: int, recipe: str) -> Worked:
    """W over the GPUs for each optimizer; the fewest GPUs of each."""
    n, recipes = weights // 4, OPTIMIZERS.values()
    size = {name: sum(state_bytes(-(-n // gpus), name).values()) for name in recipes}
    fewest = {name: minimum_devices(n, name, memory) for name in recipes}
    few, fits = fewest[recipe], size[recipe] <= memory
    _, how, context = sizes.with_context(n / 1e9, memory, few, recipe)
    plans = {"copies": (Layout(dp=gpus), "fp32-weights"), "slices": (Layout(tp=few), recipe)}
    return Worked(
        f"The states of {recipe} over {gpus} GPUs, {format_bytes(size[recipe])} each, "
        f"{'fit' if fits else 'do not fit'} {format_bytes(memory)}: cut W itself, over "
        f"{count(few, 'GPU')} or more{context}.",
        f"data parallelism, or a layer to each GPU: {format_bytes(weights)} of weights on each",
        *(f"{name}: {load_recipe(name).bytes_per_parameter} B x {n:,} / {gpus} = "
          f"{format_bytes(size[name])}; {count(fewest[name], 'GPU')} or more"
          for name in recipes),
        f"{recipe} {how}",
        values={"held": size, "fewest": fewest, "fits": fits},
        run=lambda cluster: held(cluster, n, plans, memory),
    )  # fmt: skip


@question(13)
def first_layers_first(
    parameters: float, memory: int, units: int, recipe: str, transfer: float
) -> Worked:
    """Bytes on one unit and on each of several; computation and time of one batch."""
    whole = parameters * load_recipe(recipe).bytes_per_parameter
    share, T = whole / units, BATCH + 2 * (units - 1) * transfer
    least = minimum_devices(int(parameters), recipe, memory)
    plans = {"one unit": (Layout(), recipe), f"{units} units": (Layout(pp=units), recipe)}
    return Worked(
        f"It divides memory: {format_bytes(share)} instead of {format_bytes(whole)} on a unit of "
        f"{format_bytes(memory)}. It saves no computation: {T:g} s a batch, on one {BATCH:g} s.",
        sizes.convention(recipe),
        *sizes.each_of(parameters / 1e9, memory, plans)[1],
        sizes.with_context(parameters / 1e9, memory, least, recipe)[1],
        f"one batch: {BATCH:g} s of work + 2 x {units - 1} x {transfer:g} s of transfers",
        values={"one unit": whole, "each unit": share, "fits on one": whole <= memory,
                "fits in parts": share <= memory, "units needed": least, "seconds": T},
        run=lambda cluster: [
            *held(cluster, round(parameters), plans, memory),
            *runs.idle(cluster, units, 1, "naive")],
    )  # fmt: skip


@question(14)
def copies_or_slices(billions: float, memory: int, devices: int) -> Worked:
    """Fewest GPUs by every convention, what a copy and a slice keep, and what fits in the end."""
    n, room = sizes.parameters(billions), format_bytes(memory)
    fewest = {name: minimum_devices(n, name, memory) for name in sizes.CONVENTIONS}
    whole, degree = n * load_recipe(ADAM).bytes_per_parameter, zero3_minimum_degree(n, ADAM, memory)
    fails, few = whole > memory, fewest[ADAM]
    more, how, context = sizes.with_context(billions, memory, few)
    lean, there = Layout(dp=devices, flash_attention=True), sizes.machine(devices, memory)
    fix = td.fits(sizes.decoder(billions), lean, there).smallest_fix
    plans = {
        "A, copies": (Layout(dp=devices), ADAM),
        f"A, ZeRO-3 on {degree}": (Layout(dp=degree, zero=3), ADAM),
        f"B, {few} slices": (Layout(tp=few), ADAM),
        f"B, {few} slices, fp16 weights": (Layout(pp=few), "fp16-weights"),
    }
    tried = plans | {f"B, {devices} slices": (Layout(tp=devices), ADAM)}
    return Worked(
        f"{'B' if fails else 'Either'}: A keeps {format_bytes(whole)} on every GPU of {room} and "
        f"{'cannot start' if fails else 'its states fit'}. B keeps 1/N: the states take "
        f"{count(few, 'GPU')}{context}. A with ZeRO-3 does the same from {degree} copies on.",
        sizes.convention(),
        *sizes.each_of(billions, memory, tried)[1],
        "fewest by what is kept: " + ", ".join(f"{name} {n}" for name, n in fewest.items()),
        how,
        f"{COUNTED}: {brief(fix.layout) if fix else 'nothing'} fits",
        values={"fewest": fewest, "zero3_degree": degree, "copy_bytes": whole,
                "slice_bytes": -(-whole // devices), "fewest_with_context": more,
                "copies_fit": not fails, "fitting_layout": fix and str(fix.layout)},
        run=lambda cluster: held(cluster, n, plans, memory),
    )  # fmt: skip


@question(15)
def why_cut(billions: float, memory: int, recipe: str) -> Worked:
    """Bytes of a GPU with copies and with slices, for 1, 2, 4, ... GPUs."""
    n, kept = sizes.parameters(billions), load_recipe(recipe)
    whole, enough = n * kept.bytes_per_parameter, minimum_devices(n, recipe, memory)
    _, how, context = sizes.with_context(billions, memory, enough, recipe)
    # 1, 2, 4, ... up to the first power of two that is enough
    powers = [2**i for i in range(max(1, enough - 1).bit_length() + 1)]
    plans = {"2 copies": (Layout(dp=2), recipe)}
    plans |= {f"{N} slices": (Layout(tp=N), recipe) for N in sorted({*powers, enough})}
    found, lines = sizes.each_of(billions, memory, plans)
    if kept.trains:
        gradients = f"fp{8 * kept.gradient_bytes} gradients in every step: 2 (N-1)/N x "
        lines.append(f"copies also send {gradients}{format_bytes(n * kept.gradient_bytes)} a GPU")
    run = [f"{N} slices" for N in {*powers[-3:], enough}]
    return Worked(
        f"A slice shrinks with the number of GPUs and a copy does not: {format_bytes(whole)} "
        f"{'never fit' if whole > memory else 'fit'} {format_bytes(memory)}; slices do from "
        f"{count(enough, 'GPU')} on{context}. Cutting buys memory, not speed.",
        sizes.convention(recipe), *lines, how,
        values={"copy_bytes": whole, "slice_bytes": [found[f"{N} slices"] for N in powers],
                "copies_fit": whole <= memory, "fewest_slices": enough},
        run=lambda cluster: held(
            cluster, n, {name: plans[name] for name in ("2 copies", *run)}, memory),
    )  # fmt: skip


@question(18)
def feasible(billions: float, memory: int, devices: int) -> Worked:
    """Whether a node trains it, and which recipe, GPU or number of GPUs would."""
    n, room, model = sizes.parameters(billions), format_bytes(memory), sizes.decoder(billions)
    few, each = minimum_devices(n, ADAM, memory), load_recipe(ADAM).bytes_per_parameter
    # as lean as can be: slices of a node, of the layers beyond it, and all that saves activations
    tp = max(t for t in (1, 2, 4, 8) if devices % t == 0)
    lean = Layout(
        tp=tp, pp=devices // tp, recompute="full", flash_attention=True, sequence_parallel=True
    )

    def fit(size: int, recipe: str = ADAM) -> Fit:
        return td.fits(model, lean, sizes.machine(devices, size), recipe)

    full, (_, how, context) = fit(memory), sizes.with_context(billions, memory, few)
    others = {name: fit(memory, name) for name in LIGHTER}
    others |= {f"GPUs of {gb} GB": fit(gb * GB) for gb in (94, 141, 192, 288)}
    outs, fix = (
        [name for name, found in others.items() if found.verdict == "fits"],
        full.smallest_fix,
    )
    outs += [f"{count(fix.devices, 'GPU')} of this size, {brief(fix.layout)}"] if fix else []
    plans = {r: (Layout(tp=devices), r) for r in (ADAM, "bf16-adam", "fp16-weights")}
    plans["ZeRO-3"] = Layout(dp=devices, zero=3), ADAM
    return Worked(
        f"{ {'no': 'Infeasible', 'tight': 'Too tight', 'fits': 'Feasible'}[full.verdict] }: "
        f"{format_bytes(n * each / devices)} states a GPU, of {room}; they alone need "
        f"{count(few, 'GPU')}{context}. What would do: {'; '.join(outs) or 'nothing tried'}.",
        sizes.convention(),
        *sizes.each_of(billions, memory, plans)[1],
        how,
        f"{COUNTED}, all activations recomputed: {sizes.verdict(full)}",
        *(f"{name}: {f.verdict}, {format_bytes(f.expected)}" for name, f in others.items()),
        values={"states_each": -(-n // devices) * each, "fewest_devices": few,
                "verdict": full.verdict, "fix": fix and str(fix.layout),
                "other_verdicts": {
                    name.removeprefix("GPUs of "): f.verdict for name, f in others.items()}},
        run=lambda cluster: held(cluster, n, plans, memory),
    )  # fmt: skip


# -- 21, 24 and 25: runs that fail or idle ---------------------------------------------------------


@question(21)
def postmortem(
    memory: int, stages: int, replicas: int, microbatches: int, slowest: float, scale: float
) -> Worked:
    """The sizes for which the story can be true, busy shares, and where fp16 overflows."""
    least, p, m = memory / 4 / 1e9, stages, microbatches
    layouts = [Layout(dp=replicas, pp=p, zero=zero) for zero in range(4)]
    each = [sizes.states(1.0, layout)[0] for layout in layouts]
    most = [memory / size for size in each]
    busy, enough = Fraction(m, m + p - 1), 9 * (p - 1)
    reaches = "reaches" if busy >= Fraction(9, 10) else "does not reach"
    times = [1.0] * (p - 1) + [slowest]
    uneven = td.simulate("1f1b", p, m, forward=times, backward=[2 * t for t in times])
    alike = 65504 / replicas  # the largest number of fp16
    works = next((zero for zero, high in enumerate(most) if high > least), None)
    story = "No size is both too large for one GPU and small enough for the stages"
    if works is not None:
        story = f"The story holds {f'with ZeRO-{works} ' * bool(works)}for {least:.4g} to "
        story += f"{most[works]:.4g} billion parameters"
        story += f", up to {most[3]:.4g} with ZeRO-3" * (0 < works < 3)
    n = sizes.parameters(least * 1.05)
    plans = {f"{n / 1e9:.4g} billion, ZeRO-{z}": (layouts[z], ADAM) for z in range(3)}
    return Worked(
        f"{story}. The ramp of m = {m} on {p} stages leaves {100 * (1 - float(busy)):.1f} % idle, "
        f"{100 * (1 - uneven.utilisation):.1f} % with a stage {slowest:g} times as slow: "
        f"{f'more micro-batches ({enough} for 90 % busy) and ' * (m < enough)}layers cut evenly "
        f"help. The NaN comes from fp16 sums of {replicas} replicas: divide before the sum.",
        sizes.convention(),
        f"too large for one GPU in fp32: 4 B x P > {format_bytes(memory)}: P > {least:.4g} "
        f"billion; on {p} stages x {replicas} replicas at most:",
        *(f"ZeRO-{z}: {format_bytes(memory)} / ({each[z] / 1e9:.4g} B a parameter) = "
          f"{high:.4g} billion" for z, high in enumerate(most)),
        f"busy, m / (m + p - 1); 90 % takes m >= 9 (p - 1) = {enough}: m = {m} {reaches} it",
        f"{replicas} replicas whose scaled gradients are above 65504 / {replicas} = {alike:g} "
        f"sum to inf; with the loss times {scale:g} that is a gradient of {alike / scale:.4g}",
        values={"least_billions": least, "most_billions": most, "zero_needed": works,
                "busy": float(busy), "enough": enough, "busy_uneven": uneven.utilisation,
                "overflows_above": alike / scale},
        run=lambda cluster: [*runs.idle(cluster, p, m), *held(cluster, n, plans, memory)],
    )  # fmt: skip


@question(24)
def refresh(billions: float, memory: int, dp: int, tp: int, pp: int, microbatches: int) -> Worked:
    """What A and B keep under each stage of ZeRO, and how idle B's stages are."""
    n, devices, room = sizes.parameters(billions), dp * tp * pp, format_bytes(memory)
    plans = {f"B, ZeRO-{z}": (Layout(dp=dp, tp=tp, pp=pp, zero=z), ADAM) for z in range(4)}
    plans["A"] = Layout(dp=devices), ADAM
    found, lines = sizes.each_of(billions, memory, plans)
    *states, whole = found.values()
    zero = next((z for z, size in enumerate(states) if size <= memory), None)
    run = replace(plans[f"B, ZeRO-{zero or 0}"][0], microbatches=microbatches, flash_attention=True)
    fit = td.fits(sizes.decoder(billions), run, sizes.machine(devices, memory))
    bubbles = {str(m): bubble_fraction(pp, m) for m in sorted({microbatches, 4, 8, 16, 32})}
    starts = f" does not start{' either' * (whole > memory)}, it needs ZeRO-{zero} or more"
    starts = {None: " does not start under any stage of ZeRO", 0: " starts"}.get(zero, starts)
    return Worked(
        f"A needs {format_bytes(whole)} on every GPU of {room} and "
        f"{'cannot start' if whole > memory else 'starts'}. B as written{starts}. B's {pp} stages "
        f"are busy {100 * (1 - bubbles[str(microbatches)]):.0f} % of the time.",
        sizes.convention(),
        *lines,
        f"{COUNTED}, B with ZeRO-{zero or 0}: {sizes.verdict(fit)}",
        f"busy, m / (m + p - 1), p = {pp}: "
        + ", ".join(f"m = {m} {100 * (1 - idle):.1f} %" for m, idle in bubbles.items()),
        values={"copy_bytes": whole, "states": states, "lowest_zero": zero, "idle": bubbles,
                "idle_now": bubbles[str(microbatches)], "verdict": fit.verdict},
        run=lambda cluster: [
            *runs.idle(cluster, pp, microbatches), *runs.trained(cluster, run),
            *held(cluster, n, plans, memory)],
    )  # fmt: skip


@question(25)
def hybrid(
    billions: float, memory: int, devices: int, stages: int, microbatches: int, gradient: float,
    scale: float,
) -> Worked:  # fmt: skip
    """What every plan that was tried keeps, how busy stages are, and what fp16 loses."""
    p, d, m = stages, max(1, devices // stages), microbatches
    both = f"dp {d} x pp {p}"
    plans = {
        "copies, fp32": (Layout(dp=devices), "fp32-adam"),
        f"{p} stages, fp32 Adam": (Layout(pp=p), "fp32-adam"),
        f"{p} stages, fp32 SGD": (Layout(pp=p), "fp32-sgd"),
        both: (Layout(dp=d, pp=p), ADAM),
        f"{both}, ZeRO-1": (Layout(dp=d, pp=p, zero=1), ADAM),
        f"{both}, ZeRO-2": (Layout(dp=d, pp=p, zero=2), ADAM),
        f"{devices} slices": (Layout(tp=devices), ADAM),
    }
    size, lines = sizes.each_of(billions, memory, plans)
    busy, piped = naive_utilisation(p), 1 - bubble_fraction(p, m)
    with np.errstate(over="ignore"):
        alone, kept = float(np.float16(gradient)), float(np.float16(gradient * scale)) / scale
    found = td.search(sizes.decoder(billions), sizes.machine(devices, memory), devices * m)
    best, fits = found.best, found.best.verdict == "fits"
    fitting = [f"{name} ({format_bytes(n)})" for name, n in size.items() if n <= memory]
    return Worked(
        f"By their states these fit {format_bytes(memory)}: {'; '.join(fitting) or 'none'}. "
        f"With everything counted {found.counts['fits']:,} layouts fit, the best is "
        f"{brief(best.layout)}; micro-batches keep stages busy {100 * piped:.0f} % of the time.",
        sizes.convention(ADAM, "fp32-adam", "fp32-sgd"),
        *lines,
        f"one batch at a time: 1 / {p} busy; {m} micro-batches: {m} / {m + p - 1}",
        f"fp16, a gradient of {gradient:g}: {alone:.4g}; times {scale:g} and back: {kept:.4g}",
        values={"states": size, "busy_naive": busy, "busy": piped, "gradient_alone": alone,
                "gradient_scaled": kept, "fitting": found.counts["fits"],
                "best": str(best.layout) if fits else None},
        run=lambda cluster: [
            *runs.idle(cluster, p, 1, "naive"), *runs.idle(cluster, p, m),
            *runs.trained(cluster, Layout(dp=d, pp=p, zero=1), "float16"),
            *held(cluster, sizes.parameters(billions), plans, memory)],
    )  # fmt: skip
