"""Claims about memory as a table: what the planner says, and what workers were refused.

CASES are those of four questions, each with the way out that the arithmetic names; they run on
four workers in seconds:
    200 B on 40 GB            full copies, 10 slices of fp16 weights, ZeRO-3 on 79 and 80
    a layer of 26 GB          on 24 GB: whole, by tensor parallelism, and what each optimizer adds
    30 B on 32 x 24 GB        pp 4 x tp 2 x dp 4, by stage of ZeRO
    a pipeline's activations  GPipe, 1F1B, GPipe with recomputation
"""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.memory.claims import TOLERANCE, ClaimRun, run_claim
from tiledask.errors import ConfigError
from tiledask.lab.claim import Claim
from tiledask.lab.table import Comparison
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.tile.progress import is_watched, showing

__all__ = ["CASES", "compare_claims", "run_cases"]

DECODER = Model(
    hidden=64, layers=4, heads=4, ffn=256, vocab=128, learned_pos=64, name="small decoder"
)
LAYER = 6_500_000_000
"""Parameters of 4 bytes that make 26 GB."""


def _pipeline(schedule: str, recompute: str = "none") -> dict[str, Any]:
    layout = Layout(pp=2, microbatches=8, schedule=schedule, recompute=recompute)
    return {"what": DECODER, "layout": layout, "capacity": "3MB", "sequence": 64}


def _states(parameters: int, capacity: str, recipe: str, **layout: int) -> dict[str, Any]:
    return {"what": parameters, "layout": Layout(**layout), "capacity": capacity, "recipe": recipe}


CASES: Mapping[str, dict[str, dict[str, Any]]] = {
    "200 B parameters on 40 GB, run at 1:1000": {
        "full copies, fp16 weights": _states(200 * 10**9, "40GB", "fp16-weights", dp=10),
        "full copies, training": _states(200 * 10**9, "40GB", "mixed-adam-16", dp=160),
        "10 slices, fp16 weights": _states(200 * 10**9, "40GB", "fp16-weights", pp=10),
        "ZeRO-3 on 79": _states(200 * 10**9, "40GB", "mixed-adam-16", dp=79, zero=3),
        "ZeRO-3 on 80": _states(200 * 10**9, "40GB", "mixed-adam-16", dp=80, zero=3),
    },
    "A layer of 26 GB on 24 GB, run at 1:1000": {
        "whole": _states(LAYER, "24GB", "fp32-weights", dp=4),
        "tp 2, weights": _states(LAYER, "24GB", "fp32-weights", tp=2),
        "tp 4, SGD": _states(LAYER, "24GB", "fp32-sgd", tp=4),
        "tp 4, momentum": _states(LAYER, "24GB", "fp32-momentum", tp=4),
        "tp 4, Adam": _states(LAYER, "24GB", "fp32-adam", tp=4),
        "tp 5, Adam": _states(LAYER, "24GB", "fp32-adam", tp=5),
    },
    "30 B on 32 devices of 24 GB, pp 4 x tp 2 x dp 4, run at 1:1000": {
        name: _states(30 * 10**9, "24GB", "mixed-adam-16", pp=4, tp=2, dp=4, zero=zero)
        for zero, name in enumerate(("plain Adam", "ZeRO-1", "ZeRO-2", "ZeRO-3"))
    },
    "A decoder in 2 stages and 8 micro-batches on 3 MB": {
        "GPipe": _pipeline("gpipe"),
        "1F1B": _pipeline("1f1b"),
        "GPipe, recomputation": _pipeline("gpipe", "full"),
    },
}
"""Title -> name of a claim -> arguments of ``run_claim``."""


def run_cases(
    cluster: Cluster, titles: Iterable[str] | None = None, timeout: float | None = None
) -> dict[str, dict[str, ClaimRun]]:
    """The ClaimRuns of CASES, or of those with these ``titles``; the same names.

    ``timeout`` holds for each claim. Raises ConfigError for an unknown title.
    """
    titles = list(CASES if titles is None else titles)
    if unknown := [title for title in titles if title not in CASES]:
        raise ConfigError(f"no case {unknown[0]!r}; there are {', '.join(map(repr, CASES))}")
    runs: dict[str, dict[str, ClaimRun]] = {title: {} for title in titles}
    wanted = sum(len(CASES[title]) for title in titles)

    def look() -> tuple[int, int, str]:
        return sum(map(len, runs.values())), wanted, ""

    with showing("claims about memory", look, "claims") if is_watched() else nullcontext():
        for title in titles:
            for name, arguments in CASES[title].items():
                runs[title][name] = run_claim(**arguments, cluster=cluster, timeout=timeout)
    return runs


def compare_claims(title: str, runs: Mapping[str, ClaimRun]) -> Comparison:
    """Two rows a claim: the peak of the fullest device, and the verdict. Simulated is what the
    program holds that is run.

    A peak holds if predicted and measured are within TOLERANCE on every stage; of a claim that
    was refused memory, the row shows how much the refused device would have held at least.
    """
    return Comparison(title, tuple(row for name, run in runs.items() for row in _rows(name, run)))


def _rows(name: str, run: ClaimRun) -> tuple[Claim, Claim]:
    if run.refused:
        peak = Claim(
            f"{name}: peak, refused at",
            run.predicted.peak,
            run.simulated.peak,
            run.refused.needed,
            "bytes",
            note=str(run.refused),
        )
    else:
        stage = run.widest
        ledgers = run.predicted, run.simulated, run.measured
        columns = (ledger.per_place[stage] for ledger in ledgers)
        rule = ("ratio", 1 - TOLERANCE, 1 + TOLERANCE)
        peak = Claim(f"{name}: peak", *columns, "bytes", rule, f"stage {stage + 1}")
    verdict = Claim(
        f"{name}: verdict", run.predicted_verdict, None, run.executed_verdict, rule="equal"
    )
    return peak, verdict
