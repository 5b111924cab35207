"""11: model parallelism alone, with micro-batches, with replicas, with split layers; all trained.

n = p stages x t slices of each layer x d replicas
micro-batches fill the stages, replicas add throughput, slices and stages divide the memory
"""

from math import prod
from typing import NamedTuple

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.pipelines.one_batch import NEARLY, executed
from tiledask.lab.questions.planning.sized import convention
from tiledask.lab.questions.question import MOST_WORKERS, CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

RECIPE = "mixed-adam-16"
FORWARD, BACKWARD = 0.1, 0.2
"""Seconds of a micro-batch in a stage."""
STEPS = 3
ROUND_OFF = 1e-12
"""Relative difference of float64 losses, where sums are in another order."""


class _Form(NamedTuple):
    """A way to combine them."""

    p: int
    t: int
    d: int
    m: int

    @property
    def ranks(self) -> int:
        return self.p * self.t * self.d

    @property
    def schedule(self) -> td.Schedule:
        """Of one replica."""
        return td.schedule("naive" if self.m == 1 else "1f1b", self.p, self.m)


def _forms(stages: int, tensor: int, replicas: int, microbatches: int) -> dict[str, _Form]:
    p, t, d, m = stages, tensor, replicas, microbatches
    return {
        "MP alone": _Form(p, 1, 1, 1),
        "MP + micro-batches": _Form(p, 1, 1, m),
        "MP + DP": _Form(p, 1, d, m),
        "MP + TP + DP": _Form(p, t, d, m),
    }


def work(
    stages: int, tensor: int, replicas: int, microbatches: int, parameters: float
) -> WorkedAnswer:
    """A line for each combination: devices, utilisation, bytes on each."""
    recipe, values = load_recipe(RECIPE), {}
    B = recipe.bytes_per_parameter
    lines = [convention(RECIPE)]
    for name, f in _forms(stages, tensor, replicas, microbatches).items():
        used, held = f.m / (f.m + f.p - 1), B * parameters / (f.p * f.t)
        lines.append(
            f"{name}: n = {f.p} x {f.t} x {f.d} = {f.ranks} devices; m/(m + p - 1) = {f.m} / "
            f"{f.m + f.p - 1} = {100 * used:.1f} % used; {B} B x "
            f"{parameters / 1e9:g} billion / ({f.p} x {f.t}) = {format_bytes(held)} a device"
        )
        values[name] = {"devices": f.ranks, "utilisation": used, "bytes": held}
    lines.append(
        f"replicas do not appear in the bytes: each keeps what one would; with ZeRO-1 the 12 B "
        f"of masters and Adam would be divided by d = {replicas} as well"
    )
    first, second, *_, last = values.values()
    return WorkedAnswer(
        f"Model parallelism alone uses {100 * first['utilisation']:.0f} % of {stages} devices; "
        f"{microbatches} micro-batches raise that to {100 * second['utilisation']:.0f} %; replicas "
        f"multiply throughput and leave the {format_bytes(first['bytes'])} a device as they are; "
        f"splitting layers too makes them {format_bytes(last['bytes'])} on {last['devices']} "
        f"devices.",
        lines,
        values,
    )


def run(
    cluster: Cluster,
    stages: int,
    tensor: int,
    replicas: int,
    microbatches: int,
    parameters: float,
) -> Comparison:
    """A small decoder trained under each combination; its pipeline timed on workers."""

    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=16, layers=2 * stages, heads=4, sequence=16)
    options = {"steps": STEPS, "batch": replicas * microbatches, "dtype": "float64"}
    alone, rows, timed = td.train(model, text, (1, 1, 1), microbatches=1, **options), [], set()
    for name, f in _forms(stages, tensor, replicas, microbatches).items():
        shape = (f.d, f.t, f.p)
        there = f.ranks <= cluster.slots
        done = td.train(
            model,
            text,
            td.Mesh(cluster, shape) if there else shape,
            microbatches=f.m,
            schedule=f.schedule,
            **options,
        )
        where = f"{f.ranks} workers" if there else f"{f.ranks} ranks as threads of this process"
        cut = model.even_cut(f.p)
        held = 8 * max(
            sum(
                prod(shape)
                for unit in model.stage_units(stage, cut)
                for shape in model.shapes(unit, f.t, rank).values()
            )
            for stage in range(f.p)
            for rank in range(f.t)
        )
        found = max(each["weights"] for each in done.held)
        apart = float(np.max(np.abs(done.losses / alone.losses - 1)))
        rows += [
            Claim(f"{name}: devices p x t x d", f.ranks, None, len(done.held), rule="equal"),
            Claim(f"{name}: weights of the fullest", held, None, found, "bytes", "equal", where),
            Claim(f"{name}: losses off one device's", ROUND_OFF, None, apart, rule="at most"),
        ]
        if (f.p, f.m) not in timed:
            timed.add((f.p, f.m))
            times = {"forward": FORWARD, "backward": BACKWARD}
            seen = executed(cluster, f.schedule, **times).timeline.utilisation
            shares = f.m / (f.m + f.p - 1), td.simulate(f.schedule, **times).utilisation, seen
            rows.append(Claim(f"{name}: used", *shares, unit="percent", rule=NEARLY))
    size = f"{model.size:,} parameters in float64"
    return Comparison(f"Each combination trained for {STEPS} steps, {size}", rows)


QUESTION = CourseQuestion(
    number=11,
    title="Combining Model Parallelism with Other Mechanisms",
    asked="A model of {parameters} parameters is cut into {stages} stages. What does it gain from "
    "{microbatches} micro-batches, from {replicas} replicas, and from splitting each layer in "
    "{tensor} as well: how many devices, how busy, how full?",
    inputs={
        "stages": Input(2, 4, whole(2, 4096), "stages p"),
        "tensor": Input(2, 4, whole(1, 4096), "slices t of each layer"),
        "replicas": Input(2, 3, whole(1, 100_000), "replicas d"),
        "microbatches": Input(4, 8, whole(1, 100_000), "micro-batches m of a replica"),
        "parameters": Input(30e9, 7e9, number(1), "parameters of the model"),
    },
    work=work,
    run=run,
    largest_run={"tensor": 4, "replicas": 8, "microbatches": 8},
    workers=lambda stages, replicas, **_: max(stages, min(MOST_WORKERS, stages * replicas)),
)
