"""Table 5 of the Zero Bubble paper (arXiv 2401.10241), worked out again row by row.

    F I W, latency: what the paper measured     ->  the schedule  ->  its bubble rate  |  printed
    (Table 9)                                       simulated         1 - busy / span  |  rate

Its rate is taken over the largest span of a device, from its first action to its last, not over
the makespan: `Timeline.span_bubble`. Its "B" is our I.
"""

from collections.abc import Mapping
from typing import Any

from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["stage_times", "timeline_of"]


def stage_times(inputs: Mapping[str, Any]) -> dict[str, Any]:
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
