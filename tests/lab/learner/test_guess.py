"""What a reader predicts: read as typed, kept, judged beside what came, quiet if there is none."""

import sys

import pytest
from ipywidgets import widget

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.learner import guess as guess_module
from tiledask.lab.learner import kept
from tiledask.lab.learner.guess import Guess


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No file, and nothing known from another test."""
    monkeypatch.delenv(kept.FOLDER, raising=False)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(kept, "_open", {})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What `make lab` sets."""
    monkeypatch.setenv(kept.FOLDER, str(tmp_path / "progress"))
    monkeypatch.setenv("JPY_SESSION_NAME", "learn/02_split.ipynb")
    return tmp_path / "progress"


def another_kernel(monkeypatch, notebook="learn/02_split.ipynb"):
    monkeypatch.setenv("JPY_SESSION_NAME", notebook)
    monkeypatch.setattr(kept, "_open", {})


def test_a_learners_copy_keeps_its_predictions_whoever_opens_it(tmp_path, monkeypatch):
    """In an editor that sets no folder; beside others' notebooks nothing is kept."""
    (tmp_path / "learn" / kept.PROGRESS).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for name, found in (("learn", 3), ("elsewhere", None)):
        another_kernel(monkeypatch, str(tmp_path / name / "02_split.ipynb"))
        td.predict("bytes").take(3)
        another_kernel(monkeypatch, str(tmp_path / name / "02_split.ipynb"))
        assert td.predict("bytes").value == found
    assert [*(tmp_path / "elsewhere").iterdir()] == []


# -- a prediction, and the row ---------------------------------------------------------------------

# What each is worth: tests/laws/site_cases.json.


def test_a_row_has_what_was_predicted_what_came_and_stars():
    row = td.predict("size", 13e6, unit="B").compare(measured=12e6)
    assert repr(row) == "size | yours 13,000,000 B | measured 12,000,000 B | 1.08 ×, within 10 %"
    assert "★★☆ " in row._repr_html_()
    assert td.predict("states", "3.5 TB", unit="B", digits=2).compare(formula=3.517e12).stars == 3
    assert "(B, 2 digits)" in repr(td.predict("another", unit="B", digits=2))


def test_a_first_prediction_below_the_results_is_late_and_earns_nothing(monkeypatch):
    guess = td.predict("late")
    guess.compare(formula=7)
    for typed in (6, 7):
        guess.take(typed)
        row = guess.compare(formula=7)
        assert (row.stars, row.verdict) == (None, "late: the results were shown before")
    monkeypatch.setattr(guess_module, "_compared", {})  # another day
    guess.take(7)
    assert guess.compare(formula=7).stars == 3


def test_the_first_prediction_counts_and_a_later_one_is_shown_behind_it():
    guess = td.predict("splits", 1000)
    guess.take(1500)  # nothing is known yet
    assert guess.compare(measured=1771).stars == 0
    guess.take(1771)
    row = guess.compare(measured=1771)
    assert (guess.value, row.stars, row.cells["yours"]) == (1500, 0, "1,500 (later 1,771)")
    assert td.score().rows[0][1:4] == ("1 of 1", "0", "0 of 3")


def test_who_predicts_nothing_is_not_judged():
    guess = td.predict("bytes", unit="B")
    with pytest.raises(ConfigError, match="0 of 4 values"):
        guess.compare()
    row = guess.compare(measured=5)
    assert (row.stars, row.verdict) == (None, "")
    assert repr(row) == "bytes | yours - | measured 5 B"
    assert "☆" not in row._repr_html_()
    assert "run this cell in JupyterLab" in repr(guess)


def test_the_results_of_another_question_change_no_stars():
    td.predict("cuts", 1771).compare(formula=1771)
    last = td.predict("bottleneck", 6)
    assert last.compare(formula=6).stars == 3
    row = last.compare(formula=1771)  # the row above, run again
    assert (row.stars, row.verdict[:13]) == (None, "other results")
    assert td.score().rows[0][2:4] == ("2", "6 of 6")


def test_a_row_is_in_one_unit_and_says_why_below():
    row = td.predict("naps", "200 ms", unit="s").compare(formula=0.8, measured=1.142, why="4 < 5")
    assert list(row.cells.values()) == ["0.2 s", "0.8 s", "1.142 s"]
    assert repr(row).endswith("\n4 < 5")
    assert row._repr_html_().endswith("<p>4 &lt; 5</p>")
    assert "0.8\N{NO-BREAK SPACE}s" in row._repr_html_()


def test_what_is_no_choice_is_refused():
    guess = td.predict("which is refused", "all", choices=("none", "all"))
    with pytest.raises(ConfigError, match="one of none, all, got 'some'"):
        guess.take("some")
    assert guess.value == "all"


# -- what is kept ----------------------------------------------------------------------------------


def test_a_prediction_outlives_the_kernel(folder, monkeypatch):
    td.predict("bytes", "8 MB", unit="B").compare(measured=12e6)
    another_kernel(monkeypatch, "learn/02_split-2.ipynb")  # a corrected copy asks the same
    guess = td.predict("bytes", unit="B")
    assert guess.value == 8e6
    assert repr(guess) == "Your prediction of bytes: 8,000,000 B"
    assert td.predict("bytes", 7, unit="B").value == 8e6  # it was judged: the first counts
    assert [path.name for path in folder.iterdir()] == ["02_split.json"]


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"predictions": 5}', '{"x": {"bytes": {}}}'])
def test_a_damaged_file_counts_for_nothing_and_is_written_anew(folder, monkeypatch, damaged):
    folder.mkdir()
    (folder / "02_split.json").write_text(damaged)
    assert td.predict("bytes", unit="B").value is None
    td.predict("bytes", 5, unit="B")
    another_kernel(monkeypatch)
    assert td.predict("bytes", unit="B").value == 5


# -- the score -------------------------------------------------------------------------------------


def test_the_score_is_of_this_notebook_and_of_all_and_counts_tasks_too(folder, monkeypatch):
    for question, yours in {"a": 12, "b": 11, "c": 99, "d": None}.items():
        td.predict(question, yours).compare(measured=12)
    assert td.score().rows == [("02 split", "3 of 4", "1", "3 of 12")]
    for answer in ("1-6 | 7-13 | 14-20 | 21-24", "x", None):
        td.tasks.load_puzzle("24-uneven").check(answer)
    td.tasks.load_puzzle("24-on-4").hint()  # is no try
    another_kernel(monkeypatch, "learn/03_panels.ipynb")
    td.predict("a", 1).compare(measured=1)
    td.tasks.load_puzzle("24-on-4").check("1-7 | 8-12 | 13-18 | 19-24")
    assert td.score().rows == [
        ("02 split", "3 of 4", "1", "3 of 12", "1 of 1", "3 of 3"),
        ("03 panels", "1 of 1", "1", "3 of 3", "0 of 1", "1 of 3"),
        ("all", "4 of 5", "2", "6 of 15", "1 of 2", "4 of 6"),
    ]
    assert "font-weight:bold" in td.score()._repr_html_().split("03 panels")[0].split("<tr")[-1]


# -- the field -------------------------------------------------------------------------------------


def test_what_is_typed_into_the_field_is_kept_and_said():
    guess = td.predict("bytes", unit="B")
    bundle = guess._repr_mimebundle_()
    assert bundle["text/plain"] == repr(Guess("bytes", "B"))
    view = bundle["application/vnd.jupyter.widget-view+json"]
    field = widget._instances[view["model_id"]]
    field.typed = "8 MB"
    assert (guess.value, field.said) == (8e6, "kept: 8,000,000 B")
    field.typed = "8 MB or so"
    assert "units that can be read" in field.said
    assert field.refused == "8 MB or so"
    field.typed = ""
    assert (guess.value, field.said, field.refused) == (8e6, "", "")


def test_a_prediction_without_widgets_is_its_text(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiledask.lab.learner.field", None)
    assert list(td.predict("bytes", unit="B")._repr_mimebundle_()) == ["text/plain"]
