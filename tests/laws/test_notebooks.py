"""The notebook files keep their shape; nbval runs them and compares the facts in them.

A cell whose output is a fact carries the tags `nbval-check-output` and `keep_output`; all other
outputs are stripped. An exercise is five cells in a row, each with its tag:

    task       what to do, with every target as a number           (markdown)
    answer     `answer = None`: not attempted                      (code)
    draw       a picture of the answer                             (code)
    check      a verdict on it, quiet if not attempted             (code)
    solution   collapsed; raises unless every target is met        (code)

A prediction is a question, the field, what is run, and the row beside what came:

    **Predict** how many bytes move.                       (markdown, with no number in bold)
    guess = td.predict("bytes moved", unit="B")            (code; the field)
    ...                                                    (code; what is run)
    guess.beside(formula=..., measured=...)                (code, collapsed: it holds the formula)

The arithmetic follows in a folded cell of Markdown, and a notebook ends with the score.

Holds `tiledask.lab.learner.copies`.
"""

import ast
import contextlib
import copy
import io
import json
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from unittest import mock

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from oracles.finished import ROOT, finished, python

import tiledask as td
from tiledask.lab.exercises.planning.layer_too_large import STRATEGIES
from tiledask.lab.learner.contents import write_contents
from tiledask.lab.learner.copies import copy_walkthroughs, learners, refresh
from tiledask.plan.collectives.algorithms import default
from tiledask.plan.inputs.hardware import load_device

NOTEBOOKS = sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))
CHECKED, KEPT = "nbval-check-output", "keep_output"
EXERCISE = ("task", "answer", "draw", "check", "solution")
SOLUTION = "# A solution.\n"
SOLVED = SOLUTION + "b = 3\nexercise.result(b).require()"
ROW = "# Yours beside what came.\n"
LINES = 10
"""Lines of code in a cell, blank ones not counted."""
WIDTH = 68
"""Characters of a line of code."""
PRIVATE = {
    "a path of this machine": r"(?<![\w.:/])/(?:home|root|tmp|Users|work|var|usr|opt|mnt)/",
    "a path of this machine ": r"\b[A-Z]:\\",
    "an address": r"\b(?:tcp|tls|ucx|inproc|https?)://|\b127\.0\.0\.1\b|\blocalhost:\d",
    "an object's address": r"\b0x[0-9a-f]{6,}",
}
OPENING = {word: rf"\byou(?:['’]ll|\s+will)?\s+{word}\b" for word in ("do", "learn", "need")}

Cell = nbformat.NotebookNode


# -- the rules, each a generator of what is wrong ------------------------------------------------


def faults(notebook: nbformat.NotebookNode) -> list[str]:
    """Everything that is wrong with ``notebook``, a sentence each, beginning with the cell."""
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        return [f"not a valid notebook: {error.message}"]
    looks = (opening, order, short_cells, public_names, outputs, checked_outputs)
    rules = (*looks, exercises, needs_no_solution, predictions, closing)
    return [fault for rule in rules for fault in rule(notebook.cells)]


def tags(cell: Cell) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def code(cells: list[Cell]) -> Iterator[tuple[int, Cell]]:
    return ((i, c) for i, c in enumerate(cells) if c.cell_type == "code" and c.source.strip())


def opening(cells: list[Cell]) -> Iterator[str]:
    first = cells[0] if cells else None
    if first is None or first.cell_type != "markdown" or not first.source.startswith("# "):
        yield "cell 0: begin with a markdown cell whose first line is a title: '# ...'"
        return
    for word, pattern in OPENING.items():
        if not re.search(pattern, first.source, re.IGNORECASE):
            yield f'cell 0: say what "you\'ll {word}" (or "you will {word}", "you {word}")'


def order(cells: list[Cell]) -> Iterator[str]:
    for expected, (i, cell) in enumerate(code(cells), 1):
        if cell.execution_count != expected:
            ran = f"cell {i}: execution count {cell.execution_count}, expected {expected}"
            yield f"{ran}: restart, run all, save (and strip with --keep-count)"


def short_cells(cells: list[Cell]) -> Iterator[str]:
    for i, cell in code(cells):
        lines = sum(bool(line.strip()) for line in cell.source.splitlines())
        if lines > LINES:
            yield f"cell {i}: {lines} lines of code, at most {LINES}; move them into the package"
        for line in cell.source.splitlines():
            if len(line) > WIDTH:
                yield f"cell {i}: {len(line)} columns, at most {WIDTH}: {line}"


def public_names(cells: list[Cell]) -> Iterator[str]:
    for i, cell in code(cells):
        for deep in re.findall(r"^\s*((?:from|import)\s+tiledask\b.*)", cell.source, re.MULTILINE):
            if deep != "import tiledask as td":
                yield f"cell {i}: {deep!r}: a name that a reader needs is one of td's"


def outputs(cells: list[Cell]) -> Iterator[str]:
    for i, cell in enumerate(cells):
        has = tags(cell)
        if (CHECKED in has) != (KEPT in has):
            yield f"cell {i}: the tags {CHECKED} and {KEPT} go together, has {sorted(has)}"
        if has & {"nbval-skip", "raises-exception"}:
            yield f"cell {i}: is not run or may fail unseen: {sorted(has)}"
        if cell.cell_type != "code":
            continue
        if CHECKED in has and not cell.outputs:
            yield f"cell {i}: tagged {CHECKED}, but nothing is stored to compare with"
        if not has & {CHECKED, KEPT} and cell.outputs:
            yield f"cell {i}: has outputs and no tag {KEPT}: run pre-commit"


def checked_outputs(cells: list[Cell]) -> Iterator[str]:
    checked = [(i, cell) for i, cell in code(cells) if CHECKED in tags(cell)]
    if not checked:
        yield f"no cell is tagged {CHECKED}: then nothing in the notebook is compared"
    for i, cell in checked:
        if cell.outputs and not text_of(cell).strip():
            yield f"cell {i}: nbval compares no pictures: show the data as text"
        if any(out.get("name") == "stderr" or out.output_type == "error" for out in cell.outputs):
            yield f"cell {i}: an error or a warning is stored as a fact"
        for what, pattern in PRIVATE.items():
            if match := re.search(pattern, text_of(cell, html=True)):
                yield f"cell {i}: {what.strip()} in a compared output: {match[0]!r}"


def text_of(cell: Cell, html: bool = False) -> str:
    """The text that the cell shows, what is printed and the value of its last line."""
    kinds = ("text/plain", "text/html") if html else ("text/plain",)
    shown = []
    for out in cell.outputs:
        data = out.get("data", {})
        picture = any(kind.startswith("image/") for kind in data)
        shown.append(out.get("text", ""))
        shown.extend(data.get(kind, "") for kind in kinds if not picture)
    return "\n".join(shown)


def exercises(cells: list[Cell]) -> Iterator[str]:
    inside = 0  # cells of an exercise still to come
    for i, cell in enumerate(cells):
        part = tags(cell) & set(EXERCISE)
        if not part and not inside:
            continue
        if inside or part == {"task"}:
            wanted = EXERCISE[-inside] if inside else "task"
            inside = (inside or len(EXERCISE)) - 1
            if part != {wanted}:
                yield f"cell {i}: the exercise's next cell is tagged {wanted!r}, got {sorted(part)}"
                inside = 0
                continue
            yield from exercise_cell(i, cell, wanted)
        else:
            yield f"cell {i}: tagged {sorted(part)} outside an exercise ({', '.join(EXERCISE)})"
    if inside:
        yield f"the last exercise lacks {', '.join(EXERCISE[-inside:])}"


def exercise_cell(i: int, cell: Cell, part: str) -> Iterator[str]:
    if part == "task":
        if cell.cell_type != "markdown" or not re.search(r"\d", cell.source):
            yield f"cell {i}: a task is markdown and gives its targets as numbers"
        return
    if cell.cell_type != "code":
        yield f"cell {i}: the {part} of an exercise is code"
    elif part == "answer" and not re.search(r"^\w+ = None\b.*\Z", cell.source, re.MULTILINE):
        yield f"cell {i}: an answer is not attempted yet: its last line is 'answer = None'"
    elif part == "solution":
        yield from solution(i, cell)


def solution(i: int, cell: Cell) -> Iterator[str]:
    """Collapsed, with a first line, which stays to be seen, that gives nothing away, and nothing
    shown when it is run: it comes right below an answer that may not have been attempted."""
    if not is_hidden(cell):
        yield f"cell {i}: collapse the solution (metadata jupyter.source_hidden)"
    if not cell.source.startswith(SOLUTION):
        yield f"cell {i}: JupyterLab shows the first line of a collapsed cell: {SOLUTION.strip()!r}"
    *before, last = ast.parse(cell.source).body
    if not ast.unparse(last).endswith(".require()"):
        yield f"cell {i}: a solution ends with .require(), which raises unless it is one"
    if ".check(" in cell.source:
        yield f"cell {i}: a solution is judged by .result(): .check() counts it as the reader's"
    if any(isinstance(line, ast.Expr) for line in before) or "print(" in cell.source:
        yield f"cell {i}: a solution shows nothing"


def needs_no_solution(cells: list[Cell]) -> Iterator[str]:
    """A learner's copy has solutions as text: nothing else may use what they alone define."""
    known, solved = set(), set()
    for i, cell in code(cells):
        nodes = list(ast.walk(ast.parse(re.sub(r"(?m)^\s*[%!].*$", "", cell.source))))
        made = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        made |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        if "solution" in tags(cell):
            solved |= made - known
            continue
        used = {n.id for n in nodes if isinstance(n, ast.Name)} & solved - made
        yield from (f"cell {i}: {name} is what a solution alone defines" for name in sorted(used))
        known, solved = known | made, solved - made


def predictions(cells: list[Cell]) -> Iterator[str]:
    """Each is asked before anything answers it, and judged before the next one is asked."""
    asked: dict[str, int] = {}
    still_open = None
    for i, cell in enumerate(cells):
        if cell.cell_type == "markdown" and "**Predict" in cell.source:
            follows = cells[i + 1].source if i + 1 < len(cells) else ""
            if "td.predict(" not in follows:
                yield f"cell {i}: says Predict, and the next cell has no td.predict(...)"
            said = cell.source.replace("**Predict.**", "").replace("**Predict**", "")
            for bold in re.findall(r"\*\*(.+?)\*\*", said):
                if re.search(r"(?<![\w.])\d[\d.,]*(?!\w)", bold):  # 12 MB, and not 1F1B
                    yield f"cell {i}: {bold} answers before the reader has; fold it away below"
        elif cell.cell_type == "code" and "td.predict(" in cell.source:
            question = re.search(r'td\.predict\(\s*"([^"]+)"', cell.source)
            if still_open is not None:
                yield f"cell {i}: the prediction of cell {still_open} has no row beside what came"
            if not question or not cell.source.rstrip().endswith("\nguess"):
                yield f'cell {i}: guess = td.predict("question", ...), and guess as its last line'
            elif asked.setdefault(question[1], i) != i:
                yield f"cell {i}: {question[1]!r} is asked in cell {asked[question[1]]} too"
            still_open = i
        elif cell.cell_type == "code" and ".beside(" in cell.source:
            if still_open is None:
                yield f"cell {i}: a row beside a prediction that was not asked for"
            if not cell.source.startswith(ROW) or not is_hidden(cell):
                yield f"cell {i}: the row holds the formula: collapse it, below {ROW.strip()!r}"
            still_open = None
    if still_open is not None:
        yield f"cell {still_open}: a prediction without a row beside what came"
    if asked and "td.score()" not in [cell.source for cell in cells]:
        yield "a notebook with predictions ends with their score: td.score()"


def is_hidden(cell: Cell) -> bool:
    return bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


def closing(cells: list[Cell]) -> Iterator[str]:
    """A cluster that is started outside a `with` is closed further down."""
    still_open = None
    for i, cell in code(cells):
        try:
            tree = ast.parse(cell.source)
        except SyntaxError:
            yield f"cell {i}: not plain Python"
            continue
        held = {id(item.context_expr) for w in ast.walk(tree) for item in getattr(w, "items", ())}
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
            name = ast.unparse(call.func)
            if name.endswith("start_cluster") and id(call) not in held:
                still_open = i
            elif name.endswith(".close"):
                still_open = None
    if still_open is not None:
        yield f"cell {still_open}: starts a cluster that no later cell closes"


# -- the notebooks -------------------------------------------------------------------------------


def test_the_walkthroughs_are_there():
    if not NOTEBOOKS:
        reason = "NO NOTEBOOKS: nbs/ is empty, so nothing about them was checked"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    named = [re.fullmatch(r"(\d\d)_[a-z0-9_]+\.ipynb", path.name) for path in NOTEBOOKS]
    assert all(named), f"name notebooks 00_some_words.ipynb: {[p.name for p in NOTEBOOKS]}"
    numbers = [match[1] for match in named]
    assert len(set(numbers)) == len(numbers), "two notebooks have one number"


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_its_shape(path):
    assert faults(nbformat.read(path, as_version=nbformat.NO_CONVERT)) == []


@pytest.mark.long
def test_the_notebooks_are_stripped():
    done = nbstripout("--verify", *NOTEBOOKS)
    assert done.returncode == 0, f"run pre-commit, or nbstripout as it does: {done.stdout}"


# -- what the notebooks say ----------------------------------------------------------------------


def cells_of(path: Path) -> list[Cell]:
    return nbformat.read(path, as_version=4).cells


def that_has(words: str) -> list[Cell]:
    """The cells of the one walkthrough in whose cells ``words`` stand."""
    (cells,) = (
        cells for cells in map(cells_of, NOTEBOOKS) if any(words in cell.source for cell in cells)
    )
    return cells


def prose() -> str:
    """The text of all walkthroughs as it is read, without its lines' ends."""
    cells = (cell for path in NOTEBOOKS for cell in cells_of(path))
    text = " ".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return " ".join(text.split())


def says(text: str, number: float) -> bool:
    """Whether ``number`` stands in ``text`` by itself."""
    return re.search(rf"(?<![\w.]){re.escape(f'{number:g}')}(?![\w.]*\d)", text) is not None


def tasks() -> Iterator[tuple[str, str, str]]:
    """(number of the notebook, its task, the cell that sets it) of every exercise."""
    for path in NOTEBOOKS:
        number = path.name.partition("_")[0]
        cells = cells_of(path)
        for task, answer in pairwise(cells):
            if "task" in tags(task):
                yield number, task.source, answer.source


def test_every_cell_has_an_id_of_its_own():
    """As it is in the file: whoever reads it with nbformat gets another one."""
    for path in NOTEBOOKS:
        ids = [cell["id"] for cell in json.loads(path.read_text("utf-8"))["cells"]]
        assert len(set(ids)) == len(ids), path.name


@pytest.mark.long
def test_a_task_does_not_say_the_number_that_its_puzzle_asks_for():
    asked = 0
    said = {name: [td.tasks.load_puzzle(name).question] for name in td.tasks.puzzle_names()}
    for _, task, answer in tasks():
        for name in re.findall(r'load_puzzle\("([\w-]+)"\)', answer):
            said[name].append(task + answer)
    for name, texts in said.items():
        puzzle = td.tasks.load_puzzle(name)
        for target in puzzle.result(puzzle.solve()).targets:
            asked += target.least
            assert not target.least or not says(" ".join(texts), target.wanted), name
    assert asked >= 2


GB = 10**9


@pytest.fixture(scope="module")
def around() -> dict:
    """What the cells before an exercise have made, as far as its answer cell wants it."""
    capstone: dict = {}
    for words in ("keeps = 14 * GB", "task = {\n"):
        exec(next(c.source for c in that_has(words) if words in c.source), capstone)
    return {"td": td, "GB": GB, "task": capstone["task"]}


def bold_numbers(text: str) -> set[float]:
    """The numbers that stand in bold in a task."""
    return {n for bold in re.findall(r"\*\*(.+?)\*\*", text, re.DOTALL) for n in numbers_in(bold)}


def numbers_in(text: str) -> set[float]:
    """Every number in ``text``; 1F1B and 3F2 are none."""
    found = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-\d+)?(?!\w|\.\d)", text)
    return {float(number.replace(",", "")) for number in found}


def judge_of(answer: str, around: dict) -> td.tasks.JudgedTask:
    """The task that an answer cell makes."""
    there = dict(around)
    exec(answer, there)
    return next(v for v in there.values() if isinstance(v, td.tasks.JudgedTask))


def agrees(task: str, judge: td.tasks.JudgedTask) -> None:
    said = numbers_in(f"{judge.heading} {judge.question} {judge.form}")
    lists = numbers_in(re.sub(r"(?<=\d),\s?(?=\d)", " ", f"{task} {judge.question}"))
    assert bold_numbers(task) <= said | lists, (judge.name, bold_numbers(task) - said)


@pytest.mark.long
def test_a_tasks_targets_are_those_of_its_question(around):
    """What a notebook prints in bold, the puzzle or level says as well."""
    asked = [each for each in tasks() if re.search(r"load_puzzle|idle_level", each[2])]
    assert len(asked) > 12
    for _, task, answer in asked:
        agrees(task, judge_of(answer, around))


UNKNOWN = {
    "layer_too_large": dict.fromkeys(STRATEGIES) | {"ranks for adam": 9},
    "until_layerwise_moves_more": 9,
}
"""Exercises that ask for numbers as small as can be, and an answer that is legal and too large."""


@pytest.mark.long
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_task_does_not_say_the_number_that_its_exercise_asks_for(name):
    ((_, task, answer),) = (each for each in tasks() if f"{name}(" in each[2])
    there = {"td": td}
    exec(answer, there)
    result = there["exercise"].check(UNKNOWN[name])
    least = [target for target in result.targets if target.least]
    assert least
    for target in least:
        assert not says(f"{task} {answer}", target.wanted)
        assert not says(f"{result.reason} {result.score} {result._repr_html_()}", target.wanted)


def test_a_walkthrough_does_not_show_the_splits_that_it_asks_for():
    source = "\n".join(cell.source for path in NOTEBOOKS for cell in cells_of(path))
    assert "run_blocks" not in source


def test_numbers_in_the_prose_are_those_of_the_data():
    """Where a sentence was once wrong about what the package knows."""
    said = prose()
    rows = json.loads((ROOT / "data" / "published" / "schedule.json").read_text())
    transfers = [r["inputs"]["T_F"] / r["inputs"]["T_comm"] for r in rows if "zb_t5" in r["id"]]
    assert f"1/{min(transfers):.0f} to 1/{max(transfers):.0f} of a forward" in said
    device = load_device("H200")
    rate = f"{device.l2_bytes_per_clock:,} bytes a clock"
    assert f"{rate} that a published table assumes" in said
    assert f"{device.l2_bandwidth / 1e12:.1f} TB/s as a peak" in said
    assert default("all_reduce", 4) in said
    assert "The package keeps Cannon's order and does not shift" in said


def test_a_walkthrough_allows_the_points_that_it_says():
    cells = that_has("We expect both within")
    (said,) = (i for i, cell in enumerate(cells) if "We expect both within" in cell.source)
    points = re.search(r"both within \*\*(\d+)\*\* points", cells[said].source)
    assert f'("within", {int(points[1]) / 100:g})' in cells[said + 1].source


# -- the checker ---------------------------------------------------------------------------------

TITLE = "# Cuts\nYou'll do a cut, you will learn why; you need 2 cores."


def fact(source: str = "1 + 1", text: str = "2", **output) -> Cell:
    shown = new_output("execute_result", {"text/plain": text}, execution_count=1, **output)
    return new_code_cell(source, outputs=[shown], metadata={"tags": [CHECKED, KEPT]})


def tagged(part: str, source: str = "x = 1") -> Cell:
    make = new_markdown_cell if part == "task" else new_code_cell
    hidden = {"jupyter": {"source_hidden": True}} if part == "solution" else {}
    return make(source, metadata={"tags": [part], **hidden})


def exercise(**sources: str) -> list[Cell]:
    usual = {
        "task": "Reach 12.",
        "answer": "# a list\nanswer = None",
        "solution": SOLUTION + "exercise.result(3).require()",
    }
    return [tagged(part, {**usual, **sources}.get(part, "x = 1")) for part in EXERCISE]


def notebook(*cells: Cell, title: str = TITLE) -> nbformat.NotebookNode:
    cells = [new_markdown_cell(title), *cells]
    for count, (_, cell) in enumerate(code(cells), 1):
        cell.execution_count = count
        for out in cell.outputs:
            if out.output_type == "execute_result":
                out.execution_count = count
    return new_notebook(cells=cells)


def prediction(**sources: str) -> list[Cell]:
    usual = {
        "asks": "Now the **whole**. **Predict** its bytes.",
        "field": 'guess = td.predict("bytes", unit="B")\nguess',
        "run": "x = 1",
        "row": ROW + "guess.beside(formula=1, measured=x)",
        "score": "td.score()",
    }
    asks, field, run, row, score = {**usual, **sources}.values()
    shown = fact(row, "bytes | yours - | formula 1 B | measured 1 B")
    shown.metadata.jupyter = {"source_hidden": row.startswith(ROW)}
    before = [new_markdown_cell(asks), new_code_cell(field), new_code_cell(run)]
    return [*before, *([shown] if row else []), *([new_code_cell(score)] if score else [])]


def test_a_good_notebook_has_no_faults():
    opens, closes = new_code_cell("c = td.start_cluster()"), new_code_cell("c.close()")
    steps = (opens, fact(), *exercise(), *prediction(), closes)
    assert faults(notebook(*steps)) == []
    assert faults(notebook(new_code_cell("with td.start_cluster() as c:\n    pass"), fact())) == []


def changed(cell: Cell, **values) -> Cell:
    """``cell`` with other values: of its metadata, and its count and outputs."""
    for name, value in values.items():
        (cell if name in cell else cell.metadata)[name] = value
    return cell


def shown(*outputs: nbformat.NotebookNode) -> Cell:
    return changed(fact(), outputs=list(outputs))


PICTURE = {"image/png": "aGk=", "text/plain": "<Figure size 640x480>"}
RAISED = new_output("stream", name="stderr", text="UserWarning: port taken")


def in_place(index: int, cell: Cell) -> list[Cell]:
    """An exercise with another cell in place of one of its."""
    cells = exercise()
    return [*cells[:index], cell, *cells[index + 1 :]]


PLANTED = [
    ([fact()], "# Cuts", 'say what "you\'ll do"'),
    ([fact()], "Cuts: you'll do, you'll learn, you need", "first line is a title"),
    ([new_code_cell("\n".join(["x = 1"] * 11)), fact()], TITLE, "11 lines of code"),
    ([new_code_cell("x = " + "1" * 65), fact()], TITLE, "69 columns, at most 68"),
    ([new_code_cell("from tiledask.lab import plots"), fact()], TITLE, "is one of td's"),
    ([new_code_cell("import tiledask.lab.plots as p"), fact()], TITLE, "is one of td's"),
    ([new_code_cell("x = 1")], TITLE, "then nothing in the notebook is compared"),
    ([shown()], TITLE, "nothing is stored"),
    ([changed(fact(), tags=[]), fact()], TITLE, "has outputs and no tag"),
    ([tagged(CHECKED), fact()], TITLE, "go together"),
    ([tagged("nbval-skip"), fact()], TITLE, "is not run"),
    ([shown(new_output("display_data", PICTURE))], TITLE, "no pictures"),
    ([shown(*fact().outputs, RAISED)], TITLE, "a warning is stored"),
    ([fact(text="PosixPath('/home/me/x')")], TITLE, "a path of this machine"),
    ([fact(text="worker at tcp://10.0.0.1:4000")], TITLE, "an address"),
    ([fact(text="<object at 0x7f3a2b4c5d60>")], TITLE, "an object's address"),
    ([fact(), *exercise()[:3]], TITLE, "lacks check, solution"),
    ([fact(), *exercise()[1:]], TITLE, "outside an exercise"),
    ([fact(), *in_place(2, tagged("check"))], TITLE, "next cell is tagged 'draw'"),
    ([fact(), *in_place(2, new_markdown_cell("so"))], TITLE, "tagged 'draw', got []"),
    ([fact(), *exercise(task="Make it fast.")], TITLE, "targets as numbers"),
    ([fact(), *exercise(answer="answer = [1, 2]")], TITLE, "not attempted yet"),
    ([fact(), *exercise(answer="answer = None\nanswer = 3")], TITLE, "not attempted yet"),
    (
        [fact(), *exercise(solution="# 48 / 4\ne.result(3).require()")],
        TITLE,
        "shows the first line",
    ),
    ([fact(), *exercise(solution=SOLUTION + "e.result(3)")], TITLE, "ends with .require()"),
    ([fact(), *exercise(solution=SOLUTION + "e.check(3).require()")], TITLE, "counts it"),
    ([fact(), *exercise(solution=SOLUTION + "print(3)\ne.result(3).require()")], TITLE, "nothing"),
    ([*exercise(solution=SOLVED), fact("b + 1")], TITLE, "b is what a solution alone defines"),
    ([fact(), new_code_cell("c = td.start_cluster()")], TITLE, "no later cell closes"),
    ([fact(), new_code_cell("%matplotlib inline")], TITLE, "not plain Python"),
    (prediction(asks="**Predict.** It is 4 x 3 = **12** bytes."), TITLE, "answers before"),
    (prediction(field="x = 2"), TITLE, "has no td.predict"),
    (prediction(field='guess = td.predict("bytes")'), TITLE, "guess as its last line"),
    ([fact(), *prediction(row="")], TITLE, "without a row"),
    ([*prediction(score="", row="")[:3], *prediction()], TITLE, "has no row"),
    ([*prediction(), *prediction()], TITLE, "'bytes' is asked in cell 2 too"),
    (prediction(row="guess.beside(formula=1)"), TITLE, "collapse it"),
    ([fact(), prediction()[3]], TITLE, "was not asked for"),
    (prediction(score=""), TITLE, "ends with their score"),
]


@pytest.mark.parametrize(("cells", "title", "fault"), PLANTED)
def test_a_planted_fault_is_found(cells, title, fault):
    found = faults(notebook(*cells, title=title))
    assert [f for f in found if fault in f], found


def test_cells_out_of_order_a_solution_that_shows_and_an_invalid_notebook_are_found():
    good = notebook(fact(), *exercise())
    for at, said, values in (
        (1, "cell 1: execution count 7, expected 1: restart, run all", {"execution_count": 7}),
        (-1, "cell 6: collapse the solution", {"jupyter": {}}),
        (1, "not a valid notebook", {"outputs": "2"}),
    ):
        bad = copy.deepcopy(good)
        changed(bad.cells[at], **values)
        (found,) = faults(bad)
        assert found.startswith(said)


# -- the stripping hook --------------------------------------------------------------------------


def nbstripout(*words: Path | str) -> subprocess.CompletedProcess:
    """nbstripout as pre-commit calls it, with these options and files; in this process, where
    the notebooks' schema is compiled already."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (hook,) = (h for h in config["repos"][0]["hooks"] if h["id"] == "nbstripout")
    _, *options = shlex.split(hook["entry"])
    command, status = ["nbstripout", *options, *map(str, words)], 0
    written = io.BytesIO()
    written.close = lambda: None  # nbstripout wraps it once more, and closes that
    printed = io.TextIOWrapper(written, encoding="utf-8")
    patched = mock.patch.multiple(sys, argv=command, stdin=None)  # it would close that, too
    with patched, contextlib.redirect_stdout(printed):
        try:
            runpy.run_module("nbstripout", run_name="__main__")
        except SystemExit as end:
            status = end.code or 0
    printed.flush()
    return subprocess.CompletedProcess(command, status, written.getvalue().decode())


def test_the_hook_keeps_facts_counts_and_collapsed_solutions(tmp_path):
    path = tmp_path / "00_x.ipynb"
    nbformat.write(notebook(fact(), changed(fact(), tags=[]), *exercise()), path)
    verified = nbstripout("--verify", path)
    assert verified.returncode == 1
    assert "00_x.ipynb" in verified.stdout
    assert nbstripout(path).returncode == 0
    kept = nbformat.read(path, as_version=4)
    assert faults(kept) == []
    assert text_of(kept.cells[1]).strip() == "2"
    assert kept.cells[2].outputs == []
    assert nbstripout("--verify", path).returncode == 0


# -- nbval, as `make test` calls it --------------------------------------------------------------


@pytest.mark.long
def test_nbval_passes_a_true_fact_and_fails_a_false_one(tmp_path):
    cells = fact(), new_code_cell("import time; time.time()"), fact(text="3")
    nbformat.write(notebook(*cells), tmp_path / "x.ipynb")
    options = ["--nbval-lax", "--nbval-current-env", "-q", "-rA", "-p", "no:cacheprovider"]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = ("-m", "pytest", "-p", "nbval.plugin", *options, tmp_path)
    done = python(*words, cwd=tmp_path, env=alone)
    told = re.findall(r"^(PASSED|FAILED) (?:\S*/)?x\.ipynb::Cell (\d)", done.stdout, re.M)
    assert sorted(told) == [("FAILED", "2"), ("PASSED", "0"), ("PASSED", "1")]
    assert done.returncode == 1


# -- the learner's copies, as `make lab` makes them ----------------------------------------------


def shell(*words: str, cwd: Path) -> str:
    """What ``words`` prints, run in ``cwd`` with this package; fails if it does."""
    ours = ("MAKE", "EXTRAS", "PYTHON", "DASHBOARD_PORT", "LAB_ARGS", "GIT_")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    done = finished(*words, cwd=cwd, timeout=300, env={**clean, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def checkout(tmp_path):
    """A repository with what `make lab` and `make clean` need of this one."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for name in ("nbs", "tests", "tiledask"):
        (tmp_path / name).mkdir()
    for path in (ROOT / "Makefile", ROOT / ".gitignore", *NOTEBOOKS):
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    shell("git", "init", "--quiet", cwd=tmp_path)
    shell("git", "add", ".", cwd=tmp_path)
    shell(*git, "commit", "--quiet", "--message", "all", cwd=tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.cluster
def test_make_lab_run_and_save_leave_the_checkout_clean(checkout):
    """JupyterLab saves what it ran where it was opened: so does nbconvert --inplace."""
    program = f"BIN={Path(sys.executable).parent}"
    lab = ("make", "-o", ".venv/ready-all", program, "lab", "LAB_ARGS=--version")
    shell(*lab, cwd=checkout)
    assert {p.name for p in (checkout / "learn").glob("*.ipynb")} == {p.name for p in NOTEBOOKS}
    saved = checkout / "learn" / NOTEBOOKS[0].name
    before = saved.read_text()
    words = ("-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", str(saved))
    shell(sys.executable, *words, cwd=checkout)
    after = saved.read_text()
    assert after != before
    shell(*lab, cwd=checkout)
    shell("make", program, "clean", cwd=checkout)
    (checkout / "build").mkdir()
    (checkout / "build" / "as_left.ipynb").write_text(after)
    refresh(checkout / "build")  # fields of kernels that ended, and nothing else
    assert saved.read_text() == (checkout / "build" / "as_left.ipynb").read_text()
    assert shell("git", "status", "--porcelain", cwd=checkout) == ""


def walkthrough(folder: Path, *sources: str) -> Path:
    """A notebook 00_x of ``folder`` with these cells."""
    folder.mkdir(exist_ok=True)
    path = folder / "00_x.ipynb"
    nbformat.write(notebook(*map(new_code_cell, sources)), path)
    return path


def test_a_kept_copy_stays_and_a_correction_arrives_beside_it_once(tmp_path):
    nbs, learn = tmp_path / "nbs", tmp_path / "learn"
    walkthrough(nbs, "1 + 1")
    assert copy_walkthroughs(nbs, learn) == []
    mine = learn / "00_x.ipynb"
    mine.write_text("as I left it")
    assert copy_walkthroughs(nbs, learn) == []
    walkthrough(nbs, "1 + 2")
    (said,) = copy_walkthroughs(nbs, learn)
    beside = learn / "00_x-2.ipynb"
    assert "00_x.ipynb was corrected" in said
    assert str(beside) in said
    assert "1 + 2" in beside.read_text()
    assert mine.read_text() == "as I left it"
    beside.unlink()
    assert copy_walkthroughs(nbs, learn) == []  # said once
    assert not beside.exists()
    shutil.copy(walkthrough(nbs, "1 + 3"), nbs / "01_y.ipynb")
    assert len(copy_walkthroughs(nbs, learn)) == 2
    assert (learn / "01_y.ipynb").exists()
    mine.unlink()
    assert copy_walkthroughs(nbs, learn) == [f"{mine} is new."]
    assert "1 + 3" in mine.read_text()


def test_fields_of_yesterdays_kernels_become_their_text_and_nothing_else_changes(tmp_path):
    widget, version = "application/vnd.jupyter.widget-view+json", platform.python_version()
    path = walkthrough(tmp_path, "guess", "1 + 1")
    ran = nbformat.read(path, as_version=4)
    ran.metadata.language_info = {"name": "python", "version": "3.0"}
    shown = {widget: {"model_id": "5"}, "text/plain": "Your prediction of bytes: 8 B"}
    ran.cells[1].outputs = [new_output("execute_result", shown, execution_count=1)]
    ran.cells[2].outputs = [new_output("stream", text="2\u2007µs")]
    nbformat.write(ran, path)
    (tmp_path / "mine.ipynb").write_text("as I left it")
    refresh(tmp_path)
    found = nbformat.read(path, as_version=4)
    assert found.metadata.language_info.version == version
    assert found.cells[1].outputs[0].data == {"text/plain": shown["text/plain"]}
    found.metadata.language_info.version, found.cells[1].outputs = "3.0", ran.cells[1].outputs
    assert found == ran
    assert (tmp_path / "mine.ipynb").read_text() == "as I left it"
    before = path.stat()
    refresh(tmp_path)
    assert path.stat() == before  # not written again


def test_other_outputs_are_no_correction(tmp_path):
    nbs, learn = tmp_path / "nbs", tmp_path / "learn"
    path = walkthrough(nbs, "1 + 1")
    copy_walkthroughs(nbs, learn)
    ran = nbformat.read(path, as_version=4)
    ran.cells[1].outputs = [new_output("stream", text="2")]
    ran.cells[1].execution_count = 7
    nbformat.write(ran, path)
    assert copy_walkthroughs(nbs, learn) == []
    assert len(list(learn.glob("*.ipynb"))) == 1


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_copy_answers_nothing_before_it_is_run(path):
    """And running all of it runs no solution and leaves the cluster up."""
    reference = nbformat.read(path, as_version=4)
    copy = nbformat.reads(json.dumps(learners(json.loads(path.read_text()))), as_version=4)
    nbformat.validate(copy)
    assert len(copy.cells) == len(reference.cells)
    assert len({cell.id for cell in copy.cells}) == len(copy.cells)
    folded = 0
    for cell, was in zip(copy.cells, reference.cells, strict=True):
        assert not tags(cell) & {CHECKED, KEPT, "solution"}
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)
            assert not re.fullmatch(r"\s*\w+\.close\(\)\s*", cell.source)
            assert cell.source == was.source
        elif "solution" in tags(was):
            folded += 1
            begin, code, end = cell.source.split("```")
            assert begin.startswith("<details><summary>")
            assert end.strip() == "</details>"
            assert SOLUTION + code.removeprefix("python\n").rstrip() == was.source.rstrip()
    assert folded == sum("solution" in tags(cell) for cell in reference.cells)
    stays = [
        at for at, cell in enumerate(copy.cells) if cell.source.startswith("The cluster stays")
    ]
    last = max(at for at, cell in enumerate(copy.cells) if cell.cell_type == "code")
    assert all(at > last for at in stays), "it stands in the midst of a text"


@pytest.mark.long
def test_a_copy_has_the_kernels_version_links_that_lead_somewhere_and_no_paths(tmp_path):
    """Without the version JupyterLab adds it, and a notebook is changed as soon as it's opened.

    Copies may lie anywhere, with a wheel and no checkout: shipped files are asked of the package.
    """
    learn = tmp_path / "learn"
    copy_walkthroughs(ROOT / "nbs", learn)
    write_contents(ROOT / "nbs", learn)
    links, paths = [], []
    for path in NOTEBOOKS:
        copy = nbformat.read(learn / path.name, as_version=4)
        assert copy.metadata.language_info.version == platform.python_version()
        for cell in copy.cells:
            if cell.cell_type == "markdown":
                links += re.findall(r"\]\((?!\w+:|#)([^)#]+)", cell.source)
            else:
                paths += re.findall(r"Path\([\"']\.\.|[\"']\.\./.*", cell.source)
    assert links
    assert [each for each in links if not (learn / each).exists()] == []
    assert paths == []
