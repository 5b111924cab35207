"""Puzzles whose answer gives each layer to a device: judged by rules and by the exact partition."""

from typing import Any

from tiledask.errors import ConfigError, PartitionError
from tiledask.lab.tasks.kind import Inputs, Measured, Targets
from tiledask.plan.splitting.partition import (
    Partition,
    Verdict,
    judge,
    partition,
    read_assignment,
    stage_name,
)

__all__ = ["best", "check_inputs", "measure", "read", "solve"]


def _stages(inputs: Inputs) -> int:
    return int(inputs["devices"] * inputs.get("chunks", 1))


def _best_cut(inputs: Inputs) -> Partition:
    """The split with the smallest bottleneck; PartitionError if there is none at all."""
    given = {name: value for name, value in inputs.items() if name not in ("shown", "devices")}
    return partition(stages=_stages(inputs), **given)


def read(inputs: Inputs, answer: Any) -> Verdict:
    """The verdict of `judge`: ConfigError for what is no answer, PartitionError with the rule that
    it breaks."""
    given = {name: value for name, value in inputs.items() if name != "shown"}
    try:
        groups = read_assignment(answer, len(inputs["costs"]), _stages(inputs))
    except PartitionError as error:
        raise ConfigError(f"{error}") from None
    verdict = judge(groups, **{"chunks": 1} | given)
    if not verdict:
        raise PartitionError(f"{verdict.rule}. {verdict.reason}")
    return verdict


def measure(inputs: Inputs, verdict: Verdict) -> Measured:
    times, shape = verdict.times, (inputs["devices"], inputs.get("chunks", 1))
    most, least = times.index(max(times)), times.index(min(times))
    layers = verdict.stages[most]
    span = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
    slowest, fastest = stage_name(most, *shape), stage_name(least, *shape)
    where = f"{slowest}, with {span}, is the slowest, {fastest} takes {times[least]:g}"
    crossings = verdict.crossings or 0  # None only of what is not legal
    return {"crossings": (crossings, ""), "bottleneck": (max(times), where)}


def best(inputs: Inputs, targets: Targets) -> dict[str, float]:
    fewest = _stages(inputs) - 1 if inputs["devices"] > 1 else 0
    return {"crossings": fewest, "bottleneck": _best_cut(inputs).bottleneck}


def check_inputs(inputs: Inputs) -> None:
    _best_cut(inputs)
    if "shown" in inputs:
        read_assignment(inputs["shown"])


def solve(inputs: Inputs, targets: Targets) -> str:
    return str(_best_cut(inputs))
