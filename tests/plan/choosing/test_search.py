"""Searches of layouts: complete, pruned rightly, in order; what binds; what would be better."""

from dataclasses import replace

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.choosing import sensitivity
from tiledask.plan.choosing.critique import critique
from tiledask.plan.choosing.search import HEADS, LEAST, Space, plan_table, search
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.tables import format_value

MODEL, CLUSTER = td.load_model("llama-3.1-8b"), td.load_cluster("16xA100-80GB")


def test_what_fits_comes_first_and_the_fastest_of_it():
    space = Space(zero=(0, 1, 3), recompute=("none", "full"), interleave=(1, 2))
    found = search(MODEL, CLUSTER, 64, sequence=4096, space=space)
    assert len({plan.layout for plan in found}) == found.considered == sum(found.counts.values())
    ranks = [("fits", "tight", "no").index(plan.verdict) for plan in found]
    assert ranks == sorted(ranks)
    for settled in (14, 20):
        first = found.settle(settled)[:settled]
        assert [p.seconds for p in first] == sorted(p.seconds for p in first)
        assert max(plan.by_formula for plan in first) <= found[settled].by_formula
    for rank in (0, 1, 2):
        rest = [plan for n, plan in enumerate(found) if ranks[n] == rank and n >= 20]
        assert rest == sorted(rest, key=lambda p: p.peak if rank == 2 else p.by_formula)


@pytest.mark.parametrize("case", [("mixtral-8x7b", "16xH100", 64), ("gpt2", "4xH100", 512)])
def test_of_a_table_no_more_columns_are_left_out_than_must_be(case):
    found = search(*case, space=Space(flash_attention=(False, True), expert_tp=(0, 1)))
    fields = {head: name for name, head in HEADS.items()}
    for plans in (found[:1], found[:10], found[::301], found[-9:]):
        shown, cells = plan_table(plans, "all of them"), {}
        for head, name in fields.items():
            cells[head] = [format_value(getattr(plan.layout, name)) for plan in plans]
        columns = [[*map(str, column)] for column in zip(shown.head, *shown.rows, strict=True)]
        wide = sum(max(map(len, column)) + 2 for column in columns) - 2
        left_out = [*filter(None, shown.title.partition("not shown: ")[2].split(", "))]
        assert wide <= 80 or not {*shown.head} & {*LEAST}
        assert not left_out or wide + 2 + max(map(len, (left_out[-1], *cells[left_out[-1]]))) > 80
        for head in {*fields} - {*left_out}:  # what varies has a column
            assert (head in shown.head) == (len({*cells[head]}) > 1)


@pytest.mark.parametrize("few", [0, 200, 4000])
@pytest.mark.parametrize("case", [("llama-3.1-70b", "8xH100", 64), ("mixtral-8x7b", "16xH100", 64)])
def test_what_a_limit_buys_is_the_best_of_a_search_without_it(monkeypatch, few, case):
    monkeypatch.setattr(sensitivity, "FASTEST", few)
    now, there = search(*case), td.load_cluster(case[1])
    found = sensitivity.sensitivity(*case, plans=now if few else None)
    assert ({each.limit for each in found[:2]} == {"memory", "devices"}) == ("70b" in case[0])
    assert len(found) == 7
    for each in found:
        other = replace(there, **sensitivity._relaxed(there, 2.0)[each.limit])
        after = search(case[0], other, 64).best
        assert (each.before.layout, each.after.layout) == (now.best.layout, after.layout)
        ratio = now.best.seconds / after.seconds if after.verdict != "no" else 1.0
        assert each.speedup == max(1.0, ratio)
        own = vars(now.best.layout).items()
        assert {*each.changed} == {n for n, v in own if v != getattr(after.layout, n)}


def test_faults_are_named_and_the_advice_is_true():
    model = td.load_model("gpt2-xl")
    found = critique(model, Layout(pp=8, microbatches=8), CLUSTER, sequence=1024)
    bad = {line.claim for line in found.lines if not line.holds}
    assert bad >= {"bubble", "devices", "utilisation"}
    assert not found
    again = critique(model, found.advice[0].layout, CLUSTER, sequence=1024)
    for each in (found, again):
        for advice in each.advice:
            after = td.estimate_step(model, advice.layout, CLUSTER, sequence=1024).total
            assert (advice.fit.verdict, advice.seconds) == ("fits", after)
            assert after < 0.99 * each.step.total
            assert advice.layout.sequences == found.fit.layout.sequences
    found = critique("gpt-200b", Layout(dp=160), "160xA100-40GB")
    assert (found.step, found.to_dict()["verdict"]) == (None, "no")
    assert found.advice[0].fit.verdict == "fits"


RUNS = {
    "megatron-2025": lambda n: n.zero < 2 or n.pp == 1,
    "deepspeed-2021": lambda n: n.tp == n.interleave == 1 and n.zero < 2 + 2 * (n.pp == 1),
    "torchtitan": lambda n: n.zero in (0, 3) and n.sequence_parallel == (n.tp > 1),
}


@pytest.mark.parametrize("framework", RUNS)
def test_what_the_framework_runs_is_proposed_and_the_rest_is_counted(framework):
    """By its own recipe."""
    run = MODEL, "8xH100", 16
    found, every = search(*run, framework=framework), search(*run)
    assert found.recipe.name == ("fsdp-adam" if framework == "torchtitan" else "mixed-adam-16")
    assert {p.layout for p in found} == {p.layout for p in every if RUNS[framework](p.layout)}
    assert found.considered + sum(found.left_out.values()) == every.considered
    assert not every.left_out
    assert all(words.startswith(f"{framework} runs ") for words in found.left_out)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Space(partition=((0, 3, 6),)), "Space partition holds None or 'items'"),
        (lambda: search(MODEL, CLUSTER, 16, space=Space(tp=(32,))).best, "no layout of the space"),
        (lambda: search(MODEL, CLUSTER, 16, space={"tp": 2}), "space is a td.Space"),
        (lambda: sensitivity.sensitivity(MODEL, CLUSTER, 16, times=1), "above 1, got 1"),
        (lambda: search(MODEL, CLUSTER, 16, devices=(1.5,)), "between 1 and the cluster's 16"),
    ],
)
def test_what_does_not_go_together_is_said(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
