"""Ask a question of the course by its number or in words: the working, and the run behind it.

Answer         as people read it, in a terminal or a notebook, and as JSON
ask            td.ask(34, layers=12)
answered       `tiledask ask 34 --set layers=12`, list_all   `tiledask ask`
"""

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from shutil import get_terminal_size
from textwrap import fill
from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError, short
from tiledask.lab.check import Check, Comparison
from tiledask.lab.course import runs
from tiledask.lab.course.by_words import by_words
from tiledask.lab.course.index import taught
from tiledask.lab.course.question import Question
from tiledask.lab.course.table import QUESTIONS
from tiledask.lab.course.words import filled, lines_of, looked_up

__all__ = ["Answer", "answered", "ask", "list_all", "read_inputs"]

MOST_WORKERS = 4
"""Of a cluster that is started for a run; a cluster of your own may have more."""
WRAP: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
INDENT: dict[str, Any] = {"initial_indent": "  ", "subsequent_indent": "    "}


@dataclass(frozen=True, repr=False)
class Answer:
    """One question, answered for one choice of inputs."""

    question: Question
    inputs: Mapping[str, Any]
    title: str
    asked: str
    """The question, with the inputs in it."""
    answer: str
    """In a sentence or two, with its numbers."""
    working: list[str]
    values: Mapping[str, Any]
    """The results of the working by name."""
    run: Comparison | None
    """Predicted, simulated and measured."""
    not_run: str
    """Why there is no run; empty if there is one."""
    found: str = ""
    """Which question was taken, where it was asked in words."""

    @property
    def ok(self) -> bool:
        """Whether no claim of the run fails."""
        return self.run is None or self.run.ok

    def to_text(self, width: int = 100, explain: bool = False) -> str:
        """The answer first, then its working, no line of prose longer than ``width`` characters.

        explain
            Also what the inputs are, and where it is taught.
        """
        asks, inputs = self.question, self.inputs.items()
        parts = {
            self.found: [],
            f"{asks.number}. {self.title}": [self.asked],
            "Answer": [self.answer],
            "Working": self.working,
            "Not run": [self.not_run] * bool(self.not_run),
        }
        if explain:
            parts["Inputs"] = [f"{asks.typed({n: v})}: {asks.inputs[n].meaning}" for n, v in inputs]
            parts["Taught in"] = [
                f"nbs/{w['notebook']}: {w['section']}" for w in taught(asks.number)
            ]
        else:
            parts[f"Inputs: {asks.typed(self.inputs)} (--set, --explain)"] = []
        blocks = [
            "\n".join(
                [fill(head, width, **WRAP), *(fill(x, width, **WRAP, **INDENT) for x in lines)]
            )
            for head, lines in parts.items()
            if lines or head not in ("", "Not run")
        ]
        text = "\n\n".join(blocks)
        return f"{text}\n" + ("" if self.run is None else f"\n{self.run.to_text(width)}")

    def __repr__(self) -> str:
        return self.to_text()

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        same = ("title", "asked", "found", "answer", "working", "not_run")
        return {name: getattr(self, name) for name in same} | {
            "number": self.question.number,
            "inputs": dict(self.inputs),
            "values": dict(self.values),
            "run": None if self.run is None else self.run.to_dict(),
            "taught": taught(self.question.number),
        }


def ask(
    asked: int | str, /, *, cluster: Cluster | None = None, run: bool = True, **inputs: Any
) -> Answer:
    """Work out a question of the course, and run it.

    Parameters
    ----------
    asked
        Its number, or words such as "24 layers on 4 devices"; the Answer then says which
        question was taken.
    cluster
        Where it runs, or a Dask client of there. Default: workers that are started for it, and
        closed again; at most MOST_WORKERS of them, so that what takes more runs only on a cluster
        of your own.
    run
        False: arithmetic and simulation only.
    inputs
        The question's own; `tiledask ask 34 --explain` says which there are. Their values may be
        given as the text that one types: ``memory="24GB"``.

    Raises
    ------
    ConfigError
        For a number, words or an input that there is not.
    ValueError
        With the rule, for inputs that are impossible together.

    Examples
    --------
    >>> ask(34, layers=12, devices=3, run=False).values["sizes"]
    [4, 4, 4]
    >>> ask("24 layers on 4 devices", run=False).values["sizes"]
    [6, 6, 6, 6]
    """
    return answered(asked, inputs, cluster, run)


def answered(
    asked: int | str, inputs: Mapping[str, Any], cluster: Cluster | None = None, run: bool = True
) -> Answer:
    """The working of what is ``asked``, and the run where it can be."""
    number, found = asked, ""
    if isinstance(asked, str) and not asked.strip().isdecimal():
        number, in_words, found = by_words(asked)
        inputs = in_words | dict(inputs)
    if int(number) not in QUESTIONS:
        raise ConfigError(
            f"there is no question {number}; there are 1 to {max(QUESTIONS)}: `tiledask ask`"
        )
    it = QUESTIONS[int(number)]
    given = it.read(inputs)
    names, title, table = it.work(**given), it.words(it.title, given), None
    there = None if cluster is None else td.connect(cluster)
    size = given.get(it.workers, MOST_WORKERS)
    workers = len(size) if isinstance(size, list) else size
    not_run = _refusal(it, given, workers, there) if run else ""
    if run and not not_run:
        start = nullcontext(there) if there else td.start_cluster(workers=workers, quiet=True)
        with start as running:
            table = Comparison(f"{title}: run on workers", [*_claims(it, names, running)])
    return Answer(
        it,
        given,
        title,
        it.words(it.asked, given),
        filled(it.answer, names),
        lines_of(it.working, names),
        it.results(names),
        table,
        not_run,
        found,
    )


def _claims(asked: Question, names: Mapping[str, Any], cluster: Cluster) -> Iterator[Check]:
    """Of all runs of a question."""
    for name, *arguments in asked.runs:
        given = []
        for each in arguments:
            is_name = isinstance(each, str) and not each.startswith("'")
            given.append(looked_up(each, names) if is_name else each)
        words = [each.strip("'") if isinstance(each, str) else each for each in given]
        yield from getattr(runs, name)(cluster, *words)


def _refusal(
    asked: Question, given: Mapping[str, Any], workers: int, cluster: Cluster | None
) -> str:
    """Why it cannot run there, and where it could; empty if it can."""
    for name, each in asked.inputs.items():
        if isinstance(given[name], int | float) and given[name] > each.run:
            return f"a run takes {name} up to {each.shown(each.run)}"
    there = MOST_WORKERS if cluster is None else cluster.slots
    if workers <= there:
        return ""
    whose = "that are started for it" if cluster is None else "in the cluster"
    return (
        f"takes {workers} workers, of {there} {whose}; with more: td.ask({asked.number}, "
        f"cluster=td.start_cluster(workers={workers}), ...)"
    )


# -- the command -----------------------------------------------------------------------------------


def read_inputs(words: list[str]) -> dict[str, str]:
    """Inputs behind --set, each a word or several between commas; those of a list keep theirs.

    >>> read_inputs(["stages=8,microbatches=63", "forward=1,2,3"])
    {'stages': '8', 'microbatches': '63', 'forward': '1,2,3'}
    """
    found = {}
    for word in (part for each in words for part in re.split(r",\s*(?=[a-z_]+\s*=)", each)):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not name.isidentifier():
            raise ConfigError(
                f"--set takes inputs and values, as in --set layers=12 devices=3; got {short(word)}"
            )
        found[name] = value
    return found


def list_all() -> Generator[str, None, tuple[int, dict[str, Any]]]:
    """A line for each question; (0, the same for JSON)."""
    yield "tiledask ask 34, or in words: tiledask ask 24 layers on 4 devices"
    facts = {}
    for number, each in QUESTIONS.items():
        title, asked = each.words(each.title), each.words(each.asked)
        yield fill(f"{number:4}  {title}", get_terminal_size().columns, subsequent_indent=" " * 6)
        inputs = {n: {"default": i.default, "meaning": i.meaning} for n, i in each.inputs.items()}
        facts[str(number)] = {"title": title, "asked": asked, "inputs": inputs}
    return 0, {"questions": facts}
