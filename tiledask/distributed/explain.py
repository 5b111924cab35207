"""`tiledask.explain`: of a product every algorithm, of a training where its step goes."""

from dataclasses import replace
from typing import Any

from tiledask.distributed.products.explain import Explanation
from tiledask.distributed.products.matmul import explain as explain_product
from tiledask.distributed.training.run import Trained, said_on
from tiledask.errors import ConfigError
from tiledask.plan.program.explained import ProgramExplanation, explain_program
from tiledask.plan.program.program import Program

__all__ = ["explain"]


def explain(first: Any, second: Any = None, **options: Any) -> Explanation | ProgramExplanation:
    """What something takes, and why; nothing runs.

    ``explain(A, B)`` of two sharded arrays: every algorithm for A @ B, bytes, messages, memory and
    seconds, and which is chosen; the options are those of `tiledask.matmul`. The ``programs`` of a
    row are what its ranks would do, explained like a training's: ``timeline``, ``memory``, rows,
    and ``program`` with its ``traffic`` and each rank's ``line_text``.

    ``explain(training)`` of what `tiledask.train` gave, or of the program of one
    (`tiledask.training_program`): where a step's seconds, bytes and memory go, instruction by
    instruction, on the devices of ``cluster`` (default "8xH100"), and what overlaps. ``recipe``:
    the widths of a program's numbers; a training knows its own. ``mesh``: of workers on which the
    program is to run, if they are on several hosts: which axes cross these, and what that costs; a
    training knows its own.
    """
    if isinstance(first, Trained):
        options = {"recipe": first.recipe} | options
        found = explain_program(first.program, measured=first.seconds_by_label(), **options)
        return replace(found, placed=first.placed)
    if isinstance(first, Program):
        mesh = options.pop("mesh", None)
        found = explain_program(first, **options)
        return found if mesh is None else replace(found, placed=said_on(mesh, first))
    if second is None:
        raise ConfigError(
            f"explain takes two sharded arrays, or what td.train or td.training_program gave; got "
            f"{type(first).__name__}"
        )
    return explain_product(first, second, **options)
