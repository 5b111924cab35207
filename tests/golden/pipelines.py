"""Golden values of cuts and schedules: bounds, orders, texts, times, peaks, idle time by cause."""

from typing import Any

import tiledask as td
from golden.store import GoldenSet, digest, picked


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


def over_links(given: dict[str, Any]) -> Any:
    made = td.schedule(given["name"], given["stages"], given["microbatches"], **given["options"])
    found = td.simulate(made, **given["times"])
    return {
        "makespan": found.makespan,
        "bound": found.lower_bound,
        "idle": nanoseconds(found.idle_time.total),
        "transfer": list(found.idle_time.per_device["transfer"]),
        "ends": digest([found.start, found.end]),
    }


def program(given: dict[str, Any]) -> Any:
    made = td.schedule(given["name"], given["stages"], given["microbatches"], **given["options"])
    found = td.program(
        made, block_bytes=given["block_bytes"], activation=given["activation"]
    ).check()
    text = str(found)
    return {
        "text": text if given["name"] == "1f1b" and found.ranks == 2 else digest(text),
        "read_back": str(td.Program.from_text(found.to_text())) == text,
        "peaks": list(found.memory.per_place.values()),
        **picked(found.traffic, "sent received messages"),
    }


def cut(given: dict[str, Any]) -> Any:
    if "equal" in given:
        return ["-".join(map(str, td.partition(n, given["stages"]).sizes)) for n in given["equal"]]
    return picked(td.partition(**given), "bounds bottleneck times place")


def verdict(given: dict[str, Any]) -> Any:
    return picked(td.judge(**given), "ok rule crossings bottleneck optimum times")


SETS = (
    GoldenSet("schedules", orders),
    GoldenSet("schedules_long", orders, "slow"),
    GoldenSet("links", over_links),
    GoldenSet("pipeline_programs", program),
    GoldenSet("cuts", cut),
    GoldenSet("verdicts", verdict),
)
