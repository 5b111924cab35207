"""Golden values of trainings: programs of drawn ones, and losses, on threads of this process."""

from math import prod
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from oracles.drawn_layouts import MODELS

import tiledask as td
from golden.ranks import records_of
from golden.store import MACHINE, GoldenSet, bits, digest, moved, summary
from golden.tile import optimizer


def calls_of(program: Any) -> list[list[tuple]]:
    """By rank (label, kind, sent, received, messages) of every call of a step."""
    from tiledask.plan.program.count import calls

    return [[tuple(call) for call in calls(program, rank)] for rank in range(program.ranks)]


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
    model, ranks = MODELS[given["model"]], tuple(given["ranks"])
    return td.training_program(model, ranks, batch=given["batch"], **options(given)).check()


def program(given: dict[str, Any]) -> Any:
    """Text, bytes, messages and peaks by rank, and every call of a step."""
    found = program_of(given)
    text, called = str(found), calls_of(found)
    kinds = sorted({call[1] for call in called[0]})
    return {
        "text": digest(text),
        "length": len(text),
        **moved(found.traffic),
        "peaks": list(found.memory.per_place.values()),
        "calls": digest(called),
        "rank 0": {kind: sum(call[1] == kind for call in called[0]) for kind in kinds},
    }


def training(given: dict[str, Any]) -> Any:
    """Losses and what weights come to, bytes of all kinds of calls, bits."""
    if "ways" in given:
        told = {name: given[name] for name in ("steps", "batch", "dtype")}
        told["rule"] = optimizer(**given["rule"])
        done = td.train_lenet(td.load_images("digits"), given["ways"], **told)
        found = losses_of(done, prod(given["ways"].values()), precise=True)
        return {name: value for name, value in found.items() if name != "scales"}
    model, text, ranks = MODELS[given["model"]], td.load_text("tales"), given["ranks"]
    told = {"steps": given["steps"], "batch": given["batch"], "progress": False, **options(given)}

    def trained(ranks: list[int] = ranks, **more: Any) -> Any:
        return td.train(model, text, tuple(ranks), **told | more)

    straight, precise = trained(), told["dtype"] == "float64"
    if "resumed" not in given:
        return losses_of(straight, prod(ranks), precise)
    with TemporaryDirectory() as folder:
        kept = {"folder": folder, "save_every": 2}
        trained(**kept, steps=2)
        done = trained(**kept)
        more = {"steps": given["steps"] + 1, "sequence_parallel": False}
        other = trained(given["resumed"], **kept | more)
    found = losses_of(done, prod(ranks), precise)
    same = all((w == done.weights[n]).all() for n, w in straight.weights.items())
    return found | {"first": done.config.first, "same bits": same, "elsewhere": other.losses}


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
