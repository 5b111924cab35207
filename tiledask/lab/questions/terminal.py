"""What `tiledask ask` prints: all questions and premises by name, an answer, a premise's claims."""

from typing import Any

from rich.console import Console

import tiledask as td
from tiledask.lab.questions.answer import Answer
from tiledask.lab.questions.table import QUESTIONS
from tiledask.lab.table import say
from tiledask.plan.choosing.question_check import Critique, premises

__all__ = ["list_all", "show_answer", "show_premise"]


def list_all(console: Console) -> tuple[int, dict[str, Any]]:
    """A line for each question and for each premise; (0, the same for JSON)."""
    say(console, "", bold="Questions, such as: tiledask ask 34 --set layers=12 devices=3")
    for number, each in QUESTIONS.items():
        say(console, f"{number:4}  {each.title}")
    say(console, "", bold="Premises, such as: tiledask ask hardware-refresh")
    critiques = {name: td.check_premise(name) for name in premises()}
    for name, critique in critiques.items():
        failed = sum(finding.holds is False for finding in critique.findings)
        say(console, f": {critique.question}", bold=name)
        say(console, f"    {failed} of {len(critique.findings)} claims fail")
    return 0, {
        "questions": {str(number): _facts(number) for number in QUESTIONS},
        "premises": {name: critique.to_dict() for name, critique in critiques.items()},
    }


def _facts(number: int) -> dict[str, Any]:
    each = QUESTIONS[number]
    inputs = {name: {"default": i.default, "meaning": i.meaning} for name, i in each.inputs.items()}
    return {"title": each.title, "asked": each.asked, "inputs": inputs}


def show_answer(answer: Answer, console: Console) -> None:
    """The answer as it is read, its table as wide as the terminal."""
    say(console, answer.to_text(console.width).rstrip())


def show_premise(critique: Critique, console: Console) -> None:
    """Every claim with its verdict, why, and the way out."""
    say(console, f"\n{critique.convention}", bold=critique.question)
    for finding in critique.findings:
        say(console, f": {finding.claim}.", bold=finding.verdict)
        for line in filter(None, (finding.why, finding.way_out)):
            say(console, f"    {line}")
