"""Golden values of choosing: steps, searches, advice, configurations, rows of the accuracy page,
what is shipped, diagnoses, closed forms."""

import json
from functools import cache
from typing import Any

from oracles.traces import recorded_traces

import tiledask as td
from golden.plan import case_of, words
from golden.store import GoldenSet

# -- the one place that looks inside ---------------------------------------------------------------


def accuracy_groups() -> Any:
    """The groups of rows of the accuracy page."""
    from oracles import published

    return published.groups()


# -- time ------------------------------------------------------------------------------------------


def step(given: dict[str, Any]) -> Any:
    case, named = case_of(given)
    found = td.estimate_step(*case, **named)
    return {
        "total": found.total,
        "parts": list(found.to_dict()["parts"].values()),
        "mfu": found.mfu,
        "tokens_per_second": found.tokens_per_second,
        "error": found.error,
    }


# -- choosing --------------------------------------------------------------------------------------


def best(given: dict[str, Any]) -> Any:
    """How many were looked at and fit, and the first three."""
    named: dict[str, Any] = {"framework": given["framework"]} if "framework" in given else {}
    if "space" in given:
        named["space"] = td.Space(**{k: tuple(v) for k, v in given["space"].items()})
    found = td.search(
        given["model"], given["cluster"], given["batch"], sequence=given["sequence"], **named
    )
    facts = found.to_dict(3)
    return {
        "considered": facts["considered"],
        "counts": facts["counts"],
        "plans": [
            [words(row["layout"]), row["verdict"], row["peak"], row["seconds"]]
            for row in facts["plans"]
        ],
    }


def advice(given: dict[str, Any]) -> Any:
    case, named = case_of(given)
    facts = td.critique(*case, **named).to_dict()
    return {
        "verdict": facts["verdict"],
        "seconds": facts["seconds"],
        "good": {line["about"]: line["good"] for line in facts["lines"]},
        "advice": [[row["change"], row["peak"], row["seconds"]] for row in facts["advice"][:4]],
    }


def relaxed(given: dict[str, Any]) -> Any:
    found = td.sensitivity(
        given["model"], given["cluster"], given["batch"], sequence=given["sequence"]
    )
    return {each.limit: each.speedup for each in found}


# -- configurations of frameworks ------------------------------------------------------------------


def exported(given: dict[str, Any]) -> Any:
    """The text, how many notes there are, and the layout that is read back from it."""
    (model, layout, _, recipe, sequence), _ = case_of(given)
    found = td.export_config(model, layout, given["to"], recipe=recipe, sequence=sequence)
    try:
        back = td.import_config(given["to"], found.text, model=model, devices=layout.devices)
        again = words(back.layout)
    except ValueError as refused:
        again = type(refused).__name__
    text = found.text
    if given["to"] == "deepspeed":
        text = json.loads(text)
    return {"text": text, "notes": len(found.notes), "read_back": again}


# -- published numbers, and what is shipped --------------------------------------------------------


@cache
def _accuracy() -> dict[str, Any]:
    return {group.name: group for group in accuracy_groups()}


def accuracy(given: dict[str, Any]) -> Any:
    """[case, quantity, published, ours, whether it was fitted] of every row."""
    group = _accuracy()[given["source"]]
    return [
        [row.case, row.quantity, row.published, row.ours, row.calibration] for row in group.rows
    ]


def of_file(given: dict[str, Any]) -> Any:
    """What a shipped file comes to: a model's parameters, a device's limits, a recipe's bytes."""
    name = given["name"]
    if given["kind"] == "models":
        model = td.load_model(name)
        whole = td.estimate_memory(model, td.Layout(), "fp16-weights", 512)
        states = dict(whole.ledger.by_tensor(0))
        return {"parameters": model.parameters, "bytes of 512 tokens": states}
    if given["kind"] == "hardware":
        cluster = td.load_cluster(f"2x{name}")
        step = td.estimate_step("gpt2", td.Layout(dp=2), cluster, sequence=1024)
        return {
            "bytes": cluster.device.memory_bytes,
            "node": cluster.devices_per_node,
            "gpt2": step.total,
        }
    return dict(td.formulas.state_bytes(10**9, name, 0, 4))


# -- diagnoses of recorded runs --------------------------------------------------------------------


def diagnosis(given: dict[str, Any]) -> Any:
    facts = td.diagnose(str(recorded_traces()[given["trace"]])).to_dict()
    found = facts["findings"]
    return {
        "makespan": facts["makespan"],
        "idle": facts["idle_share"],
        **{
            name: found[name]["value"]
            for name in ("devices", "microbatches", "schedule")
            if name in found
        },
        "causes": sorted(facts["causes"], key=facts["causes"].get, reverse=True)[:2],
    }


# -- closed forms ----------------------------------------------------------------------------------


def values_of(given: dict[str, Any]) -> Any:
    found = {}
    for name, arguments in given.items():
        try:
            found[name] = getattr(td.formulas, name)(*arguments)
        except ValueError as refused:
            found[name] = type(refused).__name__
    return found


SETS = (
    GoldenSet("steps", step),
    GoldenSet("searches", best),
    GoldenSet("searches_long", best, "slow"),
    GoldenSet("critiques", advice, "slow"),
    GoldenSet("limits", relaxed, "slow"),
    GoldenSet("configs", exported),
    GoldenSet("accuracy", accuracy),
    GoldenSet("diagnoses", diagnosis, "slow"),
    GoldenSet("shipped", of_file),
    GoldenSet("closed_forms", values_of),
)
