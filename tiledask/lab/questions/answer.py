"""An answer as people read it, in a terminal or a notebook, and as JSON."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.questions.index import Taught
from tiledask.lab.questions.question import Question, WorkedAnswer
from tiledask.lab.table import Comparison
from tiledask.plan import html

__all__ = ["Answer"]


@dataclass(frozen=True, repr=False)
class Answer:
    """One question, answered for one choice of inputs."""

    question: Question
    inputs: Mapping[str, Any]
    worked: WorkedAnswer
    run: Comparison | None
    """Predicted, simulated and measured."""
    not_run: str
    """Why there is no run; empty if there is one."""
    taught: tuple[Taught, ...]
    """The sections of the walkthroughs that teach it."""
    found: str = ""
    """Which question was taken, where it was asked in words."""

    @property
    def values(self) -> Mapping[str, Any]:
        """The results of the working by name."""
        return self.worked.values

    @property
    def ok(self) -> bool:
        """Whether no claim of the run fails."""
        return self.run is None or self.run.ok

    @property
    def title(self) -> str:
        return self.question.words(self.question.title, self.inputs)

    @property
    def asked(self) -> str:
        """The question, with the inputs in it."""
        return self.question.words(self.question.asked, self.inputs)

    def figure(self) -> Figure:
        """The answer as a picture; ConfigError if it has none."""
        if self.worked.figure is None:
            raise ConfigError(f"the answer to question {self.question.number} has no figure")
        return self.worked.figure()

    def to_text(self, width: int = 100, explain: bool = False) -> str:
        """The answer first, then its working, no line of prose longer than ``width`` characters.

        explain
            Also what lies behind it: what the inputs are, more lines, where it is taught.
        """
        parts = [_wrapped(self.found, width, 0, "")] if self.found else []
        title = textwrap.wrap(f"{self.question.number}. {self.title}", width)
        parts.append([*title, *_wrapped(self.asked, width)])
        parts.append(["Answer", *_wrapped(self.worked.answer, width)])
        parts.append(["Working", *_all(self.worked.lines, width)])
        if explain and self.worked.more:
            parts.append(["Behind it", *_all(self.worked.more, width)])
        if self.run is not None:
            parts.append(self.run.to_text(width).splitlines())
        elif self.not_run:
            parts.append(["Not run", *_wrapped(self.not_run, width)])
        if explain:
            meanings = [f"{name}={value}: {what}" for name, value, what in self._inputs()]
            parts.append(["Inputs", *_all(meanings, width)])
            parts.append(["Taught in", *_all(map(str, self.taught), width)])
        else:
            inputs = f"Inputs: {self.question.typed(self.inputs)}"
            parts.append(_wrapped(f"{inputs} (--set, --explain)", width, 2, ""))
        return "\n\n".join("\n".join(part) for part in parts) + "\n"

    def _inputs(self) -> list[tuple[str, str, str]]:
        """(name, value as it is typed, meaning) of each input."""
        kinds = self.question.inputs
        return [(n, kinds[n].typed(v), kinds[n].meaning) for n, v in self.inputs.items()]

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        worked = self.worked
        lines = "".join(
            f"<pre>{html.words(chr(10).join(group))}</pre>"
            if drawn
            else "".join(f"<p>{html.words(line)}</p>" for line in group)
            for drawn, group in groupby((*worked.lines, *worked.more), _drawn)
        )
        taught = "; ".join(map(str, self.taught))
        run = f"<p>{html.words(self.not_run)}</p>" if self.run is None else self.run._repr_html_()
        return (
            f"<p><b>{self.question.number}. {html.words(self.title)}</b><br>"
            f"{html.words(self.asked)}</p><p><b>{html.words(worked.answer)}</b></p>"
            f"<div style='margin-left:2em'>{lines}</div>{run}"
            f"{html.table((), self._inputs(), first='th', style={2: 'text-align:left'})}"
            f"<p>Taught in {html.words(taught)}</p>"
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {
            "number": self.question.number,
            "title": self.title,
            "asked": self.asked,
            "found": self.found,
            "inputs": dict(self.inputs),
            "answer": self.worked.answer,
            "working": [*self.worked.lines, *self.worked.more],
            "values": dict(self.worked.values),
            "run": None if self.run is None else self.run.to_dict(),
            "not_run": self.not_run,
            "taught": [each._asdict() for each in self.taught],
        }


def _drawn(line: str) -> bool:
    """Whether a line is part of a drawing in letters, where spaces count."""
    return "  " in line


def _all(lines: Any, width: int) -> list[str]:
    return [part for line in lines for part in _wrapped(line, width, 4)]


def _wrapped(words: str, width: int, hang: int = 2, indent: str = "  ") -> list[str]:
    """Lines that begin behind ``indent``, those that go on ``hang`` columns in."""
    if _drawn(words) or len(words) + len(indent) <= width:
        return [f"{indent}{words}"]
    return textwrap.wrap(
        words,
        width,
        initial_indent=indent,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
