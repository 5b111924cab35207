"""Every command and line of Python of the README and the wings' pages, and every example of --help.

Commands run in a folder of their own, piped, at 80 columns; those of a page with --json, too.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from oracles.fences import PYTHON, SHELL, blocks
from oracles.finished import ROOT, python

from tiledask.cli import main

SCRIPT = str(Path(sys.executable).parent / "tiledask")
WINGS = ("tiledask/plan", "tiledask/tile", "tiledask/distributed", "nbs")
PAGES = ("README.md", *(f"{wing}/README.md" for wing in WINGS))
TEXTS = {page: (ROOT / page).read_text("utf-8") for page in PAGES}
PROGRAMS = {"tour", "bench", "notebooks"}
"""What takes minutes, or speaks to other programs: it has tests of its own, and its --help here."""


def commands(text: str) -> list[str]:
    """The lines that begin with tiledask, without what a # says of them."""
    lines = text.replace("\\\n", " ").replace(" && ", "\n").splitlines()
    typed = [line.strip().removeprefix("$ ") for line in lines]
    return [shlex.join(shlex.split(x, comments=True)) for x in typed if x.startswith("tiledask ")]


def needs_workers(command: str) -> bool:
    words = command.split()
    asks = words[1] == "ask" and len(words) > 2 and "--no-run" not in words
    return asks or words[1] == "matmul" or "--run" in words


def run_as_typed(command: str, typed) -> int:
    words = command.removeprefix("tiledask ")
    if words.split()[0] in PROGRAMS:
        return typed(f"{words.split()[0]} --help").code
    shown, facts = typed(words), typed(f"{words} --json")
    assert shown.code == facts.code in (0, 1), shown.err + facts.err
    assert not (shown.code and shown.err), shown.err  # 1 is an answer, and no complaint
    assert shown.out.strip()
    json.loads(facts.out)  # and nothing beside it
    return shown.code


# -- the pages -------------------------------------------------------------------------------------

SHELLS = ["\n".join(blocks(text, SHELL)) for text in TEXTS.values()]
TYPED = list(dict.fromkeys(each for shell in SHELLS for each in commands(shell)))


@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=[pytest.mark.cluster] * needs_workers(each)) for each in TYPED],
)
def test_a_command_of_a_page_runs(command, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEDASK_PROGRESS", str(tmp_path))
    # an answer is there to be judged, and not to be read off: 1 says that it does not solve it
    assert run_as_typed(command, typed) == ("puzzle" in command and "--answer" in command)


def test_the_readme_shows_the_commands_that_matter():
    first = {"fit", "plan", "partition", "idle", "ask", "puzzle", "matmul"}
    assert first <= {each.split()[1] for each in commands(SHELLS[0])}
    assert len(TYPED) > 30
    assert all(len(EXAMPLES[name]) >= 2 for name in first - {"puzzle"})


SHOWN = [block.partition("\n") for text in TEXTS.values() for block in blocks(text, ("text",))]
SHOWN = {first.removeprefix("$ tiledask "): out for first, _, out in SHOWN if first[:2] == "$ "}


@pytest.mark.parametrize("command", SHOWN)
def test_what_a_page_shows_is_what_is_printed(command, typed):
    shown, dots, _ = " ".join(SHOWN[command].split()).partition(" ...")
    printed = typed(command).words
    assert printed == shown or (dots and printed.startswith(shown))


@pytest.mark.parametrize("program", [[sys.executable, "-m", "tiledask"], [SCRIPT]])
def test_it_runs_as_a_program_and_its_json_can_be_piped(program):
    words = ["partition", "24", "4", "--json"]
    done = subprocess.run([*program, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sizes"] == [6, 6, 6, 6]


@pytest.mark.cluster
@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    source = [f"print('-- block {i} --')\n{b}" for i, b in enumerate(blocks(TEXTS[page], PYTHON))]
    script = tmp_path / "page.py"
    script.write_text("\n".join(source))
    # the README as a script, which its workers import; the others as at a prompt
    words = [script] if page == "README.md" else ["-c", script.read_text()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    done = python(*words, cwd=tmp_path, env=environment, timeout=290)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(re.findall(r"-- block \d+ --\n", done.stdout)) >= len(source)
    # what it compares is equal, and no line of it says otherwise
    lines = done.stdout.splitlines()
    assert not [line for line in lines if line.split()[:1] == ["False"]]
    if page in ("README.md", "tiledask/distributed/README.md"):
        assert "True" in {word for line in lines for word in line.split()}
        assert "512.0" in lines  # an element of a product of ones
    if page == "tiledask/distributed/README.md":
        assert any(" 0 bytes between workers" in line for line in lines)


# -- --help ----------------------------------------------------------------------------------------


def help_of(*words: str) -> str:
    said = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit):
            main([*words, "--help"])
    return said.getvalue()


NAMES = re.search(r"\{([a-z,]+)\}", help_of())[1].split(",")
EXAMPLES = {name: commands(help_of(name).partition("\n\n")[2]) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_the_screen(name, typed):
    shown = typed(f"{name} --help")
    assert shown.code == 0
    # an example is one line, however long: it is there to be copied
    lines = [line for line in shown.out.splitlines() if "tiledask " not in line]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        pytest.param(name, w, id=f"{name}{' on workers' * w}", marks=[pytest.mark.cluster] * w)
        for name in NAMES
        for w in (False, True)
        if any(needs_workers(each) is w for each in EXAMPLES[name])
    ],
)
def test_the_examples_of_a_command_run_one_after_the_other(
    name, workers, typed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # an example may read what the one before has written
    for command in EXAMPLES[name]:
        if needs_workers(command) is workers and command.split()[1] not in PROGRAMS:
            shown = typed(command.removeprefix("tiledask "))
            assert shown.code in (0, 1), shown.err
