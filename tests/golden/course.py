"""Golden values of what people ask, answer and type: questions, judged answers, commands' JSON."""

import ast
import json
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

from oracles.tasks import ANSWERS, FOUND, task

import tiledask as td
from golden.store import MACHINE, GoldenSet, digest, picked
from tiledask.cli import main


def others() -> dict[int, dict[str, Any]]:
    """Question -> its inputs, each with another value than the usual one."""
    found: dict[int, dict[str, Any]] = {}
    for given, _ in [row for one in SETS[:2] for row in one.stored().values()]:
        found.setdefault(given["question"], {}).update(given["inputs"])
    return found


def values(given: dict[str, Any]) -> Any:
    found = dict(td.ask(given["question"], run=False, **given["inputs"]).values)
    if "fault" in given["inputs"]:  # by how far losses of half precision went apart
        found[MACHINE] = [gap for _, gap in found["ranked"]]
        found["ranked"] = [name for name, _ in found["ranked"]]
    return found


def words(given: dict[str, Any]) -> Any:
    """What is said of a question with its usual inputs: the numbers in it are nowhere else."""
    return picked(td.ask(given["question"], run=False), "asked answer working")


def answer_of(given: dict[str, Any]) -> Any:
    """The answer of a row: a right one, which is found, one of `answers`, or what is written."""
    name, answer = given["task"], given["answer"]
    if answer == "right":
        return FOUND[name](task(name))
    return ANSWERS[name][answer] if isinstance(answer, int) else ast.literal_eval(answer)


def result(given: dict[str, Any]) -> Any:
    """Whether it is legal, its stars, and of every target what is reached, wanted and best."""
    it = task(given["task"]).result(answer_of(given))
    targets = [[t.got, t.wanted, t.best] for t in it.targets]
    return {"solved": bool(it), "targets": targets, **picked(it, "legal stars")}


def level(given: dict[str, Any]) -> Any:
    """The answer that the working ends in, which the same level judges as right."""
    it = td.tasks.idle_level(given["level"], given["seed"])
    answer = it.lines[-1].removeprefix("Answer: ")
    return {"answer": answer, "solved": bool(it.result(answer))}


def keys(given: dict[str, Any], cluster: Any = None) -> Any:
    """The exit code, and every path of keys in what stands on standard output."""
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(StringIO()):
        try:
            code = main([*shlex.split(given["command"]), "--json"])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    try:
        facts = json.loads(out.getvalue())
    except json.JSONDecodeError:
        return {"code": code, "json": False}
    paths = sorted({*paths_of(facts)})
    return {"code": code, "keys": paths if len(paths) <= 60 else [len(paths), digest(paths)]}


def paths_of(value: Any, at: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from paths_of(each, f"{at}.{key}" if at else key)
    elif isinstance(value, list):
        for each in value:
            yield from paths_of(each, f"{at}[]")
    else:
        yield at


SETS = (
    GoldenSet("questions", values),
    GoldenSet("questions_long", values, "slow"),
    GoldenSet("words", words),
    GoldenSet("judged", result),
    GoldenSet("judged_long", result, "slow"),
    GoldenSet("ladder", level),
    GoldenSet("json_keys", keys),
    GoldenSet("json_keys_on_workers", keys, "cluster"),
)
