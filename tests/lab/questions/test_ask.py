"""Laws of all questions: worked out, changed by every input, run; how `tiledask ask` says it."""

import importlib
import io
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from golden.course import others

import tiledask as td
from tiledask import cli
from tiledask.distributed.cluster.cluster import RUNNING
from tiledask.errors import ConfigError
from tiledask.lab.questions.question import MOST_WORKERS
from tiledask.lab.questions.table import QUESTIONS
from tiledask.lab.questions.worked.runs import NEARLY

every = pytest.mark.parametrize("number", QUESTIONS)
OTHERS = others()


BY_THE_CLOCK = (NEARLY, ("within", 0.1))
"""What workers that share the machine with others may miss: shown, and not asked of a test."""


def worked(number, **inputs):
    return td.ask(number, run=False, **inputs)


def missed(run):
    """The claims of a run that fail, but for those that a clock says."""
    failures = {row.quantity: row for row in run.failures}
    print(*failures.values(), sep="\n")
    return [name for name, row in failures.items() if row.rule not in BY_THE_CLOCK]


@pytest.mark.few(13)
@every
def test_an_answer_has_its_working_and_can_be_written_down(number):
    answer = worked(number)
    text, told = answer.to_text(120), answer.to_dict()
    assert len(answer.worked.lines) >= 3
    assert any(char.isdigit() for char in answer.worked.answer)
    for words in (*answer.inputs, answer.title):
        assert words in " ".join(text.split())
    assert json.loads(json.dumps(told)) == told
    assert answer.title.replace("'", "&#x27;") in answer._repr_html_()
    assert answer.run is None


@pytest.mark.few(2)
@every
def test_every_input_changes_the_answer(number):
    before = worked(number)
    assert before.inputs
    assert {*before.inputs} == {*OTHERS[number]}
    for name, other in OTHERS[number].items():
        after = worked(number, **{name: other})
        assert after.inputs[name] != before.inputs[name], name
        assert dict(after.values) != dict(before.values), f"{name}={other} changes nothing"


@pytest.mark.few(3)
@every
def test_every_figure_can_be_drawn(number):
    answer = worked(number)
    if answer.worked.figure is not None:
        answer.figure().savefig(io.BytesIO(), format="png")


@every
def test_what_is_typed_is_what_is_given(number):
    for name, each in QUESTIONS[number].inputs.items():
        other = OTHERS[number][name]
        typed = ",".join(map(str, other)) if isinstance(other, list) else str(other)
        value = each.value(name, other)
        assert each.value(name, typed) == each.value(name, value) == value
        assert name not in ("run", "cluster")


@every
def test_an_input_that_is_not_there_or_cannot_be_is_an_error_that_names_it(number):
    with pytest.raises(ConfigError, match=f"question {number} has no 'colour'; it has "):
        worked(number, colour="red")
    for name in QUESTIONS[number].inputs:
        with pytest.raises(ConfigError, match=f"{name} .*; got "):
            worked(number, **{name: ["", object()]})


@pytest.mark.cluster
@pytest.mark.few(1)
@every
def test_a_run_bears_it_out(number, cluster):
    answer = td.ask(number, cluster=cluster)
    assert answer.worked.workers <= MOST_WORKERS
    assert missed(answer.run) == []
    assert answer.run.checked >= 2
    assert any(row.measured is not None for row in answer.run.rows)


@pytest.mark.cluster
@pytest.mark.slow
@every
def test_a_run_of_other_inputs_bears_it_out(number, cluster):
    for name, other in OTHERS[number].items():
        answer = td.ask(number, cluster=cluster, **{name: other})
        if answer.run is not None:  # it may take more workers than there are
            assert missed(answer.run) == [], name


@pytest.mark.cluster
def test_workers_that_were_started_for_a_run_are_gone_after_it():
    before = {id(each) for each in RUNNING if each.is_running}
    assert missed(td.ask(5, devices=2).run) == []
    assert {id(each) for each in RUNNING if each.is_running} == before


def test_a_drawing_in_letters_stays_as_it_is_drawn_and_prose_wraps():
    drawn = ["worker 2  -  F1  " + "-  " * 30, "worker 1  F1 -   " + "-  " * 30]
    lines = ["a line of prose, " * 12, *drawn, "3 < 4"]
    given = worked(34)
    answer = replace(given, worked=replace(given.worked, lines=tuple(lines)))
    text = answer.to_text(60)
    assert all(f"  {line}\n" in text for line in drawn)
    assert all(
        len(line) <= 60 for line in text.splitlines() if line.strip() not in map(str.strip, drawn)
    )
    assert f"<pre>{drawn[0]}\n{drawn[1]}</pre><p>3 &lt; 4</p>" in answer._repr_html_()


# -- how it is asked -----------------------------------------------------------------------------


def test_what_takes_more_workers_says_so():
    answer = td.ask(34, devices=6)
    assert answer.run is None
    assert "takes 6 workers, of 4" in str(answer)
    assert "td.start_cluster(workers=6, device='auto')" in answer.not_run


def test_what_counts_numpys_tiles_says_so_on_gpus(monkeypatch):
    module = importlib.import_module("tiledask.lab.questions.ask")
    monkeypatch.setattr(module, "cluster_of", lambda given, what: given)
    answer = td.ask(9, cluster=SimpleNamespace(slots=4, backend="cupy"))
    assert "td.start_cluster(workers=4, device='cpu') will do" in answer.not_run


def test_a_number_that_is_not_there():
    with pytest.raises(ConfigError, match="there is no question 99; there are "):
        td.ask(99)


def test_the_command_says_what_td_ask_says(capsys, tmp_path):
    picture = tmp_path / "cut.svg"
    typed = [
        "ask",
        "34",
        "--set",
        "layers=12",
        "--set",
        "devices=3",
        "--no-run",
        "--json",
        "--figure",
    ]
    assert cli.main([*typed, str(picture)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == worked(34, layers=12, devices=3).to_dict()
    assert told["values"]["sizes"] == [4, 4, 4]
    assert picture.read_text("utf-8").lstrip().startswith("<?xml")


def test_the_list_has_all_questions(capsys):
    assert cli.main(["ask", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["questions"]) == [str(number) for number in QUESTIONS]
    assert told["questions"]["34"]["inputs"]["layers"]["default"] == 24


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("ask 34 --set layers", "--set takes inputs and values"),
        ("ask 5 --figure five.svg", "the answer to question 5 has no figure"),
        ("ask 34 --set run=1", "question 34 has no 'run'"),
        ("ask 34 --set layers=2", "2 layers are fewer than 4 stages"),
        ("ask xyzzy --no-run", "no question is near 'xyzzy'; the nearest are"),
    ],
)
def test_a_mistake_is_explained(capsys, typed, words):
    assert cli.main(typed.split()) == 2
    assert words in capsys.readouterr().err
