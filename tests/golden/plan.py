"""Golden values of the planner: ledgers, verdicts, fixes, borders."""

from dataclasses import replace
from typing import Any

import tiledask as td
from golden.store import GoldenSet, digest


def model_of(given: Any) -> Any:
    return td.load_model(given) if isinstance(given, str) else td.Model(**given)


def recipe_of(given: Any) -> Any:
    if isinstance(given, str):
        return td.load_recipe(given)
    made = td.lora(**given["lora"]) if "lora" in given else given["offload"]["recipe"]
    if "offload" not in given:
        return made
    states = given["offload"].get("states")
    return td.offload(made, states and tuple(states), to=given["offload"]["to"])


def case_of(given: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """(model, layout, cluster, recipe, sequence), and what else `fits` takes."""
    cluster = td.load_cluster(given["cluster"])
    named = {"framework": given["framework"]} if given.get("framework") else {}
    return (
        model_of(given["model"]),
        td.Layout(**given["layout"]),
        cluster,
        recipe_of(given["recipe"]),
        given["sequence"],
    ), named


def words(layout: Any) -> str:
    """The fields of a layout, or of one as JSON has it, that are not as usual."""
    found, usual = layout if isinstance(layout, dict) else vars(layout), vars(td.Layout())
    return " ".join(f"{name}={found[name]}" for name in usual if found[name] != usual[name])


def ledger(given: dict[str, Any]) -> Any:
    """Bytes by stage; of the fullest stage each row, with a digest of its formula's text."""
    case, named = case_of(given)
    fit = td.fits(*case, **named)
    stages = list(fit.memory.per_stage)
    rows = [row for row in fit.memory.ledger.rows if row.place == stages.index(max(stages))]
    found = {
        "verdict": fit.verdict,
        "band": [fit.memory.peak, fit.expected],
        "per_stage": stages if len(stages) <= 4 else [max(stages), digest(stages)],
        "rows": {},
        "offloaded": {
            k: max(v) if isinstance(v, (list, tuple)) else v
            for k, v in fit.memory.to_dict()["offloaded"].items()
        },
        "formulas": digest([[row.tensor, row.moment, row.formula] for row in rows]),
        "every": digest([[r.place, r.tensor, r.moment, r.bytes] for r in fit.memory.ledger.rows]),
    }
    for row in rows:
        moments = found["rows"].setdefault(row.tensor, {})
        moments[row.moment] = moments.get(row.moment, 0) + row.bytes
    # a class that is the same at every moment of a step is written once
    found["rows"] = {
        tensor: next(iter(at.values())) if len({*at.values()}) == 1 else at
        for tensor, at in found["rows"].items()
    }
    return found


def fix(given: dict[str, Any]) -> Any:
    """The layout that is said to fit, its devices and how many are missing."""
    case, named = case_of(given)
    fit = td.fits(*case, **named)
    found = fit.smallest_fix
    if found is None:
        return {"verdict": fit.verdict, "fix": None}
    changed = {"fix": words(found.layout), "changed": sorted(found.changed)}
    devices = {"devices": found.layout.devices, "missing": found.missing}
    return {"verdict": fit.verdict, **changed, **devices}


def border(given: dict[str, Any]) -> Any:
    """The least bytes of a device at which the layout is tight, and at which it fits."""
    (model, layout, cluster, recipe, sequence), named = case_of(given)

    def verdict(capacity: int) -> str:
        small = replace(cluster, device=replace(cluster.device, memory_bytes=capacity))
        return td.fits(model, layout, small, recipe, sequence, **named).verdict

    def least(good: tuple[str, ...]) -> int:
        low, high = 10**6, 10**13
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if verdict(middle) in good else (middle, high)
        return high

    peak = td.fits(model, layout, cluster, recipe, sequence, **named).memory.peak
    return {"peak": peak, "tight": least(("tight", "fits")), "fits": least(("fits",))}


SETS = (
    GoldenSet("ledgers", ledger),
    GoldenSet("borders", border),
    GoldenSet("fixes", fix),
    GoldenSet("fixes_long", fix, "slow"),
)
