"""What NVIDIA runs, against what ``search`` finds for the same model, devices and batch.

a published run  ->  its layout by our clock  \\
                 ->  search, the same program  ->  the best that fits as surely  ->  how much slower
"""

from functools import cache, partial
from itertools import chain
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.accuracy.evaluate import PublishedGroup, PublishedRow, group_of
from tiledask.lab.accuracy.runs import PublishedRun, published_runs
from tiledask.plan.choosing.search import FIRST, Plan, Space, search
from tiledask.plan.fitting.overhead import VERDICTS

__all__ = ["compare_search", "searched", "workloads"]

NVIDIA = "dgxc-", "mbridge-", "nemo2407-"
"""How the ids of NVIDIA's runs begin."""
CUT = "proxy", "-2l-", "-4l-", "-16l-", "deepseek"
"""In the ids of models cut down to fewer layers, which run the layouts of the whole ones, and of
the first port of DeepSeek-V3, whose stages have one chunk: no choices of theirs."""


@cache
def workloads() -> dict[str, PublishedRun]:
    """NVIDIA's runs on H100 by id: of those with one model, devices, batch and precision the one
    that was measured fastest."""
    fastest: dict[tuple[Any, ...], PublishedRun] = {}
    for run in chain.from_iterable(published_runs().values()):
        theirs = run.quantity == "step" and run.case.startswith(NVIDIA)
        if theirs and run.cluster.device.name == "H100":
            key = run.model, run.cluster, run.layout.sequences, run.sequence, run.recipe
            fastest[key] = min(fastest.get(key, run), run, key=lambda each: each.measured)
    return {run.case: run for run in fastest.values()}


def compare_search(run: PublishedRun) -> tuple[Plan | None, Plan]:
    """(The plan of a run's own layout, the fastest plan that fits as surely) for its workload, with
    the program that ran it; no plan of its own where no Layout of the space is it."""
    find = partial(search, run.model, run.cluster, run.layout.sequences, sequence=run.sequence,
                   recipe=run.recipe, framework=run.framework)  # fmt: skip
    plans = find()
    only = Space(**{name: (getattr(run.layout, name),) for name in vars(Space())})
    theirs = next((p for p in find(space=only) if p.layout == run.layout), None)
    words = VERDICTS[: 1 + VERDICTS.index(theirs.verdict)] if theirs else VERDICTS
    firsts = (sum(plans.counts[word] for word in VERDICTS[:n]) for n in range(len(words)))
    near = [plan for at in firsts for plan in plans[at : at + FIRST]]
    return theirs, min((p for p in near if p.verdict in words), key=lambda plan: plan.seconds)


@cache
def searched() -> PublishedGroup:
    """How much slower NVIDIA's layouts in half precision are than the best one found, by our
    clock."""
    rows, refused = list[PublishedRow](), list[str]()
    for name, run in workloads().items():
        if run.recipe.product_bytes or any(part in name for part in CUT):
            continue
        try:
            theirs, best = compare_search(run)
        except ConfigError as error:
            refused.append(f"{name} cannot be said: {error}")
            continue
        if theirs is None or theirs.verdict == "no":
            refused.append(f"{name} ran, and its memory is refused")
            continue
        both = zip(vars(run.layout).items(), vars(best.layout).values(), strict=True)
        changes = [f"{field} {ran} -> {found}" for (field, ran), found in both if ran != found]
        times, note = (best.seconds, theirs.seconds), " ".join(changes) or "the same"
        rows.append(PublishedRow(name, "best found, theirs", *times, "s", note=note))
    return group_of("found", rows, f" Not here: {'; '.join(refused) or 'none'}.")
