"""Whether the workers have room for a training, before anything of it runs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.room import MARGIN, SLACK, check_room
from tiledask.plan.program.making.training import TrainingTerms
from tiledask.plan.program.program import Program

__all__ = ["check_training"]

Programs = Callable[[TrainingTerms], tuple[Program, ...]]
"""What is done one after the other for a training of these terms."""


def check_training(
    mesh: Mesh,
    terms: TrainingTerms,
    asked: tuple[Program, ...],
    programs: Programs,
    timeout: float,
) -> None:
    """None if every rank's slot leaves the bytes that the programs ``asked`` for hold at their
    fullest; else DoesNotFitError, with what would fit: other terms, whose ``programs`` do."""
    ledgers = [program.memory for program in asked]
    peaks = [max(each.per_place.get(rank, 0) for each in ledgers) for rank in range(len(mesh.at))]
    needs = [int(SLACK * peak) + MARGIN for peak in peaks]
    largest = max(ledgers, key=lambda each: each.peak).binding[-1] if max(peaks) else ""

    def other(least: int) -> str:
        fitting = (
            words
            for words, changed in _others(terms, mesh.shape[0])
            if SLACK * max(each.memory.peak for each in programs(changed)) + MARGIN <= least
        )
        return next(fitting, "")

    check_room(
        mesh.cluster, mesh.at, needs, f"this training, most of it {largest},", timeout, other
    )


def _others(terms: TrainingTerms, copies: int) -> Iterator[tuple[str, TrainingTerms]]:
    """The same training in less memory, in words and in terms."""
    stages = range(terms.zero, 3 if copies > 1 else terms.zero + 1)  # 3 changes the schedule too
    for zero, anew in product(stages, (False,) if terms.recompute else (False, True)):
        changed: dict[str, Any] = {"zero": zero} if zero != terms.zero else {}
        changed |= {"recompute": True} if anew else {}
        if changed:
            words = ", ".join(f"{name}={value}" for name, value in changed.items())
            yield words, replace(terms, **changed)
