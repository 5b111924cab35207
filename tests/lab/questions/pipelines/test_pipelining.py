"""Micro-batches: how many are best, what they mend, and what they are combined with."""

from inspect import signature
from types import SimpleNamespace

import pytest

import tiledask as td
from tiledask.lab.questions.pipelines import diagnosis, pipelining


def worked(number, **inputs):
    return td.ask(number, run=False, **inputs)


# -- 12 --------------------------------------------------------------------------------------------


def test_8_micro_batches_on_4_stages():
    found = worked(12).values
    assert found["utilisation"] == pytest.approx(8 / 11)
    assert found["bubble"] == pytest.approx(3 / 8)
    assert (found["kept"], worked(12, schedule="gpipe").values["kept"]) == (4, 8)


@pytest.mark.parametrize(("stages", "overhead"), [(4, 0.04), (3, 0.01), (8, 0.1), (2, 0.1)])
def test_throughput_has_its_best_between_few_and_many(stages, overhead):
    """The simulator finds the same best number, and no other is as fast."""
    found = worked(12, stages=stages, overhead=overhead).values
    seconds = []
    for m in range(1, 65):
        times = pipelining._pieces(m, 8, 0.03, 0.06, overhead)
        seconds.append(round(td.simulate("1f1b", stages, m, **times).makespan, 9))
    best = 1 + seconds.index(min(seconds))
    assert found["best microbatches"] == best
    assert found["best seconds"] == pytest.approx(min(seconds))
    assert seconds[:best] == sorted(seconds[:best], reverse=True)
    assert seconds[best:] == sorted(seconds[best:])
    assert seconds[0] > min(seconds) < seconds[-1]


def test_without_overhead_more_are_always_better():
    assert "always better" in worked(12, overhead=0.0).worked.answer


# -- 37 --------------------------------------------------------------------------------------------


def test_a_quarter_of_4_wants_micro_batches_and_a_pipelined_schedule():
    answer = worked(37)
    assert answer.values["cause"] == "one at a time"
    assert "micro-batches" in answer.values["remedy"]
    assert "schedule 1f1b" in answer.values["remedy"]
    assert "pipelined schedule" in answer.worked.answer
    assert answer.values["plans told"] == 100
    assert answer.values["gain"] == pytest.approx(1 - (8 + 3) / (8 * 4))


def test_4_accelerators_of_which_one_is_active_by_what_a_monitor_shows():
    """Polled now and then: a quarter of each, on average."""
    polls = "time,a,b,c,d\n" + "\n".join(f"{5 * i},25,25,25,25" for i in range(20))
    said = " ".join(td.diagnose(_file(polls)).summary)
    assert "micro-batches" in said
    assert "schedule 1f1b" in said


def _file(text):
    from io import StringIO

    import pandas as pd

    return pd.read_csv(StringIO(text))


def test_advice_that_only_changes_the_order_is_not_enough():
    """Planted: a remedy in one micro-batch, and one that stays one at a time."""
    found = diagnosis._diagnosed(td.simulate("naive", 4, 1))
    assert diagnosis._is_pipelined(found)
    found.__dict__["remedies"] = found.remedies[1:]
    assert not diagnosis._is_pipelined(found)


@pytest.mark.parametrize("inputs", [{}, {"uneven": 2.0}])
def test_the_remedy_is_run_with_arguments_that_a_run_takes(monkeypatch, inputs):
    """On workers that take exactly as long as they are told to."""
    ran = []

    def executed(cluster, schedule, **times):
        signature(td.run_schedule).bind(schedule, cluster=cluster, engine="loop", **times)
        ran.append(schedule.name)
        return SimpleNamespace(timeline=td.simulate(schedule, **times))

    monkeypatch.setattr(diagnosis, "executed", executed)
    said = diagnosis.run(None, **diagnosis.QUESTION.read(inputs | {"plans": 1}))
    assert ran[0] == "naive" != ran[1]
    assert [row.quantity for row in said.failures] == []


# -- 11 --------------------------------------------------------------------------------------------


def test_devices_utilisation_and_memory_of_each_combination():
    found = worked(11).values
    assert [each["devices"] for each in found.values()] == [2, 2, 4, 8]
    assert [each["utilisation"] for each in found.values()] == pytest.approx([0.5, 0.8, 0.8, 0.8])
    assert [each["bytes"] for each in found.values()] == [240e9, 240e9, 240e9, 120e9]
