"""What is drawn, whatever it comes from: boxes in lanes, bars beside their prediction, facts.

time    device 1   [F0][F1]....[B0]      idle    33.3 %  |//..x|     left, right: bars by lane
        device 2   ////[F0][B0]....              25.0 %  |//.| :     (: where it is predicted)
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tiledask.lab.dashboard.recorder import ReportedRun
from tiledask.lab.plots.primitives import Box, span
from tiledask.lab.plots.style import PALE
from tiledask.plan.units import format_seconds

__all__ = ["IDLE", "Chart", "View", "facts_of", "gaps", "lane_of", "over_time", "stacked"]

IDLE = "idle"
"""How the gid of idle time begins."""


class Chart(NamedTuple):
    """One figure of boxes in lanes. A box's ``gid`` says in words what it is."""

    title: str
    label: str
    unit: str
    """Of its numbers: "s", "B", "%" or none."""
    lanes: Sequence[str]
    boxes: Sequence[Box]
    marks: Sequence[float] = ()
    """Where each lane is predicted to end."""
    end: float = 0.0
    """Of the axis, if it is not where the last box ends."""


class View(NamedTuple):
    """What is drawn of a run, of a Timeline or of tasks."""

    title: str
    facts: Mapping[str, str]
    charts: Mapping[str, Chart]
    """By place: time and idle, left and right."""
    legend: Sequence[tuple[str, Box]]
    """(what it means, how it looks)."""
    number: str = ""
    """What the number in a box is."""
    loss: tuple[Sequence[int], Sequence[float], float | None] = (), (), None
    """Of a training: steps, their losses, the best there is."""


def facts_of(run: ReportedRun, now: float) -> tuple[str, dict[str, str], str]:
    """(title, facts, " so far" if it is not done) of any run."""
    state = run.state
    if state == "running" and run.is_over(now):
        state = f"nothing heard for {format_seconds(now - run.last)}"
    begun, facts = time.strftime("%H:%M:%S", time.localtime(run.begin)), dict(run.facts)
    if run.reported > len(run.spans):
        facts["drawn"] = f"the last {len(run.spans):,} of {run.reported:,}"
    so_far = "" if run.state == "done" else " so far"
    return f"{run.kind.capitalize()} of {begun}, {state}", facts, so_far


def lane_of(box: Box) -> int:
    """The lane that a box is in; in the lower or upper part, too."""
    return round(box.at[1] + box.at[3] / 2)


def gaps(busy: Iterable[Box], lanes: int, until: float) -> list[Box]:
    """Idle time whose cause nobody knows: where a lane has no box up to ``until``."""
    found, reach = list[Box](), [0.0] * lanes
    ends = [span(lane, until, until, PALE) for lane in range(lanes)]
    for box in sorted([*busy, *ends], key=lambda box: box.at):
        lane, start = lane_of(box), min(box.at[0], until)
        if start - reach[lane] > 1e-9 * until:
            found.append(span(lane, reach[lane], start, PALE, gid=IDLE))
        reach[lane] = max(reach[lane], box.at[0] + box.at[2])
    return found


def stacked(boxes: Iterable[Box]) -> Iterator[Box]:
    """Bars: each box begins where the one before it in its lane ends."""
    ends = defaultdict[int, float](float)
    for box in boxes:
        (_, y, wide, high), lane = box.at, lane_of(box)
        yield box._replace(at=(ends[lane], y, wide, high))
        ends[lane] += wide


def over_time(
    lanes: Sequence[str],
    boxes: Sequence[Box],
    until: float,
    predicted: Sequence[float] | None = None,
    so_far: str = "",
) -> tuple[dict[str, Chart], dict[str, str], list[tuple[str, Box]]]:
    """(who computes when, and how long each lane is idle; idle shares as facts; the legend).

    ``boxes`` are in seconds, idle time up to ``until`` among them; ``predicted``: idle shares."""
    means: dict[str, Box] = {}
    shares, causes = defaultdict[tuple[int, str], float](float), defaultdict[str, float](float)
    for box in boxes:
        means.setdefault(box.gid, box)
        if box.gid.startswith(IDLE):
            shares[lane_of(box), box.gid] += 100 * box.at[2] / until
    bars, percent = [], [0.0] * len(lanes)
    for (lane, gid), share in sorted(shares.items()):
        words, look = f"{gid}: {share:.1f} % of the time", means[gid].look
        bars.append(span(lane, 0, share, means[gid].colour, gid=words, look=look))
        percent[lane] += share
        causes[gid] += share / len(lanes)
    names = [f"{share:.1f} %" if until else "" for share in percent]
    marks = [100 * share for share in predicted or ()]
    drawn = [*boxes] or [span(lane, 0, 1, PALE, gid=IDLE) for lane in range(len(lanes))]
    charts = {"time": Chart("Who computes when", "time since the start", "s", lanes, drawn)}
    title, label = "Idle share of each", "idle / makespan"
    charts["idle"] = Chart(title, label, "%", names, [*stacked(bars)], marks, 100.0)
    legend = [(gid, box) for gid, box in means.items() if gid not in causes]
    legend += [(f"{gid}: {share:.1f} %", means[gid]) for gid, share in causes.items()]
    facts = {f"idle measured{so_far}": f"{sum(causes.values()):.1f} %"} if until else {}
    if marks:
        facts["idle predicted"] = f"{sum(marks) / len(marks):.1f} %"
    return charts, facts, legend
