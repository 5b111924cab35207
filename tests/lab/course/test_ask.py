"""Laws of all questions: worked out, changed by every input, run; how `tiledask ask` says it."""

import json

import pytest
from golden.course import others

import tiledask as td
from tiledask import cli
from tiledask.distributed.cluster.cluster import RUNNING
from tiledask.errors import ConfigError
from tiledask.lab.course.ask import MOST_WORKERS
from tiledask.lab.course.runs import NEARLY
from tiledask.lab.course.table import QUESTIONS

every = pytest.mark.parametrize("number", QUESTIONS)
OTHERS = others()


def worked(number, **inputs):
    return td.ask(number, run=False, **inputs)


def missed(run):
    """The claims of a run that fail, but for those of a clock, which other work may disturb."""
    failures = {row.quantity: row for row in run.failures}
    print(*failures.values(), sep="\n")
    return [name for name, row in failures.items() if row.rule != NEARLY]


@pytest.mark.few(13)
@every
def test_an_answer_has_its_working_and_can_be_written_down(number):
    answer = worked(number)
    text, facts = answer.to_text(120), answer.to_dict()
    assert len(answer.working) >= 3
    assert any(char.isdigit() for char in answer.answer)
    for words in (*answer.inputs, answer.title):
        assert words in " ".join(text.split())
    assert json.loads(json.dumps(facts)) == facts
    assert answer.run is None


@pytest.mark.few(2)
@every
def test_every_input_changes_the_answer(number):
    before = worked(number)
    assert {*before.inputs} == {*OTHERS.get(number, ())}, "inputs without a row in golden questions"
    for name, other in OTHERS[number].items():
        after = worked(number, **{name: other})
        assert after.inputs[name] != before.inputs[name], name
        assert dict(after.values) != dict(before.values), f"{name}={other} changes nothing"


@every
def test_what_is_typed_is_what_is_given(number):
    for name, each in QUESTIONS[number].inputs.items():
        other = OTHERS[number][name]
        typed = ",".join(map(str, other)) if isinstance(other, list) else str(other)
        value = each.read(name, other)
        assert each.read(name, typed) == each.read(name, value) == value
        assert each.read(name, each.shown(value)) == pytest.approx(value)


@every
def test_an_input_that_is_not_there_or_cannot_be_is_an_error_that_names_it(number):
    with pytest.raises(ConfigError, match=f"question {number} has no 'colour'; it has "):
        worked(number, colour="red")
    for name in QUESTIONS[number].inputs:
        with pytest.raises(ConfigError, match=f"{name} must be .*; got "):
            worked(number, **{name: ["", object()]})


@pytest.mark.cluster
@pytest.mark.few(1)
@every
def test_a_run_bears_it_out(number, cluster):
    answer = td.ask(number, cluster=cluster)
    assert answer.not_run == ""
    assert missed(answer.run) == []
    assert answer.run.counts["checked"] >= 2
    assert any(row.measured is not None for row in answer.run.rows)


@pytest.mark.cluster
def test_workers_that_were_started_for_a_run_are_gone_after_it():
    before = {id(each) for each in RUNNING if each.is_running}
    assert missed(td.ask(5, devices=2).run) == []
    assert {id(each) for each in RUNNING if each.is_running} == before


def test_what_takes_more_workers_says_so():
    answer = td.ask(34, devices=MOST_WORKERS + 2)
    assert answer.run is None
    assert "takes 6 workers, of 4" in str(answer)
    assert "td.start_cluster(workers=6)" in answer.not_run


def test_the_command_says_what_td_ask_says(capsys):
    typed = ["ask", "34", "--set", "layers=12", "--set", "devices=3", "--no-run", "--json"]
    assert cli.main(typed) == 0
    assert json.loads(capsys.readouterr().out) == worked(34, layers=12, devices=3).to_dict()
