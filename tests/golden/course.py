"""Golden values of what people ask, answer and type: questions, judged answers, commands' JSON."""

import ast
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import tiledask as td
from golden.store import GoldenSet, digest

# -- the one place that looks inside ---------------------------------------------------------------


def inputs_of_questions() -> dict[int, dict[str, Any]]:
    """Question -> its inputs, each with another value than the usual one."""
    from tiledask.lab.questions.table import QUESTIONS

    return {
        number: {name: each.other for name, each in asked.inputs.items()}
        for number, asked in QUESTIONS.items()
    }


def answers() -> dict[str, list[tuple]]:
    """Task -> (answer, ...) of the table of answers to all tasks."""
    sys.path.append(str(Path(__file__).parents[1] / "lab" / "judging"))
    from answers import ANSWERS

    return ANSWERS


def task(name: str) -> Any:
    from oracles.tasks import task

    return task(name)


def found(name: str) -> Any:
    """An answer that meets every target."""
    from oracles.tasks import FOUND

    return FOUND[name](task(name))


def on_workers() -> tuple[str, ...]:
    from oracles.tasks import ON_WORKERS

    return tuple(ON_WORKERS)


def worked(level: Any) -> str:
    """The answer that the working of a level ends in."""
    return level.lines[-1].removeprefix("Answer: ")


def main(words: list[str]) -> int:
    """The command line."""
    from tiledask.cli import main

    return main(words)


# -- questions -------------------------------------------------------------------------------------

SLOW = (10, 14, 16, 17, 19, 20, 23, 37)
"""Questions that take a second or more with all their inputs."""
SLOWEST = 37
"""It takes that long with the usual ones."""


def asked(slow: bool) -> dict[str, Any]:
    """The usual values of all, and each input changed; of those that take long apart."""
    made: dict[str, Any] = {}
    for number, inputs in inputs_of_questions().items():
        if slow == (number == SLOWEST):
            made[f"{number}"] = {"question": number, "inputs": {}}
        if slow == (number in SLOW):
            for name, other in inputs.items():
                made[f"{number} {name}"] = {"question": number, "inputs": {name: other}}
    return made


def values(given: dict[str, Any]) -> Any:
    return dict(td.ask(given["question"], run=False, **given["inputs"]).values)


# -- judged answers --------------------------------------------------------------------------------


LONG = [
    "fewest_gpus",
    "scale_rule",
    "faulty_run",
    "until_layerwise_moves_more",
    "five-percent-idle",
    "hybrid_lenet",
    "where-the-stages-go",
    "fewest_sums",
    "step_traffic",
]
"""Tasks that take long to judge."""


def judged(slow: bool) -> dict[str, Any]:
    """Every answer of the table, as Python writes it, or its place in the table; and a right one of
    each task, which is found and not typed."""
    made = {}
    for name, rows in answers().items():
        if name in on_workers():
            continue
        if slow:
            made[f"{name} right"] = {"task": name, "answer": "right"}
        if slow != (name in LONG):
            continue
        for n, (answer, *_) in enumerate(rows):
            plain = _is_plain(answer)
            made[f"{name} {n}"] = {"task": name, "answer": repr(answer) if plain else n}
    return made


def _is_plain(answer: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(answer)) == answer)
    except (ValueError, SyntaxError, TypeError):
        return False


def result(given: dict[str, Any]) -> Any:
    """Whether it is legal, its stars, and of every target what is reached, wanted and best."""
    name, answer = given["task"], given["answer"]
    if answer == "right":
        what = found(name)
    else:
        what = answers()[name][answer][0] if isinstance(answer, int) else ast.literal_eval(answer)
    it = task(name).result(what)
    return {
        "solved": bool(it),
        "legal": it.legal,
        "stars": it.stars,
        "targets": [[t.got, t.wanted, t.best] for t in it.targets],
    }


# -- the ladder of idle time -----------------------------------------------------------------------


def levels() -> dict[str, Any]:
    return {
        f"{n} of {seed}": {"level": n, "seed": seed} for n in range(1, 13) for seed in (0, 1, 7)
    }


def level(given: dict[str, Any]) -> Any:
    """The answer that the working ends in, which the same level judges as right."""
    it = td.tasks.idle_level(given["level"], given["seed"])
    answer = worked(it)
    return {"answer": answer, "solved": bool(it.result(answer))}


# -- what commands print as JSON -------------------------------------------------------------------

COMMANDS = (
    "list models", "list hardware", "list recipes", "list schedules",
    "fit gpt-200b 160xA100-40GB --dp 160 --zero 3 --recompute full",
    "fit llama-2-7b 8xA100-80GB --dp 2 --tp 4 --zero 1",
    "fit llama-2-13b 16xA10 --tp 4 --pp 4 --microbatches 8 --critique",
    "fit gpt2 1xT4 --recipe lora",
    "plan llama-2-7b 8xA100-80GB 16",
    "ask 14 --no-run", "ask 21 --no-run --set microbatches=25", "ask 34 --no-run",
    "ask", "ask 7 --no-run",
    "partition 24 4", "partition 24 4 --judge '1-7 | 8-12 | 13-18 | 19-24'",
    "partition 1,1,2,4,1,1 3",
    "idle 1f1b 4 8", "idle gpipe 4 8", "idle zb-h1 4 8 --latency 0.1",
    "puzzle", "puzzle 24-on-4", "puzzle 24-on-4 --answer '6 6 6 6'",
    "fit 4096xNothing", "puzzle 24-on-5", "ask 99",
)  # fmt: skip


def typed() -> dict[str, Any]:
    return {command: {"command": command} for command in COMMANDS}


def typed_on_workers() -> dict[str, Any]:
    return {command: {"command": command} for command in ("matmul 256", "ask 34")}


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
    GoldenSet("questions", values, lambda: asked(False)),
    GoldenSet("questions_long", values, lambda: asked(True), "slow"),
    GoldenSet("judged", result, lambda: judged(False)),
    GoldenSet("judged_long", result, lambda: judged(True), "slow"),
    GoldenSet("ladder", level, levels),
    GoldenSet("json_keys", keys, typed),
    GoldenSet("json_keys_on_workers", keys, typed_on_workers, "cluster"),
)
