"""Golden values of choosing: steps, searches, advice, configurations, rows of the accuracy page,
what is shipped, diagnoses, closed forms."""

import json
from typing import Any

from oracles import published
from oracles.traces import recorded_traces

import tiledask as td
from golden.plan import case_of, words
from golden.store import GoldenSet, picked


def step(given: dict[str, Any]) -> Any:
    case, named = case_of(given)
    found = td.estimate_step(*case, **named)
    parts = list(found.to_dict()["parts"].values())
    return picked(found, "total mfu tokens_per_second error") | {"parts": parts}


def best(given: dict[str, Any]) -> Any:
    """How many were looked at and fit, and the first three."""
    named = {name: given[name] for name in ("sequence", "framework") if name in given}
    if "space" in given:
        named["space"] = td.Space(**{k: tuple(v) for k, v in given["space"].items()})
    facts = td.search(given["model"], given["cluster"], given["batch"], **named).to_dict(3)
    rows = [
        [words(row["layout"]), row["verdict"], row["peak"], row["seconds"]]
        for row in facts["plans"]
    ]
    return {"considered": facts["considered"], "counts": facts["counts"], "plans": rows}


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
    asked = given["model"], given["cluster"], given["batch"]
    found = td.sensitivity(*asked, sequence=given["sequence"])
    return {each.limit: each.speedup for each in found}


def exported(given: dict[str, Any]) -> Any:
    """The text, how many notes there are, and the layout that is read back from it."""
    (model, layout, _, recipe, sequence), _ = case_of(given)
    found = td.export_config(model, layout, given["to"], recipe=recipe, sequence=sequence)
    try:
        back = td.import_config(given["to"], found.text, model=model, devices=layout.devices)
        again = words(back.layout)
    except ValueError as refused:
        again = type(refused).__name__
    text = json.loads(found.text) if given["to"] == "deepspeed" else found.text
    return {"text": text, "notes": len(found.notes), "read_back": again}


def accuracy(given: dict[str, Any]) -> Any:
    """[case, quantity, published, ours, whether it was fitted] of every row."""
    group = next(each for each in published.groups() if each.name == given["source"])
    return [
        [row.case, row.quantity, row.published, row.ours, row.calibration] for row in group.rows
    ]


def of_file(given: dict[str, Any]) -> Any:
    """What a shipped file comes to: a model's parameters, a device's limits, a recipe's bytes."""
    name = given["name"]
    if given["kind"] == "models":
        model = td.load_model(name)
        whole = td.estimate_memory(model, td.Layout(), "fp16-weights", 512).ledger.by_tensor(0)
        return {"parameters": model.parameters, "bytes of 512 tokens": dict(whole)}
    if given["kind"] == "hardware":
        there = td.load_cluster(f"2x{name}")
        step = td.estimate_step("gpt2", td.Layout(dp=2), there, sequence=1024).total
        return {"bytes": there.device.memory_bytes, "node": there.devices_per_node, "gpt2": step}
    return dict(td.formulas.state_bytes(10**9, name, 0, 4))


def diagnosis(given: dict[str, Any]) -> Any:
    facts = td.diagnose(str(recorded_traces()[given["trace"]])).to_dict()
    causes = sorted(facts["causes"], key=facts["causes"].get, reverse=True)[:2]
    of_run = {"makespan": facts["makespan"], "idle": facts["idle_share"], "causes": causes}
    found = {name: each["value"] for name, each in facts["findings"].items()}
    kinds = found.keys() & {"devices", "microbatches", "schedule"}
    return of_run | {name: found[name] for name in kinds}


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
