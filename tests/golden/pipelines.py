"""Golden values of cuts and schedules: bounds, orders, texts, times, peaks, idle time by cause."""

from itertools import pairwise
from random import Random
from typing import Any

import tiledask as td
from golden.store import GoldenSet, digest

# -- schedules -------------------------------------------------------------------------------------

ONE_STAGE = [
    "naive",
    "gpipe",
    "1f1b",
    "eager-1f1b",
    "zb-h1",
    "zb-h2",
    "zb-auto",
    "chimera",
    "dualpipe",
]
SEVERAL = ["interleaved", "looped-bfs", "interleaved-zb"]
"""They put as many stages on a device as one asks for."""
TWO = ["zb-v", "v-half", "v-min", "dualpipev"]
"""They put two stages on a device."""


def shapes() -> dict[str, dict[str, Any]]:
    """Every schedule on 1 to 8 devices."""
    made = {}
    for p in range(1, 9):
        for name in ONE_STAGE:
            made[f"{name} p{p}"] = {"name": name, "stages": p, "options": {}}
        for name in SEVERAL:
            for v in (2, 3) if p <= 4 else (2,):
                made[f"{name} p{p} v{v}"] = {
                    "name": name, "stages": p * v, "options": {"devices": p}
                }  # fmt: skip
        for name in TWO:
            made[f"{name} p{p}"] = {"name": name, "stages": 2 * p, "options": {}}
    for limit in (4, 6, 9):
        times = uneven(4)
        options = {key: times[key] for key in ("forward", "backward_input", "backward_weight")}
        made[f"zb-auto within {limit}"] = {
            "name": "zb-auto", "stages": 4,
            "options": {**options, "latency": 0.25, "memory_limit": limit},
        }  # fmt: skip
    for name in (*ONE_STAGE, *SEVERAL, *TWO):
        stages = 8 if name in SEVERAL + TWO else 4
        options = {"forward_only": True} | ({"devices": 4} if name in SEVERAL else {})
        made[f"{name} forwards"] = {"name": name, "stages": stages, "options": options}
    return made


def uneven(stages: int) -> dict[str, Any]:
    """Seconds, in eighths so that sums are exact: an uneven first, last and third stage."""
    forward = [1 + 0.25 * (s % 3) for s in range(stages)]
    forward[-1] += 0.5
    return {
        "forward": forward,
        "backward_input": [f + 0.125 * (s % 2) for s, f in enumerate(forward)],
        "backward_weight": [1.5 - 0.125 * (s % 4) for s in range(stages)],
        "latency": [0.125 * (1 + s % 2) for s in range(stages - 1)] or 0.0,
        "overlapped": [6 + 0.25 * (s % 2) for s in range(stages)],
    }


LONG = ("p5", "p7")
"""As 6 and 8 devices, apart from being odd."""


def few() -> dict[str, Any]:
    """Up to 8 micro-batches."""
    return {
        key: given | {"microbatches": list(range(1, 9)), "uneven": uneven(given["stages"])}
        for key, given in shapes().items()
        if key.split()[1] not in LONG
    }


def many() -> dict[str, Any]:
    """From 9 to 16 of them, and all those that are not looked at with few."""
    told = few()
    return {
        key: given
        | {
            "microbatches": list(range(9 if key in told else 1, 17)),
            "uneven": uneven(given["stages"]),
            "short": True,
        }
        for key, given in shapes().items()
    }


def orders(given: dict[str, Any]) -> Any:
    """A list over the numbers of micro-batches of each value; of what is refused, the error.

    ``short``: of lists by device or by cause a digest.
    """
    rows = [of_order(given, m) for m in given["microbatches"]]
    if all("refused" in row for row in rows):
        return {"refused": rows[0]["refused"]}
    found = {key: [row.get(key) for row in rows] for key in {k: 0 for row in rows for k in row}}
    if given.get("short"):
        for key in ("peaks", "uneven_peaks", "bytes", "idle"):
            found[key] = [digest(each) for each in found[key]]
    return found


def of_order(given: dict[str, Any], m: int) -> dict[str, Any]:
    try:
        made = td.schedule(given["name"], given["stages"], m, **given["options"])
    except ValueError as refused:
        return {"refused": type(refused).__name__}
    text = made.to_text()
    even = td.simulate(made)
    slow = td.simulate(made, **given["uneven"])
    sizes = [3 + s % 4 for s in range(made.stages)]
    held = td.memory_over_time(slow, sizes, [1 + s % 2 for s in range(made.stages)])
    return {
        "text": text if made.stages <= 4 and m <= 3 else digest(text),
        "makespan": even.makespan,
        "peaks": list(even.peak_in_flight),
        "uneven": slow.makespan,
        "uneven_peaks": list(slow.peak_in_flight),
        "bytes": list(held.peaks),
        "idle": nanoseconds(slow.idle_time.total),
        "bound": slow.lower_bound,
    }


def nanoseconds(idle: dict[str, float]) -> list[float]:
    """Seconds by cause; differences of sums, so that their last digits say nothing."""
    return [round(seconds, 9) + 0.0 for seconds in idle.values()]


# -- links: what a transfer takes ------------------------------------------------------------------


def linked() -> dict[str, Any]:
    draw, made = Random(5), {}
    for n in range(40):
        name = draw.choice(("gpipe", "1f1b", "zb-h1", "interleaved", "zb-v"))
        p = draw.randint(2, 5)
        v = 2 if name in ("interleaved", "zb-v") else 1
        made[f"{name} {n}"] = {
            "name": name,
            "stages": p * v,
            "microbatches": p * draw.randint(1, 3),
            "options": {"devices": p} if name == "interleaved" else {},
            "times": {
                "forward": [draw.randint(4, 9) / 4 for _ in range(p * v)],
                "backward": [draw.randint(8, 17) / 4 for _ in range(p * v)],
                "latency": draw.randint(0, 4) / 8,
                "block_bytes": [draw.randint(1, 9) for _ in range(p * v - 1)],
                "bandwidth": draw.choice((4, 8, 16)),
            },
        }
    return made


def over_links(given: dict[str, Any]) -> Any:
    made = td.schedule(given["name"], given["stages"], given["microbatches"], **given["options"])
    found = td.simulate(made, **given["times"])
    return {
        "makespan": found.makespan,
        "bound": found.lower_bound,
        "idle": nanoseconds(found.idle_time.total),
        "transfer": list(found.exposed_transfer_per_device),
        "ends": digest([found.start, found.end]),
    }


# -- programs of schedules -------------------------------------------------------------------------


def programmed() -> dict[str, Any]:
    draw, made = Random(6), {}
    for name in (*ONE_STAGE, *SEVERAL, *TWO):
        for p, m in ((2, 4), (4, 8)):
            v = 2 if name in SEVERAL + TWO else 1
            options = {"devices": p} if name in SEVERAL else {}
            sizes = {
                "block_bytes": 1024 * draw.randint(1, 9),
                "activation": 512 * draw.randint(2, 9),
            }
            made[f"{name} {p} {m}"] = {
                "name": name, "stages": p * v, "microbatches": m, "options": options, **sizes
            }  # fmt: skip
    return made


def program(given: dict[str, Any]) -> Any:
    made = td.schedule(given["name"], given["stages"], given["microbatches"], **given["options"])
    found = td.program(
        made, block_bytes=given["block_bytes"], activation=given["activation"]
    ).check()
    text = str(found)
    return {
        "text": text if given["name"] == "1f1b" and found.ranks == 2 else digest(text),
        "read_back": str(td.Program.from_text(found.to_text())) == text,
        "sent": list(found.traffic.sent),
        "received": list(found.traffic.received),
        "messages": list(found.traffic.messages),
        "peaks": list(found.memory.per_place.values()),
    }


# -- cuts ------------------------------------------------------------------------------------------


def cuts() -> dict[str, Any]:
    draw, made = Random(7), {}
    for p in range(1, 9):
        made[f"equal layers on {p}"] = {"equal": list(range(p, 41)), "stages": p}
    for n in range(160):
        stages, kind = draw.randint(2, 6), n % 4
        layers = draw.randint(stages, 24)
        # few different costs, so that many cuts are equally good
        costs = [draw.choice((1, 1, 2, 3) if n % 2 else (0.5, 1, 1, 4)) for _ in range(layers)]
        given: dict[str, Any] = {"costs": costs, "stages": stages}
        if kind == 1:
            given["speeds"] = [draw.choice((1, 2, 3)) for _ in range(stages)]
        if kind == 2:
            given["memory"] = [draw.randint(1, 4) for _ in range(layers)]
            most = draw.randint(-(-sum(given["memory"]) // stages) + 1, sum(given["memory"]))
            given["capacity"] = most if n % 8 > 4 else [most + draw.randint(0, 3)] * stages
        if kind == 3:
            given["communication"] = [draw.randint(0, 3) / 2 for _ in range(layers - 1)]
        if n % 5 == 0 and layers >= 2 * stages and kind == 0:
            given |= {"stages": 2 * stages, "chunks": 2}
        made[f"cut {n}"] = given
    return made


def cut(given: dict[str, Any]) -> Any:
    if "equal" in given:
        return ["-".join(map(str, td.partition(n, given["stages"]).sizes)) for n in given["equal"]]
    found = td.partition(**given)
    return {
        "bounds": list(found.bounds),
        "bottleneck": found.bottleneck,
        "times": list(found.times),
        "place": list(found.place),
    }


def assignments() -> dict[str, Any]:
    draw, made = Random(8), {}
    for n in range(80):
        devices = draw.randint(2, 5)
        layers = draw.randint(devices, 16)
        marks = sorted(draw.randint(0, layers) for _ in range(devices - 1))
        ends = [0, *marks, layers]
        each = [list(range(a + 1, b + 1)) for a, b in pairwise(ends)]
        if n % 6 == 1:  # not contiguous
            a, b = draw.sample(range(devices), 2)
            each[a], each[b] = each[a][:1] + each[b][1:], each[b][:1] + each[a][1:]
        if n % 6 == 3:  # one is missing, or twice
            each[draw.randrange(devices)] = [draw.randint(1, layers)]
        given: dict[str, Any] = {"assignment": each, "layers": layers, "devices": devices}
        given["costs"] = [draw.choice((1, 2, 3)) for _ in range(layers)]
        if n % 3 == 1:
            given["speeds"] = [draw.choice((1, 2)) for _ in range(devices)]
        if n % 3 == 2:
            given |= {"memory": [1] * layers, "capacity": draw.randint(layers // devices, layers)}
        made[f"answer {n}"] = given
    return made


def verdict(given: dict[str, Any]) -> Any:
    found = td.judge(**given)
    return {
        "ok": found.ok,
        "rule": found.rule,
        "crossings": found.crossings,
        "bottleneck": found.bottleneck,
        "optimum": found.optimum,
        "times": list(found.times),
    }


SETS = (
    GoldenSet("schedules", orders, few),
    GoldenSet("schedules_long", orders, many, "slow"),
    GoldenSet("links", over_links, linked),
    GoldenSet("pipeline_programs", program, programmed),
    GoldenSet("cuts", cut, cuts),
    GoldenSet("verdicts", verdict, assignments),
)
