"""Golden values of trainings: programs of drawn ones, and losses, on threads of this process."""

from math import prod
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


def training(given: dict[str, Any]) -> Any:
    """Losses and what weights come to, bytes of all kinds of calls, bits."""
    if "ways" in given:
        done = td.train_lenet(
            td.load_images("digits"), given["ways"], steps=given["steps"], batch=given["batch"],
            rule=optimizer(**given["rule"]), dtype=given["dtype"],
        )  # fmt: skip
        found = losses_of(done, prod(given["ways"].values()), precise=True)
        return {name: value for name, value in found.items() if name != "scales"}
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
    weights = [np.asarray(w) for _, w in sorted(done.weights.items())]
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
    GoldenSet("training_programs", program),
    GoldenSet("training_programs_long", program, "slow"),
    GoldenSet("trainings", training),
)
