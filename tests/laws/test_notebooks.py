"""The notebooks keep their shape, so that a learner's copy works; nbval compares their facts.

A cell whose output is a fact carries the tags `nbval-check-output` and `keep_output`; all other
outputs are stripped. An exercise is five cells in a row, each with its tag: task (Markdown), answer
(`answer = None`), draw, check, solution (collapsed; raises unless every target is met); or four,
where asserts are the judge, each with what is wrong in words: task, attempt, asserts (`def judge`,
`td.task(judge).check(answer)`), solution; what else the judge needs is folded before the asserts.
A prediction is `guess = td.predict("question")`, what is
run, and a collapsed `guess.compare(...)`; what it teaches is its ``why``, or stands behind it.
"""

import ast
import copy
import json
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from oracles.finished import ROOT

from tiledask.lab.learner.copies import copy_notebooks, learners, refresh
from tiledask.lab.learner.score import write_contents

NOTEBOOKS = sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))
FACT = {"nbval-check-output", "keep_output"}
EXERCISE = ("task", "answer", "draw", "check", "solution")
PLAIN = ("task", "attempt", "asserts", "solution")
SOLUTION = "# A solution.\n"
PRIVATE = r"(?<![\w.:/])/(?:home|root|tmp|Users|work)/|\b(?:tcp|tls|https?)://|\b0x[0-9a-f]{6,}"
"""What is another one on each machine: paths, addresses, objects."""
Cell = nbformat.NotebookNode


# -- the rules, each a generator of what is wrong ------------------------------------------------


def faults(notebook: nbformat.NotebookNode) -> list[str]:
    """Everything that is wrong with ``notebook``, a sentence each."""
    nbformat.validate(notebook)
    rules = (opening, short, outputs, exercises, needs_no_solution, predictions, surprises)
    return [fault for rule in rules for fault in rule(notebook.cells)]


def tags(cell: Cell) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def is_hidden(cell: Cell) -> bool:
    return bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


def code(cells: list[Cell]) -> Iterator[tuple[int, Cell]]:
    return ((i, c) for i, c in enumerate(cells) if c.cell_type == "code" and c.source.strip())


def opening(cells: list[Cell]) -> Iterator[str]:
    if not (cells and cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")):
        yield "cell 0: begin with a title"


def short(cells: list[Cell]) -> Iterator[str]:
    words = sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")
    if len(cells) > 45 or words > 1000:
        yield f"a unit has 45 cells and 1,000 words at most, this one {len(cells)} and {words}"
    for i, cell in code(cells):
        lines = [line for line in cell.source.splitlines() if line.strip()]
        if len(lines) > 10 or max(map(len, lines)) > 68:
            yield f"cell {i}: more than 10 lines, or 68 columns"
        for line in lines:
            if re.match(r"\s*(from|import)\s+tiledask\b", line) and line != "import tiledask as td":
                yield f"cell {i}: {line!r}: a name that a reader needs is one of td's"


def outputs(cells: list[Cell]) -> Iterator[str]:
    facts = [(i, cell) for i, cell in code(cells) if tags(cell) >= FACT]
    if not facts:
        yield "nothing in the notebook is compared"
    for i, cell in facts:
        shown = text_of(cell)
        if not shown.strip() or any(o.get("name") == "stderr" for o in cell.outputs):
            yield f"cell {i}: a fact is stored as text, and no warning"
        if match := re.search(PRIVATE, shown):
            yield f"cell {i}: of this machine alone: {match[0]!r}"
    for i, cell in enumerate(cells):
        if len(FACT & tags(cell)) == 1 or tags(cell) & {"nbval-skip", "raises-exception"}:
            yield f"cell {i}: {' and '.join(FACT)} go together, and every cell is run"
        elif not FACT & tags(cell) and cell.get("outputs"):
            yield f"cell {i}: has outputs and is no fact: run pre-commit"


def text_of(cell: Cell) -> str:
    """The text that the cell shows: what is printed, and its value."""
    shown = [out.get("text", "") for out in cell.outputs]
    for data in (out.get("data", {}) for out in cell.outputs):
        if not any(kind.startswith("image/") for kind in data):
            shown += [data.get("text/plain", ""), data.get("text/html", "")]
    return "\n".join(shown)


def exercises(cells: list[Cell]) -> Iterator[str]:
    each = (*EXERCISE, *PLAIN[1:3])
    parts = [(i, part) for i, c in enumerate(cells) for part in each if part in tags(c)]
    left = list(parts)
    while left:
        wanted = PLAIN if len(left) > 1 and left[1][1] == "attempt" else EXERCISE
        mine, left = left[: len(wanted)], left[len(wanted) :]
        if tuple(part for _, part in mine) != wanted:
            yield f"an exercise is {', '.join(EXERCISE)}, or {', '.join(PLAIN)}"
            break
        between = {*range(mine[0][0], mine[-1][0])} - {i for i, _ in mine}
        if not all(is_hidden(cells[i]) for i in between):
            yield "an exercise is in one piece"
    for i, part in parts:
        source = cells[i].source
        if part in ("answer", "attempt") and not re.search(r"^\w+ = None\b.*\Z", source, re.M):
            yield f"cell {i}: an answer is not attempted yet: its last line is 'answer = None'"
        if part == "asserts":
            asserts = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Assert)]
            said = asserts and all(each.msg for each in asserts) and "    return " in source
            if not (said and source.endswith("\n\n\ntd.task(judge).check(answer)")):
                yield f"cell {i}: a judge says in words what is wrong and what is right"
        if part == "solution":
            last = ast.unparse(ast.parse(source).body[-1])
            if not (is_hidden(cells[i]) and source.startswith(SOLUTION)):
                yield f"cell {i}: a solution is collapsed, below {SOLUTION.strip()!r}"
            if not last.endswith(".require()") or ".check(" in source or "print(" in source:
                yield f"cell {i}: a solution is judged by .result(...).require(), and shows nothing"


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
    """Each question is asked once, and what came stands beside it before the next one."""
    asked, still_open = set(), False
    for i, cell in code(cells):
        if question := re.search(r'td\.predict\(\s*"([^"]+)"', cell.source):
            if still_open or question[1] in asked:
                yield f"cell {i}: {question[1]!r} is asked twice, or before the last one is judged"
            asked.add(question[1])
            still_open = True
        elif ".compare(" in cell.source:
            if not (still_open and is_hidden(cell)):
                yield f"cell {i}: the row holds the formula: collapse it, behind its question"
            still_open = False
    if still_open or (asked and not any(c.source.endswith("td.score()") for c in cells)):
        yield "the last prediction is judged, and the notebook ends with td.score()"


def surprises(cells: list[Cell]) -> Iterator[str]:
    """What a row shows is not written anywhere before it: numbers of three digits and more."""
    read = ""
    for i, cell in enumerate(cells):
        if ".compare(" not in cell.source:
            read += cell.source.replace(",", "") + "\n"
            continue
        _, _, results = text_of(cell).replace(",", "").partition("| yours - |")
        for shown in re.findall(r"\d+\.?\d*", results.partition("\n")[0]):
            known = re.search(rf"(?<![\d.]){re.escape(shown)}(?!\.?\d)", read)
            if len(shown.replace(".", "").strip("0")) >= 3 and known:
                yield f"cell {i}: {shown} is written before the prediction of it"


def test_the_course_has_a_core_and_few_units_more():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{n:02}" for n in range(len(NOTEBOOKS))]
    assert len(NOTEBOOKS) <= 22


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_its_shape(path):
    assert faults(nbformat.read(path, as_version=nbformat.NO_CONVERT)) == []


# -- the learner's copies, as `make lab` makes them ----------------------------------------------


def written(folder: Path, *sources: str) -> Path:
    """A notebook 00_x of ``folder`` with these cells."""
    folder.mkdir(exist_ok=True)
    nbformat.write(new_notebook(cells=[*map(new_code_cell, sources)]), folder / "00_x.ipynb")
    return folder / "00_x.ipynb"


def test_a_copy_is_the_learners_and_who_deletes_one_gets_a_fresh_one(tmp_path):
    nbs, learn = tmp_path / "nbs", tmp_path / "learn"
    written(nbs, "1 + 1")
    assert copy_notebooks(nbs, learn) == []
    mine = learn / "00_x.ipynb"
    mine.write_text("as I left it")
    shutil.copy(written(nbs, "1 + 2"), nbs / "01_y.ipynb")
    assert copy_notebooks(nbs, learn) == [f"{learn / '01_y.ipynb'} is new."]
    assert mine.read_text() == "as I left it"
    mine.unlink()
    assert copy_notebooks(nbs, learn) == [f"{mine} is new."]
    assert "1 + 2" in mine.read_text()


def test_fields_of_yesterdays_kernels_become_their_text_and_nothing_else_changes(tmp_path):
    path = written(tmp_path, "guess", "1 + 1")
    ran = nbformat.read(path, as_version=4)
    ran.metadata.language_info = {"name": "python", "version": platform.python_version()}
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "5"}, "text/plain": "8 B"}
    ran.cells[0].outputs = [new_output("execute_result", widget, execution_count=1)]
    nbformat.write(ran, path)
    expected = copy.deepcopy(ran)
    expected.cells[0].outputs[0].data = {"text/plain": "8 B"}
    refresh(tmp_path)
    assert nbformat.read(path, as_version=4) == expected


def test_a_copy_answers_nothing_before_it_is_run_and_its_links_lead_somewhere(tmp_path):
    """Running all of it runs no solution and leaves the cluster up; copies may lie anywhere."""
    learn = tmp_path / "learn"
    copy_notebooks(ROOT / "nbs", learn)
    write_contents(ROOT / "nbs", learn)
    for path in NOTEBOOKS:
        reference = nbformat.read(path, as_version=4)
        made = nbformat.reads(json.dumps(learners(json.loads(path.read_text()))), as_version=4)
        nbformat.validate(made)
        assert len({cell.id for cell in made.cells}) == len(reference.cells)
        for cell, was in zip(made.cells, reference.cells, strict=True):
            assert not tags(cell) & {*FACT, "solution"}
            if cell.cell_type == "code":
                assert (cell.outputs, cell.execution_count) == ([], None)
                assert not re.fullmatch(r"\s*\w+\.close\(\)\s*", cell.source)
                assert not re.search(r"Path\([\"']\.\.|[\"']\.\./", cell.source)
                assert cell.source == was.source
            elif "solution" in tags(was):
                begin, solved, end = cell.source.split("```")
                assert (begin[:18], end.strip()) == ("<details><summary>", "</details>")
                shown = SOLUTION + solved.removeprefix("python\n").rstrip()
                assert re.sub(r"\n+td\.task\(judge\)\.result\(\w+\).*\Z", "", was.source) == shown
            else:
                links = re.findall(r"\]\((?!\w+:|#)([^)#]+)", cell.source)
                assert [each for each in links if not (learn / each).exists()] == []
