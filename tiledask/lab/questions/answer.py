"""An answer as people read it, in a terminal or a notebook, and as JSON."""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.puzzles.fields import size
from tiledask.lab.questions.index import Taught
from tiledask.lab.questions.question import CourseQuestion, WorkedAnswer
from tiledask.lab.table import Comparison
from tiledask.plan import html
from tiledask.plan.choosing.question_check import Critique
from tiledask.plan.units import format_bytes, parse_bytes

__all__ = ["Answer"]


@dataclass(frozen=True, repr=False)
class Answer:
    """One question, answered for one choice of inputs."""

    question: CourseQuestion
    inputs: Mapping[str, Any]
    premise: Critique | None
    """What the question takes for granted, checked; None if nothing needs to be."""
    worked: WorkedAnswer
    run: Comparison | None
    """Predicted, simulated and measured."""
    not_run: str
    """Why there is no run; empty if there is one."""
    taught: tuple[Taught, ...]
    """The sections of the walkthroughs that teach it."""

    @property
    def values(self) -> Mapping[str, Any]:
        """The results of the working by name."""
        return self.worked.values

    @property
    def ok(self) -> bool:
        """Whether no claim of the run fails."""
        return self.run is None or self.run.ok

    def figure(self) -> Figure:
        """The answer as a picture; ConfigError if it has none."""
        if self.worked.figure is None:
            raise ConfigError(f"the answer to question {self.question.number} has no figure")
        return self.worked.figure()

    def to_text(self, width: int = 100) -> str:
        """The whole answer as text, no line of prose longer than ``width`` characters."""
        q, parts = self.question, []
        parts.append([*textwrap.wrap(f"{q.number}. {q.title}", width), *_wrapped(q.asked, width)])
        said = [f"{n} = {_shown(v)} ({q.inputs[n].meaning})" for n, v in self._sized()]
        parts.append(["Inputs", *(line for each in said for line in _wrapped(each, width, 4))])
        if self.premise is not None:
            verdicts = [line for f in self.premise.findings for line in _wrapped(str(f), width, 4)]
            convention = _wrapped(self.premise.convention, width, 4)
            parts.append(["What it takes for granted", *convention, *verdicts])
        lines = [line for each in self.worked.lines for line in _wrapped(each, width, 4)]
        parts.append(["Working", *lines])
        parts.append(["Answer", *_wrapped(self.worked.answer, width)])
        if self.run is None:
            parts.append(["Run", *_wrapped(self.not_run, width)])
        else:
            parts.append(self.run.to_text(width).splitlines())
        where = [line for each in self.taught for line in _wrapped(str(each), width, 4)]
        parts.append(["Taught in", *where])
        return "\n\n".join("\n".join(part) for part in parts) + "\n"

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        q, worked = self.question, self.worked
        rows = [(n, _shown(v), q.inputs[n].meaning) for n, v in self._sized()]
        lines = "".join(
            f"<pre>{html.words(chr(10).join(group))}</pre>"
            if drawn
            else "".join(f"<p>{html.words(line)}</p>" for line in group)
            for drawn, group in groupby(worked.lines, _drawn)
        )
        taught = "; ".join(map(str, self.taught))
        run = f"<p>{html.words(self.not_run)}</p>" if self.run is None else self.run._repr_html_()
        return (
            f"<p><b>{q.number}. {html.words(q.title)}</b><br>{html.words(q.asked)}</p>"
            f"{html.table((), rows, first='th', style={2: 'text-align:left'})}"
            f"{self.premise._repr_html_() if self.premise is not None else ''}"
            f"<div style='margin-left:2em'>{lines}</div>"
            f"<p><b>{html.words(worked.answer)}</b></p>{run}"
            f"<p>Taught in {html.words(taught)}</p>"
        )

    def _sized(self) -> Iterator[tuple[str, Any]]:
        """(name, value) of each input, bytes with their unit where no digit goes by that."""
        for name, value in self.inputs.items():
            text = format_bytes(value) if self.question.inputs[name].read is size else ""
            yield name, text.replace(" ", "") if text and parse_bytes(text) == value else value

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {
            "number": self.question.number,
            "title": self.question.title,
            "asked": self.question.asked,
            "inputs": dict(self.inputs),
            "premise": None if self.premise is None else self.premise.to_dict(),
            "answer": self.worked.answer,
            "working": list(self.worked.lines),
            "values": dict(self.worked.values),
            "run": None if self.run is None else self.run.to_dict(),
            "not_run": self.not_run,
            "taught": [each._asdict() for each in self.taught],
        }


def _drawn(line: str) -> bool:
    """Whether a line is part of a drawing in letters, where spaces count."""
    return "  " in line


def _wrapped(words: str, width: int, hang: int = 2) -> list[str]:
    """Lines that begin two columns in, those that go on ``hang`` columns in."""
    if _drawn(words) or len(words) + 2 <= width:
        return [f"  {words}"]
    return textwrap.wrap(
        words,
        width,
        initial_indent="  ",
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _shown(value: Any) -> str:
    """As it can be typed behind --set."""
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
