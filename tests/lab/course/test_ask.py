"""Laws of all questions: worked out, changed by every input, run; how `tiledask ask` says it."""

import json

import pytest
from golden.course import others
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask import cli
from tiledask.distributed.cluster.cluster import RUNNING
from tiledask.errors import ConfigError
from tiledask.lab.course import runs, sizes
from tiledask.lab.course.ask import MOST_WORKERS
from tiledask.lab.course.runs import NEARLY
from tiledask.lab.course.table import QUESTIONS
from tiledask.plan.pipelines.timeline import Timeline

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
    before = {id(each) for each in RUNNING if each.status == "running"}
    assert missed(td.ask(5, devices=2).run) == []
    assert {id(each) for each in RUNNING if each.status == "running"} == before


def test_what_takes_more_workers_says_so():
    answer = td.ask(34, devices=MOST_WORKERS + 2)
    assert answer.run is None
    assert "takes 6 workers, of 4" in str(answer)
    assert "td.start_cluster(workers=6)" in answer.not_run


def test_the_command_says_what_td_ask_says(capsys):
    typed = ["ask", "34", "--set", "layers=12", "--set", "devices=3", "--no-run", "--json"]
    assert cli.main(typed) == 0
    assert json.loads(capsys.readouterr().out) == worked(34, layers=12, devices=3).to_dict()


# -- what cannot be asked, and laws of single questions --------------------------------------------


@pytest.mark.parametrize(
    ("number", "inputs", "rule"),
    [
        (1, {"blocking": "3x3"}, "blocking of 3x3 is not one of 4 workers"),
        (1, {"m": 48, "n": 36, "k": 24, "tile": 8, "memory": "1MB"}, "a worker would hold 8"),
        (2, {"memory": "1kB"}, "has room for 0"),
        (4, {"columns": 3, "gpus": 4}, "columns cut over 4 devices is 4 or more, got 3"),
        (5, {"d": 3}, "d cut over 4 devices"),
        (6, {"largest": 1}, "leaves some worker without a row"),
        (6, {"device": "H900"}, "no hardware description is called"),
        (8, {"kernel": "wgmma_ws_persistent"}, "does not run on L4: needs compute capability"),
        (9, {"device": "T4"}, "does not run on a T4: needs compute"),
        (9, {"size": 100}, "size a multiple of 64 x workers"),
        (17, {"polled": [101, 2]}, "2 to 256 percentages"),
        (30, {"hidden": 18}, "take a multiple of 4"),
        (35, {"working": 4}, "workers are 1 to 3, got 4"),
        (39, {"forward": [1, 1, 1]}, "3, one per stage"),
    ],
)
def test_what_cannot_be_is_refused_with_the_rule(number, inputs, rule):
    with pytest.raises(ValueError, match=rule):
        td.ask(number, run=False, **inputs)


def test_claims_notice_workers_that_wait_too_long_or_work_at_once():
    """Planted: a batch that takes half as long again; one whose second worker does not wait."""
    t = td.simulate(runs.one_batch([0, 1]), 1.0, 1.0)

    def failed(*spans):
        seen = Timeline.of(2, [(d, k, d, 0, *at) for d, k, *at in spans], "measured")
        rows = runs.timed_claims([2.0, 2.0], 4.0, t, seen)
        return [row.quantity for row in rows if row.verdict.holds is False]

    right = (0, "F", 0, 1), (1, "F", 1, 2), (1, "B", 2, 3), (0, "B", 3, 4)
    late = (0, "F", 0, 1), (1, "F", 3, 4), (1, "B", 4, 5), (0, "B", 5, 6)
    at_once = (0, "F", 0, 1), (1, "F", 0, 1), (1, "B", 2, 3), (0, "B", 3, 4)
    assert failed(*right) == []
    assert failed(*late) == ["utilisation"]
    assert failed(*at_once) == ["order of the blocks"]


@given(
    st.sampled_from([7, 30]),
    st.builds(
        td.Layout,
        dp=st.sampled_from([1, 2, 4]),
        tp=st.sampled_from([1, 2]),
        pp=st.sampled_from([1, 4]),
        zero=st.sampled_from([0, 1, 2, 3]),
    ),
    st.sampled_from(sizes.CONVENTIONS),
)
@settings(max_examples=40, deadline=None)
def test_the_working_of_states_comes_to_the_bytes_that_it_says(billions, layout, recipe):
    size, words = sizes.states(billions, layout, recipe)
    sum_, _, shown = words.partition(" = ")
    assert eval(sum_.replace(" B x", " *").replace("e9", "")) == pytest.approx(size / 1e9)
    assert shown == td.plan.units.format_bytes(size)


@pytest.mark.parametrize("billions", [0.3, 7, 30, 70, 200, 1000])
def test_a_decoder_has_the_size_that_was_asked_for(billions):
    model = sizes.decoder(billions)
    assert model.parameters == pytest.approx(billions * 1e9, rel=2e-3)
    assert model.allows_tp(8)
    assert model.layers % 8 == 0
