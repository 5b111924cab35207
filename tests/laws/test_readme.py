"""What the README names is there, and what it links to exists.

Commands: `make X` must be a target, `pip install` must name extras that exist; what begins with
`tiledask`, and its Python, tests/acceptance runs. A command this test does not know is an error
here, so that nothing in the README goes unchecked.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from oracles.fences import FENCE, PYTHON, SHELL, blocks
from oracles.finished import ROOT, finished

README = (ROOT / "README.md").read_text("utf-8")
DEADLINE = 240


def unmarked(text: str) -> int:
    """How many fenced blocks do not say what they are, and so would not be looked at."""
    return sum(not m["info"].strip() for m in FENCE.finditer(text))


def commands(text: str) -> list[list[str]]:
    """Every command of the shell blocks as a list of words; prompts and comments left out."""
    lines = []
    for block in blocks(text, SHELL):
        joined = block.replace("\\\n", " ")
        lines += [line.strip().removeprefix("$ ") for line in joined.splitlines()]
    simple = [part for line in lines for part in re.split(r"\s&&\s|;\s", line)]
    return [words for line in simple if (words := shlex.split(line, comments=True))]


def links(text: str) -> list[str]:
    """Relative targets of links and pictures, without their anchors."""
    prose = FENCE.sub("", text)
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", prose) + re.findall(r"src=[\"']([^\"']+)", prose)
    return [t.partition("#")[0] for t in targets if not re.match(r"[a-z]+:|#", t)]


# -- one function per command --------------------------------------------------------------------


def make(words: list[str]) -> str:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    asked = {word for word in words if "=" not in word}
    return f"the Makefile has no {sorted(asked - targets)}" if asked - targets else ""


def pip(words: list[str]) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        e for word in words for group in re.findall(r"\[(.+)\]", word) for e in group.split(",")
    ]
    unknown = sorted(set(asked) - set(project["optional-dependencies"]))
    return f"no extra {unknown}" if unknown else files(words)


def files(words: list[str]) -> str:
    named = [word for word in words if word.endswith((".yml", ".txt"))]
    missing = [name for name in named if not (ROOT / name).exists()]
    return f"no file {missing}" if missing else ""


def tiledask(words: list[str]) -> str:
    """Nothing here: tests/acceptance runs them all."""
    return "" if words else "tiledask takes a command"


def python(words: list[str]) -> str:
    if words[:1] != ["-m"] or len(words) < 2:
        return "only `python -m module` is checked"
    return run(
        [sys.executable, "-c", f"import importlib.util as u; assert u.find_spec({words[1]!r})"]
    )


def run(command: list[str]) -> str:
    try:
        environment = {**os.environ, "COLUMNS": "100"}
        done = finished(*command, timeout=DEADLINE, stdin=subprocess.DEVNULL, env=environment)
    except FileNotFoundError:
        return f"{command[0]} is not there"
    except subprocess.TimeoutExpired:
        return f"not done after {DEADLINE} s"
    return f"exit status {done.returncode}: {done.stderr[-2000:]}" if done.returncode else ""


KNOWN: dict[str, Callable[[list[str]], str]] = {
    "make": make,
    "pip": pip,
    "conda": files,
    "tiledask": tiledask,
    "python": python,
}
UNTRIED = {"pytest", "pre-commit", ".ci/run", "git", "cd", "source", "apt-get", "sudo"}


def complaint(words: list[str]) -> str:
    """What is wrong with a command of the README; empty if nothing."""
    name = words[0].removeprefix(".venv/bin/")
    if name in UNTRIED:
        return ""
    if name not in KNOWN:
        return f"{' '.join(words)!r}: nothing here knows how to check {name!r}"
    found = KNOWN[name](words[1:])
    return f"{' '.join(words)!r}: {found}" if found else ""


# -- the README ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("words", [pytest.param(w, id=" ".join(w)) for w in commands(README)])
def test_a_command_is_there(words):
    assert not complaint(words)


@pytest.mark.long
def test_what_it_names_is_there_once_tiledask_is_imported():
    said = set(re.findall(r"`[^`\n]*?\b(?:td|tiledask)\.([a-z][\w.]*\w)", README))
    names = sorted(name for name in said if not name.endswith((".csv", ".json")))
    assert {"report", "diagnose", "lab.dashboard.Recorder"} <= set(names)
    # what is in a submodule in a fork of its own: it may not be there because another was named;
    # packages of others need not be imported in each
    names.sort(key=lambda name: -name.count("."))
    code = f"""
import operator, os, tiledask
import bokeh.models, dask.array, distributed, matplotlib.figure, pandas
for name in {names}:
    child = os.fork() if "." in name else 0
    if not child:
        operator.attrgetter(name)(tiledask)
        if "." in name:
            os._exit(0)
    elif os.waitpid(child, 0)[1]:
        print(name)
"""
    assert run([sys.executable, "-c", code]) == ""


def test_every_block_says_its_language():
    assert unmarked(README) == 0, "write ```sh, ```python or ```text"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_to_files(page):
    text, here = (ROOT / page).read_text("utf-8"), (ROOT / page).parent
    assert [target for target in links(text) if not (here / target).exists()] == []
    called = re.findall(r"\[([\w.]+\.\w+)\]\(([^)#]+)", text)
    assert [pair for pair in called if pair[0] != Path(pair[1]).name] == []


# -- the checker ---------------------------------------------------------------------------------

SAMPLE = """# A
```sh
$ make tour     # about two minutes
make lab DASHBOARD_PORT=8900 && pip install \\
    --constraint constraints.txt -e .[gpu]
```
~~~python
x = 2
~~~
~~~python
assert x == 3, "from the README"
~~~
```
plain
```
[here](docs/none.md#top) ![p](README.md) [web](https://example.org) <img src="nowhere.png">
"""


def test_a_readme_is_taken_apart():
    assert commands(SAMPLE) == [
        ["make", "tour"],
        ["make", "lab", "DASHBOARD_PORT=8900"],
        ["pip", "install", "--constraint", "constraints.txt", "-e", ".[gpu]"],
    ]
    assert blocks(SAMPLE, PYTHON) == ["x = 2\n", 'assert x == 3, "from the README"\n']
    assert unmarked(SAMPLE) == 1
    assert links(SAMPLE) == ["docs/none.md", "README.md", "nowhere.png"]
    assert not [c for c in map(complaint, commands(SAMPLE)) if c]


@pytest.mark.long
def test_python_that_fails_is_found():
    source = "\n".join(blocks(SAMPLE, PYTHON))
    assert "from the README" in run([sys.executable, "-c", source])


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("make tuor", "the Makefile has no ['tuor']"),
        ("pip install -e .[lab,gpus]", "gpus"),
        ("pip install -c pins.txt -e .", "pins.txt"),
        ("conda env create -f env.yml", "env.yml"),
        ("curl https://example.org", "nothing here knows"),
        (".venv/bin/python -m tiledask.nowhere", "exit status 1"),
        ("python script.py", "only `python -m module`"),
    ],
)
def test_a_command_that_does_not_work_is_found(line, said):
    assert said in complaint(shlex.split(line))


@pytest.mark.long
def test_a_command_that_hangs_is_found(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "DEADLINE", 0.5)
    assert "not done after 0.5 s" in run([sys.executable, "-c", "import time; time.sleep(30)"])
