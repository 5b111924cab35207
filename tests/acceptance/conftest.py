"""Run commands as people type them: their words, exit code, and the JSON of the same question."""

import json
import shlex
from dataclasses import dataclass
from typing import Any

import pytest

from tiledask.cli import main


@dataclass(frozen=True)
class Ran:
    """What one command did: its exit code, standard output and standard error."""

    typed: str
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The output with all white space as single spaces, so that wrapping does not matter."""
        return " ".join(self.out.split())

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def typed(capsys, monkeypatch):
    """``typed("fit gpt2 1xT4")`` runs it in this process, piped, at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")

    def run(command: str) -> Ran:
        capsys.readouterr()
        try:
            code = main(shlex.split(command))
        except SystemExit as stopped:  # --help, or words that argparse refuses
            code = int(stopped.code or 0)
        out, err = capsys.readouterr()
        return Ran(command, code, out, err)

    return run


@pytest.fixture
def answers(typed):
    """``answers("fit gpt2 1xT4")`` is (Ran, its JSON): run twice, with the same exit code."""

    def run(command: str) -> tuple[Ran, Any]:
        shown, facts = typed(command), typed(f"{command} --json")
        assert shown.code == facts.code, facts.err
        assert facts.code != 2, facts.err
        assert "Traceback" not in shown.err + facts.err
        return shown, facts.json

    return run
