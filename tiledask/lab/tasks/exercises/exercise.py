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
    is_answer: Callable[[Any], bool],
    judge: Callable[[Any], Sequence[Target]],
    **more: Any,
) -> AnyTask:
    """The exercise whose words the file has under ``name``; its stars are saved under the title.

    ``more``: fields of a JudgedTask.
    """
    words = {**shipped_json("exercises.json")[name]}
    del words["module"]
    words["hints"] = tuple(words["hints"])

    def judged(answer: Any) -> Sequence[Target]:
        if not is_answer(answer):
            raise ConfigError(f"an answer is {words['form']}; got {short(answer)}")
        return judge(answer)

    return kind(name=words["title"], judge=judged, **words, **more)


def none_wrong(name: str, wrong: Sequence[str], count: int | None = None) -> Target:
    """The target that nothing is wrong: how much is, and in words what is, worst first."""
    return Target(name, 0, len(wrong) if count is None else count, 0, why="; ".join(wrong))
