"""Sheets to print, copies for a class, and grades of what learners wrote."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

import tiledask as td
from tiledask.cli import main
from tiledask.lab.classroom.assignment import assigned, write_assignments
from tiledask.lab.classroom.grading import grade, judged
from tiledask.lab.classroom.sheet import sheet
from tiledask.lab.learner import copies

SHIPPED = sorted(copies.shipped_notebooks().glob("[0-9]*.ipynb"))


def test_a_sheet_has_the_tasks_and_its_answers_are_apart():
    asked = sheet(["idle-3", "24-on-4"], seed=7)
    told = sheet(["idle-3", "24-on-4"], seed=7, answers=True)
    level = td.tasks.idle_level(3, seed=7)
    for page in (asked, told):
        assert level.question in page
        assert td.tasks.load_puzzle("24-on-4").title in page
    for line in (*level.lines, "[1-6][7-12][13-18][19-24]"):
        assert line in told
        assert line not in asked
    assert asked != sheet(["idle-3", "24-on-4"], seed=8)
    assert "http" not in asked.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("source", "stars"),
    [
        ('task = make()\nanswer = "1-6 | 7-12 | 13-18 | 19-24"  # mine', 3),
        ("answer = (0, 6, 12, 18, 24)", 3),
        *((f"answer = {each}", None) for each in ("open('x')", "[n for n in y]", "puzzle", "(")),
        ("answer = td.tasks.load_puzzle('24-on-4').solve()", None),
        ("def mine():\n    return 1", None),
    ],
)
def test_only_what_says_a_value_is_judged(source, stars):
    found, said = judged(td.task("24-on-4"), source)
    assert found == (stars or 0)
    assert said.startswith("not judged: ") == (stars is None)


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A notebook of one puzzle, and one of a function."""
    sources = {
        "import tiledask as td\n1 / 0": "begin",
        "puzzle = td.task('24-on-4', seed=0)\nanswer = None": "answer",
        "puzzle.check(answer)": "check",
        "# A solution.\npuzzle.result(puzzle.solve()).require()": "solution",
        'exercise = td.task("cannon")\nanswer = None': "answer",
        "exercise.check(answer)": "check",
        "# A solution.\nsecret = 1": "solution",
    }
    cells = [
        new_code_cell(source, id=f"c{number}", metadata={"tags": [tag]})
        for number, (source, tag) in enumerate(sources.items())
    ]
    nbs, whole = tmp_path / "nbs", new_notebook(cells=cells)
    nbs.mkdir()
    nbformat.write(whole, nbs / "00_cut.ipynb")
    for module in ("assignment", "grading"):
        monkeypatch.setattr(f"tiledask.lab.classroom.{module}.shipped_notebooks", lambda: nbs)
    return whole


def hand_in(folder, whole, learner, **answers):
    changed = json.loads(json.dumps(whole))
    for each in changed["cells"]:
        each["source"] = answers.get(each["id"], each["source"])
    to = folder / "handed in" / learner / "00_cut.ipynb"
    to.parent.mkdir(parents=True)
    to.write_text(json.dumps(changed))
    return to


HEAD = "puzzle = td.task('24-on-4', seed=0)\n"


def test_answers_are_judged_and_nothing_else_runs(tmp_path, course):
    harm = tmp_path / "harm"
    hand_in(tmp_path, course, "ada", c1=HEAD + "answer = '1-6 | 7-12 | 13-18 | 19-24'")
    hand_in(tmp_path, course, "bob", c1=HEAD + 'answer = "1-9 | 10-12 | 13-18 | 19-24"')
    evil = {"c0": f"open({str(harm)!r}, 'w')", "c1": "answer = puzzle.solve()"}
    hand_in(tmp_path, course, "eve", **evil, c4="answer = exit")
    hand_in(tmp_path, course, "nil").write_text("no notebook")
    found = {(each.learner, each.task): each for each in grade(tmp_path / "handed in")}
    assert [found[who, 1].stars for who in ("ada", "bob", "eve", "nil")] == [3, 1, 0, 0]
    assert found["eve", 1].said == found["eve", 2].said == "not judged: an answer that has to run"
    assert found["nil", 1].said == "not judged: no such cell: it was removed"
    assert found["ada", 2].said.startswith("Not attempted yet")
    assert not harm.exists()


def test_the_commands_of_a_class(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["sheet", "idle-3", "--seed", "7", "--to", str(page)]) == 0
    assert main(["sheet", "no-such-puzzle", "--to", str(page)]) == 2
    assert page.read_text() == sheet(["idle-3"], 7)
    assert main(["notebooks", str(tmp_path / "source"), "--nbgrader"]) == 0
    assert len(list((tmp_path / "source").glob("*/*.ipynb"))) == len(SHIPPED)
    assert main(["grade", str(tmp_path / "nothing")]) == 2
    assert "there is no notebook of the course in" in capsys.readouterr().err


def test_copies_for_a_class_have_tests_in_the_place_of_solutions(tmp_path, course):
    (path,) = write_assignments(tmp_path / "source")
    assert path == tmp_path / "source" / "00_cut" / "00_cut.ipynb"
    cells = json.loads(path.read_text())["cells"]
    assert len(cells) == len(course["cells"])
    assert "secret" not in path.read_text()
    answer, test = cells[1], cells[3]
    assert test["source"] == "puzzle.check(answer).require()"
    assert answer["metadata"]["nbgrader"]["solution"]
    assert {**test["metadata"]["nbgrader"]}.items() >= {
        "grade": True, "locked": True, "points": 3, "grade_id": "cell-c3", "schema_version": 3
    }.items()  # fmt: skip


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_no_copy_for_a_class_has_a_solution(path):
    notebook = json.loads(path.read_text("utf-8"))
    made = assigned(notebook)["cells"]
    solutions = [c for c in notebook["cells"] if "solution" in c["metadata"].get("tags", ())]
    there = ["".join(c["source"]) for c in made]
    assert not [s for s in solutions if "".join(s["source"]) in there]
    graded = [c for c in made if c["metadata"].get("nbgrader", {}).get("grade")]
    assert len(graded) == len(solutions)
    assert len({c["metadata"]["nbgrader"]["grade_id"] for c in graded}) == len(graded)
