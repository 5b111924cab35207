"""An exercise: a judge of answers, with its words in data/exercises.json."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tiledask.errors import ConfigError, short
from tiledask.lab.tasks.result import Target
from tiledask.lab.tasks.task import JudgedTask
from tiledask.plan.data import shipped_json

__all__ = ["exercise", "none_wrong"]

AnyTask = TypeVar("AnyTask", bound=JudgedTask)


def exercise(
    name: str,
    kind: type[AnyTask],
    read: Callable[[Any], Any],
    judge: Callable[[Any], Sequence[Target]],
    **more: Any,
) -> AnyTask:
    """The exercise whose words the file has under ``name``; its stars are saved under the title.

    ``read`` gives an answer as ``judge`` takes it; None for what is none.
    ``more``: fields of a JudgedTask.
    """
    words = shipped_json("exercises.json")[name]

    def judged(answer: Any) -> Sequence[Target]:
        found = read(answer)
        if found is None:
            raise ConfigError(f"an answer is {words['form']}; got {short(answer)}")
        return judge(found)

    return kind(
        name=words["title"],
        title=words["title"],
        question=words["question"],
        form=words["form"],
        hints=tuple(words["hints"]),
        judge=judged,
        **more,
    )


def none_wrong(name: str, wrong: Sequence[str], count: int | None = None) -> Target:
    """The target that nothing is wrong: how much is, and in words what is, worst first."""
    return Target(name, 0, len(wrong) if count is None else count, 0, why="; ".join(wrong))
