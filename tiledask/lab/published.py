"""Table 5 of the Zero Bubble paper (arXiv 2401.10241), worked out again row by row.

    F I W, latency: what the paper measured     ->  the schedule  ->  its bubble rate  |  printed
    (Table 9)                                       simulated         1 - busy / span  |  rate

Its rate is taken over the largest span of a device, from its first action to its last, not over
the makespan: `Timeline.span_bubble`. Its "B" is our I.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tiledask.plan.pipelines import closed_form
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["Rate", "bubble_rate", "stage_times", "timeline_of", "zero_bubble_table"]


class Rate(NamedTuple):
    """A bubble rate and how it was found."""

    value: float
    by: str
    """"simulation" or "formula"."""


def stage_times(inputs: Mapping[str, Any]) -> dict[str, float]:
    """The seconds of a row, as `simulate` takes them; the table has milliseconds."""
    names = {
        "forward": "T_F",
        "backward_input": "T_B",
        "backward_weight": "T_W",
        "latency": "T_comm",
    }
    return {ours: inputs[theirs] / 1000 for ours, theirs in names.items()}


def timeline_of(inputs: Mapping[str, Any], **instead: float) -> Timeline:
    """The simulated Timeline of a row: ``inputs`` of a case in data/published/schedule.json.

    ``instead``: seconds to simulate with instead of the row's.
    """
    name, p, m = inputs["schedule"].lower(), inputs["p"], inputs["m"]
    times = stage_times(inputs) | instead
    if name == "1f1b-i":
        v = inputs["v"]
        chunk = {kind: t if kind == "latency" else t / v for kind, t in times.items()}
        return simulate(schedule("interleaved", p * v, m, devices=p), **chunk)
    if name in ("zb-1p", "zb-2p"):
        memory = {
            "activation": inputs["M_B"],
            "weight_part": inputs["M_W"],
            "memory_limit": inputs["M_limit_over_M_B"] * inputs["M_B"],
        }
        return simulate(schedule("zb-auto", p, m, **stage_times(inputs), **memory), **times)
    return simulate(schedule(name, p, m), **times)


def bubble_rate(inputs: Mapping[str, Any]) -> Rate:
    """The Rate of a row of the table.

    By simulation; but the interleaved rows are the paper's count, a formula: from one chunk to the
    next only the first of each p micro-batches waits for the device at the other end, and a
    simulation, in which every one waits, takes p latencies longer.
    """
    if inputs["schedule"] != "1F1B-I":
        return Rate(timeline_of(inputs).span_bubble, "simulation")
    whole = inputs["T_F"] + inputs["T_B"] + inputs["T_W"]
    counts = inputs["p"], inputs["m"], inputs["v"]
    span = closed_form.interleaved_makespan(*counts, whole, inputs["T_comm"])
    return Rate(1 - inputs["m"] * whole / span, "formula")


def zero_bubble_table(cases: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row per case: model, p, m, schedule, the printed rate, ours, how, and whether they agree
    within the case's tolerance."""
    rows = []
    for case in cases:
        inputs, printed = case["inputs"], case["expected"]["bubble_rate"]
        ours = bubble_rate(inputs)
        rows.append(
            {
                "model": re.search(r"[\d.]+B", case["id"])[0],
                "p": inputs["p"],
                "m": inputs["m"],
                "schedule": inputs["schedule"],
                "printed": printed,
                "ours": round(ours.value, 4),
                "by": ours.by,
                "passes": abs(ours.value - printed) <= case["tolerance"],
            }
        )
    return rows
