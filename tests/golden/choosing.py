"""Golden values of choosing: steps, searches, advice, configurations, rows of the accuracy page,
what is shipped, diagnoses, closed forms."""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from oracles.traces import recorded_traces

import tiledask as td
from golden.plan import CARDS, FRAMEWORKS, case_of, cases, drawn_case, words
from golden.store import GoldenSet, digest

# -- the one place that looks inside ---------------------------------------------------------------


def accuracy_groups(searched: bool) -> Any:
    """The groups of rows of the accuracy page; ``searched``: those that search for layouts."""
    from tiledask.lab.accuracy import evaluate, runs
    from tiledask.lab.accuracy import searched as search

    if searched:
        return (search.searched(),)
    of_runs = map(evaluate.measured, runs.published_runs())
    return (*evaluate.exact(), *of_runs, evaluate.ranking())


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


def stepped() -> dict[str, Any]:
    """All the cases of the ledgers that train, and one by each framework on each kind of device."""
    found = cases(500, 11)
    for card in sorted({*CARDS}):
        for name in FRAMEWORKS:
            found[f"{name} on {card}"] = {
                "model": "llama-3.1-8b",
                "layout": {"dp": 2, "tp": 2, "pp": 2, "microbatches": 8, "zero": 1},
                "cluster": f"8x{card}", "recipe": "mixed-adam-16", "sequence": 2048,
                "framework": name,
            }  # fmt: skip
    kept = {}
    for key, given in found.items():
        try:
            step(given)
        except ValueError:
            continue
        kept[key] = given
    return kept


# -- choosing --------------------------------------------------------------------------------------

SEARCHES = (
    ("gpt2-xl", "4xRTX4090", 16, 1024),
    ("gpt2-xl", "8xV100", 64, 1024),
    ("llama-2-7b", "8xA100-80GB", 16, 2048),
    ("llama-2-7b", "8xA100-40GB", 64, 4096),
    ("llama-2-13b", "16xA10", 32, 2048),
    ("llama-2-13b", "16xL40S", 64, 2048),
    ("llama-2-70b", "64xA100-80GB", 256, 4096),
    ("llama-2-70b", "32xH100", 128, 4096),
    ("llama-3.1-8b", "8xH100", 32, 8192),
    ("llama-3.1-405b", "512xH100", 512, 8192),
    ("bloom-176b", "384xA100-80GB", 2048, 2048),
    ("gpt-200b", "160xA100-40GB", 160, 2048),
    ("gpt-200b", "128xH100", 256, 2048),
    ("mixtral-8x7b", "32xH100", 64, 4096),
    ("mixtral-8x22b", "64xA100-80GB", 128, 4096),
    ("deepseek-v2-lite", "16xH100", 64, 4096),
    ("qwen3-30b-a3b", "16xH200", 32, 4096),
    ("mistral-large-123b", "64xB200", 128, 4096),
    ("pythia-12b", "6xA100-80GB", 30, 2048),
    ("llama-2-13b", "3xMI300X", 9, 2048),
)
LONG = (
    "gpt2-xl on 4xRTX4090",
    "llama-2-70b on 64xA100-80GB",
    "bloom-176b on 384xA100-80GB",
    "gpt-200b on 160xA100-40GB",
    "gpt-200b on 128xH100",
    "mistral-large-123b on 64xB200",
    "pythia-12b on 6xA100-80GB",
    "llama-2-13b on 3xMI300X",
    "llama-2-70b on 32xH100",
    "llama-2-70b on 32xH100 by megatron-2024",
)


def searches() -> dict[str, Any]:
    found = {
        f"{model} on {cluster}": {
            "model": model, "cluster": cluster, "batch": batch, "sequence": sequence
        }
        for model, cluster, batch, sequence in SEARCHES
    }  # fmt: skip
    for key, name in (
        ("llama-2-70b on 32xH100", "megatron-2024"),
        ("llama-3.1-8b on 8xH100", "torchtitan"),
    ):
        found[f"{key} by {name}"] = found[key] | {"framework": name}
    for key, microbatches in (("large", 64), ("huge", 4096)):
        # bytes near the largest whole number of 64 bits
        found[key] = {
            "model": "llama-3.1-405b", "cluster": "128xH100", "batch": 64 * microbatches,
            "sequence": 131_072,
            "space": {"tp": [8], "pp": [16], "microbatch": [64], "recompute": ["none"],
                      "flash_attention": [False], "schedule": ["gpipe"], "interleave": [1],
                      "zero": [0], "sequence_parallel": [False], "cp": [1]},
        }  # fmt: skip
    return found


def best(given: dict[str, Any]) -> Any:
    """How many were looked at and fit; the first three, and those that no other beats."""
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
        "front": digest([[words(row["layout"]), row["peak"]] for row in facts["front"]]),
    }


def critiques() -> dict[str, Any]:
    found, draw = {}, Random(14)
    while len(found) < 12:
        given = drawn_case(draw)
        if draw.random() < 0.5 or not isinstance(given["model"], str):
            continue
        try:
            advice(given)
        except ValueError:
            continue
        found[f"{len(found)} {given['model']}"] = given
    return found


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
    return {name: row["speedup"] for name, row in found.to_dict().items()}


def limits() -> dict[str, Any]:
    return {
        key: searches()[key]
        for key in ("llama-2-7b on 8xA100-80GB", "gpt2-xl on 8xV100", "mixtral-8x7b on 32xH100")
    }


# -- configurations of frameworks ------------------------------------------------------------------


def configurations() -> dict[str, Any]:
    draw, found = Random(15), {}
    for framework in ("megatron", "torchtitan", "deepspeed"):
        for n in range(1000):
            if sum(key.startswith(framework) for key in found) == 10:
                break
            given = drawn_case(draw) | {"to": framework}
            if not isinstance(given["recipe"], str):
                continue
            try:
                exported(given)
            except ValueError:
                continue
            found[f"{framework} {n}"] = given
    return found


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
def _accuracy(searched: bool) -> dict[str, Any]:
    return {group.name: group for group in accuracy_groups(searched)}


def pages(searched: bool) -> dict[str, Any]:
    return {name: {"source": name, "searched": searched} for name in _accuracy(searched)}


def accuracy(given: dict[str, Any]) -> Any:
    """[case, quantity, published, ours, whether it was fitted] of every row."""
    group = _accuracy(given["searched"])[given["source"]]
    return [
        [row.case, row.quantity, row.published, row.ours, row.calibration] for row in group.rows
    ]


def shipped() -> dict[str, Any]:
    data = Path(__file__).parents[2] / "data"
    return {
        f"{kind[:-1]} {path.stem}": {"kind": kind, "name": path.stem}
        for kind in ("models", "hardware", "recipes")
        for path in sorted((data / kind).glob("*.json"))
    }


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


def traces() -> dict[str, Any]:
    return {name: {"trace": name} for name in recorded_traces()}


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


def closed() -> dict[str, Any]:
    draw, found = Random(16), {}
    for n in range(24):
        p, m, v = draw.randint(1, 8), draw.randint(1, 16), draw.randint(1, 3)
        f = [draw.randint(2, 9) / 4 for _ in range(p)]
        b = [draw.randint(4, 12) / 4 for _ in range(p)]
        size = draw.randint(10**8, 4 * 10**11)
        recipe = draw.choice(("mixed-adam-16", "mixed-adam-18", "fp32-adam", "fp16-weights"))
        found[str(n)] = {
            "bubble_fraction": [p, m, v],
            "bubble_overhead": [p, m, v],
            "gpipe_makespan": [f, b, m, 0.125],
            "interleaved_makespan": [p, p * m, v, 0.5, 0.25],
            "one_forward_one_backward_makespan": [p, m, 1.0, 2.0, 0.125],
            "lower_bound": [f, b, m, 0.125],
            "split_lower_bound": [f, b, m, 0.125],
            "naive_utilisation": [p],
            "speedup": [p, m],
            "minimum_devices": [size, recipe, "40GB"],
            "zero3_minimum_degree": [size, recipe, "40GB"],
            "state_bytes": [size, recipe, n % 4, 1 + n],
            "checkpoint_interval": [1.0 + n, 3600.0 * p],
        }
    return found


def values_of(given: dict[str, Any]) -> Any:
    found = {}
    for name, arguments in given.items():
        try:
            found[name] = getattr(td.formulas, name)(*arguments)
        except ValueError as refused:
            found[name] = type(refused).__name__
    return found


SETS = (
    GoldenSet("steps", step, stepped),
    GoldenSet("searches", best, lambda: {k: g for k, g in searches().items() if k not in LONG}),
    GoldenSet("searches_long", best, lambda: {k: searches()[k] for k in LONG}, "slow"),
    GoldenSet("critiques", advice, critiques, "slow"),
    GoldenSet("limits", relaxed, limits, "slow"),
    GoldenSet("configs", exported, configurations),
    GoldenSet("accuracy", accuracy, lambda: pages(False)),
    GoldenSet("accuracy_long", accuracy, lambda: pages(True), "slow"),
    GoldenSet("diagnoses", diagnosis, traces, "slow"),
    GoldenSet("shipped", of_file, shipped),
    GoldenSet("closed_forms", values_of, closed),
)
