"""What NVIDIA runs, against what ``search`` finds for the same model, devices and batch.

a published run  ->  its layout by our clock  \\
                 ->  search, the same program  ->  the best that fits as surely  ->  how much slower
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.lab.accuracy.rows import PublishedRow, PublishedSource, published
from tiledask.lab.accuracy.runs import PublishedRun, RunRow, run_rows
from tiledask.plan.choosing.search import FIRST, Plan, Space, search
from tiledask.plan.fitting.overhead import VERDICTS
from tiledask.plan.inputs.layout import Layout

__all__ = ["Beside", "found", "searched", "workloads"]

RECIPES = "dgxc-", "mbridge-", "nemo2407-"
"""How the ids of NVIDIA's runs begin."""
CUT = "proxy", "-2l-", "-4l-", "-16l-", "deepseek"
"""In the ids of models cut down to fewer layers, which run the layouts of the whole ones, and of
the first port of DeepSeek-V3, whose stages have one chunk."""


class Beside(NamedTuple):
    """A published run, and what a search says of it."""

    run: PublishedRun
    theirs: Plan | None
    """Its layout among the plans; None if no Layout of the space is it."""
    best: Plan
    """The fastest plan that fits as surely."""


@cache
def workloads(device: str = "H100") -> dict[str, RunRow]:
    """NVIDIA's runs on ``device`` by id: of those with one model, devices, batch and precision the
    one that was measured fastest."""
    every = (row for rows in run_rows().values() for row in rows)
    steps = {row.case: row for row in every if row.quantity == "step"}
    fastest: dict[tuple[Any, ...], RunRow] = {}
    for name, case in published("plan2").items():
        i = case["inputs"]
        if name in steps and name.startswith(RECIPES) and i["gpu"] == device:
            model = i.get("model") or tuple(i["fields"].items())
            key = (model, i.get("layers"), i["gpus"], i["global_batch"], i["seq"], i["precision"])
            known = fastest.get(key, steps[name])
            fastest[key] = min(known, steps[name], key=lambda row: row.measured)
    return {row.case: row for row in fastest.values()}


def found(row: RunRow) -> Beside:
    """What ``search`` finds for the workload of a row, with the program that ran it."""
    run = row.run
    options: dict[str, Any] = {"sequence": run.sequence, "recipe": run.recipe}
    of = run.model, run.cluster, published("plan2")[row.case]["inputs"]["global_batch"]
    plans = search(*of, **options, framework=run.framework)
    theirs = search(*of, **options, framework=run.framework, space=_only(run.layout))
    there = next((plan for plan in theirs if plan.layout == run.layout), None)
    words = VERDICTS[: 1 + VERDICTS.index(there.verdict)] if there else VERDICTS
    firsts = (sum(plans.counts[word] for word in VERDICTS[:n]) for n in range(len(words)))
    near = [plan for at in firsts for plan in plans[at : at + FIRST]]
    best = min((p for p in near if p.verdict in words), key=lambda plan: plan.seconds)
    return Beside(run, there, best)


def _only(layout: Layout) -> Space:
    """The space of ``layout`` alone."""
    return Space(**{name: (getattr(layout, name),) for name in vars(Space())})


@cache
def searched() -> tuple[PublishedSource, ...]:
    """How much slower NVIDIA's layouts are than the best one found, by our clock."""
    groups: dict[bool, list[PublishedRow]] = {True: [], False: []}
    refused = []
    for name, row in workloads().items():
        precision = published("plan2")[name]["inputs"]["precision"]
        try:
            run, theirs, best = found(row)
        except ConfigError as error:
            refused.append(f"{name} cannot be said: {error}")
            continue
        if theirs is None or theirs.verdict == "no":
            refused.append(f"{name} ran, and its memory is refused")
            continue
        note = "the same" if best.layout == run.layout else " ".join(_changes(run.layout, best))
        judged = precision == "bf16" and not any(part in name for part in CUT)
        seconds = best.seconds, theirs.seconds
        groups[judged].append(PublishedRow(name, "best found, theirs", *seconds, "s", note=note))
    title = "what NVIDIA runs on H100 against the best found"
    words = (
        "Their layout by our clock over the best found for the same program, and what that changes"
    )
    return (
        PublishedSource.of(
            title,
            groups[True],
            mean=0.05,
            worst=0.05,
            remark=f"{words}. Not here: {'; '.join(refused) or 'none'}.",
        ),
        PublishedSource.of(
            f"{title}: cut models, FP8",
            groups[False],
            mean=float("inf"),
            remark=f"{words}. No goal: models cut down to few layers in the layout of the whole "
            f"ones, the first port of DeepSeek-V3, and FP8, whose layouts of 2024 leave the head "
            f"of 256,000 words to one stage.",
        ),
    )


def _changes(theirs: Layout, best: Plan) -> Iterator[str]:
    for name, value in vars(theirs).items():
        if getattr(best.layout, name) != value:
            yield f"{name} {value} -> {getattr(best.layout, name)}"
