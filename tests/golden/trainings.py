"""Golden values of trainings: programs of drawn ones, and losses, on threads of this process."""

from itertools import pairwise, product
from math import prod
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import tiledask as td
from golden.ranks import records_of
from golden.store import MACHINE, GoldenSet, bits, digest, summary
from golden.tile import optimizer

# -- the one place that looks inside ---------------------------------------------------------------


def calls_of(program: Any) -> list[list[tuple]]:
    """By rank (label, kind, sent, received, messages) of every call of a step."""
    from tiledask.plan.program.count import calls

    return [[tuple(call) for call in calls(program, rank)] for rank in range(program.ranks)]


MODELS: dict[str, dict[str, Any]] = {
    "GPT-2": {"vocabulary": 59, "hidden": 12, "layers": 3, "heads": 3, "sequence": 6},
    "GPT-2 tied": {"vocabulary": 59, "hidden": 12, "layers": 2, "heads": 3, "sequence": 6},
    "Llama": {"vocabulary": 53, "hidden": 12, "layers": 2, "heads": 3, "sequence": 6},
    "Llama tied": {"vocabulary": 59, "hidden": 16, "layers": 3, "heads": 4, "sequence": 5},
}
MODELS["GPT-2 tied"] |= {"tied": True}
MODELS["Llama"] |= {"kv_heads": 1, "ffn": 17, "gated": True}
MODELS["Llama tied"] |= {"kv_heads": 2, "ffn": 7, "gated": True, "tied": True}


def options(given: dict[str, Any]) -> dict[str, Any]:
    """What `train` and `training_program` take, from plain values."""
    told = dict(given["options"])
    if "rule" in told:
        told["rule"] = optimizer(**told["rule"])
    if "scale" in told:
        told["scale"] = td.tile.optimizers.LossScale(told["scale"], interval=2)
    if told.get("schedule") == "interleaved":
        stages = len(told["cut"])
        told["schedule"] = td.schedule(
            "interleaved", stages, told["microbatches"], devices=given["ranks"][2]
        )
    return told


def programs() -> dict[str, Any]:
    """60 drawn trainings."""
    draw, found = Random(32), {}
    shapes = [s for s in product(range(1, 5), repeat=3) if prod(s) <= 12]
    while len(found) < 60:
        n, name = len(found), draw.choice(list(MODELS))
        shape, schedule = (
            draw.choice(shapes),
            draw.choice(("1f1b", "gpipe", "zb-h1", "interleaved")),
        )
        stages = shape[2] * (2 if schedule == "interleaved" else 1)
        layers = MODELS[name]["layers"]
        marks = sorted(draw.randint(0, layers) for _ in range(stages - 1))
        told = {
            "schedule": schedule,
            "cut": [b - a for a, b in pairwise((0, *marks, layers))],
            "zero": draw.choice(range(4)),
            "microbatches": draw.choice((1, 2, 3, 4)),
            "sequence_parallel": draw.random() < 0.5,
            "dtype": draw.choice(("float64", "float32", "float16", "bfloat16")),
        }
        if told["dtype"] in ("float16", "bfloat16"):
            told["recipe"] = draw.choice(("mixed-adam-16", "mixed-adam-18"))
        else:
            told["rule"] = {"kind": draw.choice(("adam", "adamw", "sgd")), "lr": 0.01}
        if draw.random() < 0.4:
            told["clip"] = 1.0
        if draw.random() < 0.3:
            told["scale"] = 1024.0
        if draw.random() < 0.2:
            told["recompute"] = True
        if n % 12 == 11:
            told["checkpoint"] = True
        given = {"model": name, "ranks": list(shape), "batch": draw.randint(4, 9), "options": told}
        try:
            program_of(given)
        except ValueError:
            continue
        found[f"{n} {name}"] = given
    return found


def half(odd: int) -> dict[str, Any]:
    return {key: given for n, (key, given) in enumerate(programs().items()) if n % 2 == odd}


def program_of(given: dict[str, Any]) -> Any:
    model = td.GPT(**MODELS[given["model"]])
    return td.training_program(
        model, tuple(given["ranks"]), batch=given["batch"], **options(given)
    ).check()


def program(given: dict[str, Any]) -> Any:
    """Text, bytes, messages and peaks by rank, and every call of a step."""
    found = program_of(given)
    text, called = str(found), calls_of(found)
    kinds = sorted({call[1] for call in called[0]})
    return {
        "text": digest(text),
        "length": len(text),
        "sent": list(found.traffic.sent),
        "received": list(found.traffic.received),
        "messages": found.traffic.count,
        "peaks": list(found.memory.per_place.values()),
        "calls": digest(called),
        "rank 0": {kind: sum(call[1] == kind for call in called[0]) for kind in kinds},
    }


ADAM = {"kind": "adam", "lr": 0.01, "eps": 1e-6}
SGD = {"kind": "sgd", "lr": 0.1, "momentum": 0.9}


def trainings() -> dict[str, Any]:
    """Those of a GPT, one that goes on from a checkpoint, and those of LeNet."""
    chunks = {"microbatches": 2, "schedule": "interleaved", "cut": [1, 1, 0, 1]}
    everything = {"zero": 1, "microbatches": 2, "sequence_parallel": True}
    halves = {"dtype": "float16", "recipe": "mixed-adam-16", "scale": 1024.0, "zero": 1}
    rows = {
        "one device": ("GPT-2", (1, 1, 1), {"rule": ADAM}),
        "dp": ("GPT-2", (2, 1, 1), {"rule": ADAM, "microbatches": 2}),
        "tp": ("GPT-2", (1, 3, 1), {"rule": ADAM}),
        "tp, tokens": ("Llama", (1, 2, 1), {"rule": SGD, "sequence_parallel": True}),
        "pp, 1f1b": ("GPT-2", (1, 1, 3), {"rule": SGD, "microbatches": 4}),
        "pp, zb-h1": ("Llama tied", (1, 1, 2), {"rule": ADAM, "microbatches": 3}),
        "interleaved": ("Llama tied", (1, 1, 2), {"rule": ADAM, **chunks}),
        "ZeRO-1": ("GPT-2 tied", (2, 1, 1), {"rule": ADAM, "zero": 1, "clip": 0.5}),
        "ZeRO-2": ("Llama", (3, 1, 1), {"rule": ADAM, "zero": 2, "microbatches": 2}),
        "ZeRO-3": ("GPT-2", (2, 1, 2), {"rule": SGD, "zero": 3, "microbatches": 2}),
        "all": ("Llama", (2, 2, 2), {"rule": ADAM, **everything}),
        "recomputed": ("GPT-2", (1, 2, 2), {"rule": ADAM, "microbatches": 2, "recompute": True}),
        "mixed, fp16": ("GPT-2", (2, 1, 1), halves),
        "mixed, bf16": ("Llama", (1, 2, 1), {"dtype": "bfloat16", "recipe": "mixed-adam-18"}),
        "single": ("GPT-2", (2, 1, 2), {"dtype": "float32", "rule": ADAM, "microbatches": 2}),
    }
    found: dict[str, Any] = {
        key: {"model": model, "ranks": shape, "batch": 5, "steps": 4,
              "options": {"dtype": "float64"} | told}
        for key, (model, shape, told) in rows.items()
    }  # fmt: skip
    found["pp, zb-h1"]["options"]["schedule"] = "zb-h1"
    found["resumed"] = found["all"] | {"resumed": [2, 1, 1]}
    splits = {
        "LeNet": {}, "LeNet, split": {"data parallel": 2, "network": 2},
        "LeNet, by output": {"by output units": 3}, "LeNet, rows": {"space": 2},
    }  # fmt: skip
    for key, ways in splits.items():
        found[key] = {"ways": ways, "batch": 6, "steps": 3, "dtype": "float64", "rule": ADAM}
    return found


def training(given: dict[str, Any]) -> Any:
    """Losses and what weights come to, bytes of all kinds of calls, bits."""
    if "ways" in given:
        done = td.train_lenet(
            td.load_images("digits"), given["ways"], steps=given["steps"], batch=given["batch"],
            rule=optimizer(**given["rule"]), dtype=given["dtype"],
        )  # fmt: skip
        return losses_of(done, prod(given["ways"].values()), precise=True)
    model, text = td.GPT(**MODELS[given["model"]]), td.load_text("tales")
    told = {"steps": given["steps"], "batch": given["batch"], "progress": False, **options(given)}
    precise = told["dtype"] == "float64"
    if "resumed" not in given:
        done = td.train(model, text, tuple(given["ranks"]), **told)
        return losses_of(done, prod(given["ranks"]), precise)
    with TemporaryDirectory() as folder:
        told |= {"folder": folder, "save_every": 2}
        td.train(model, text, tuple(given["ranks"]), **told | {"steps": 2})
        done = td.train(model, text, tuple(given["ranks"]), **told)
        other = td.train(
            model, text, tuple(given["resumed"]),
            **told | {"steps": given["steps"] + 1, "sequence_parallel": False},
        )  # fmt: skip
    straight = td.train(
        model, text, tuple(given["ranks"]), **told | {"folder": None, "save_every": None}
    )
    found = losses_of(done, prod(given["ranks"]), precise)
    # ranks tell each other the checksums of what they wrote, and the numbers of their digits differ
    found[MACHINE] = [found[MACHINE], found.pop("calls")]
    same = all((w == done.weights[n]).all() for n, w in straight.weights.items())
    return found | {"first": done.first, "same bits": same, "elsewhere": other.losses}


def losses_of(done: Any, ranks: int, precise: bool) -> dict[str, Any]:
    by_name = dict(done.weights.items())
    if isinstance(next(iter(by_name.values())), dict):  # LeNet's, by layer
        by_name = {f"{n}.{k}": w for n, layer in by_name.items() for k, w in layer.items()}
    weights = [np.asarray(w) for _, w in sorted(by_name.items())]
    flat = np.concatenate([w.astype("float64").ravel() for w in weights])
    found = {"calls": digest(records_of(done, ranks)), "parameters": flat.size}
    for name in ("norms", "scales", "skipped"):
        if len(value := getattr(done, name, ())):
            found[name] = list(value)
    numbers_of = {"losses": list(done.losses), "weights": summary(flat)}
    if not precise:
        numbers_of |= {"norms": found.pop("norms", [])}
        return found | {MACHINE: [numbers_of, bits(*weights)]}
    return found | numbers_of | {MACHINE: bits(*weights)}


SETS = (
    GoldenSet("training_programs", program, lambda: half(0)),
    GoldenSet("training_programs_long", program, lambda: half(1), "slow"),
    GoldenSet("trainings", training, trainings),
)
