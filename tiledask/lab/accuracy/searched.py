"""What NVIDIA runs, against what ``search`` finds for the same model, devices and batch.

a published run  ->  its layout by our clock  \\
                 ->  search, the same program  ->  the best that fits as surely  ->  how much slower
"""

from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

from tiledask.errors import ConfigError
from tiledask.lab.accuracy.evaluate import PublishedRow, PublishedSource
from tiledask.lab.accuracy.runs import RunRow, run_rows
from tiledask.plan.choosing.search import FIRST, Plan, Space, search
from tiledask.plan.fitting.overhead import VERDICTS
from tiledask.plan.inputs.recipes import load_recipe

__all__ = ["SearchComparison", "compare_search", "searched", "workloads"]

NVIDIA = "dgxc-", "mbridge-", "nemo2407-"
"""How the ids of NVIDIA's runs begin."""
CUT = "proxy", "-2l-", "-4l-", "-16l-", "deepseek"
"""In the ids of models cut down to fewer layers, which run the layouts of the whole ones, and of
the first port of DeepSeek-V3, whose stages have one chunk."""
FOUND = "what NVIDIA runs on H100 against the best found"
WORDS = "Their layout by our clock over the best found for the same program, and what that changes"
NO_GOAL = (
    "No goal: models cut down to few layers in the layout of the whole ones, the first port of "
    "DeepSeek-V3, and FP8, whose layouts of 2024 leave the head of 256,000 words to one stage."
)


class SearchComparison(NamedTuple):
    """A published run, and what a search says of it."""

    theirs: Plan | None
    """Its layout among the plans; None if no Layout of the space is it."""
    best: Plan
    """The fastest plan that fits as surely."""


@cache
def workloads() -> dict[str, RunRow]:
    """NVIDIA's runs on H100 by id: of those with one model, devices, batch and precision the one
    that was measured fastest."""
    fastest: dict[tuple[Any, ...], RunRow] = {}
    for row in chain.from_iterable(run_rows().values()):
        run = row.run
        theirs = row.quantity == "step" and row.case.startswith(NVIDIA)
        if theirs and str(run.cluster).endswith("xH100"):
            key = run.model, run.cluster, run.layout.sequences, run.sequence, run.recipe
            fastest[key] = min(fastest.get(key, row), row, key=lambda each: each.measured)
    return {row.case: row for row in fastest.values()}


def compare_search(row: RunRow) -> SearchComparison:
    """What ``search`` finds for the workload of a row, with the program that ran it."""
    run = row.run
    find = partial(search, run.model, run.cluster, run.layout.sequences, sequence=run.sequence,
                   recipe=run.recipe, framework=run.framework)  # fmt: skip
    plans = find()
    only = Space(**{name: (getattr(run.layout, name),) for name in vars(Space())})
    there = next((p for p in find(space=only) if p.layout == run.layout), None)
    words = VERDICTS[: 1 + VERDICTS.index(there.verdict)] if there else VERDICTS
    firsts = (sum(plans.counts[word] for word in VERDICTS[:n]) for n in range(len(words)))
    near = [plan for at in firsts for plan in plans[at : at + FIRST]]
    best = min((p for p in near if p.verdict in words), key=lambda plan: plan.seconds)
    return SearchComparison(there, best)


@cache
def searched() -> tuple[PublishedSource, ...]:
    """How much slower NVIDIA's layouts are than the best one found, by our clock."""
    judged, others, refused = list[PublishedRow](), list[PublishedRow](), list[str]()
    for name, row in workloads().items():
        try:
            theirs, best = compare_search(row)
        except ConfigError as error:
            refused.append(f"{name} cannot be said: {error}")
            continue
        if theirs is None or theirs.verdict == "no":
            refused.append(f"{name} ran, and its memory is refused")
            continue
        changes = [
            f"{field} {value} -> {getattr(best.layout, field)}"
            for field, value in vars(row.run.layout).items()
            if getattr(best.layout, field) != value
        ]
        note = " ".join(changes) or "the same"
        whole = not load_recipe(row.run.recipe).product_bytes  # in bf16
        rows = judged if whole and not any(part in name for part in CUT) else others
        seconds = best.seconds, theirs.seconds
        rows.append(PublishedRow(name, "best found, theirs", *seconds, "s", note=note))
    remark = f"{WORDS}. Not here: {'; '.join(refused) or 'none'}."
    cut = f"{FOUND}: cut models, FP8", tuple(others), float("inf"), None, f"{WORDS}. {NO_GOAL}"
    return PublishedSource(FOUND, tuple(judged), 0.05, 0.05, remark), PublishedSource(*cut)
