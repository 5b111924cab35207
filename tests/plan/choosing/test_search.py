"""Searches of layouts: complete, pruned rightly, in order; what binds; what would be better."""

from dataclasses import replace
from math import inf

import pytest

import tiledask as td
from tiledask import Layout, Space, critique, search
from tiledask.errors import ConfigError
from tiledask.plan.choosing import sensitivity
from tiledask.plan.choosing.search import HEADS, LEAST, plan_table
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


def relaxed(there, times):
    """Limit -> the cluster of which it is so many times as large."""

    def of_device(**changed):
        return replace(there, device=replace(there.device, **changed))

    def of_link(name):
        link = getattr(there, name)
        return replace(
            there, **{name: replace(link, bytes_per_second=link.bytes_per_second * times)}
        )

    device, node = there.device, round(there.devices_per_node * times)
    peaks = tuple((name, flops * times) for name, flops in device.peak_flops)
    return {
        "memory": of_device(memory_bytes=round(device.memory_bytes * times)),
        "peak FLOP/s": of_device(peak_flops=peaks),
        "memory bandwidth": of_device(memory_bandwidth=device.memory_bandwidth * times),
        "bandwidth within nodes": of_link("within_node"),
        "bandwidth between nodes": of_link("between_nodes"),
        "devices in a node": replace(there, devices_per_node=node),
        "devices": replace(there, devices=round(there.devices * times)),
    }


@pytest.mark.parametrize("few", [0, 200, 4000])
@pytest.mark.parametrize("case", [("llama-3.1-70b", "8xH100", 64), ("mixtral-8x7b", "16xH100", 64)])
def test_what_a_limit_buys_is_the_best_of_a_search_without_it(monkeypatch, few, case):
    monkeypatch.setattr(sensitivity, "FASTEST", few)
    now, other = search(*case), relaxed(td.load_cluster(case[1]), 2.0)
    found = sensitivity.sensitivity(*case, plans=now if few else None)
    assert ({each.limit for each in found[:2]} == {"memory", "devices"}) == ("70b" in case[0])
    assert {each.limit for each in found} == other.keys()
    for each in found:
        after = search(case[0], other[each.limit], 64).best
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
    for name, layout, where in (
        ("gpt2-xl", found.advice[0].layout, CLUSTER),
        ("llama-2-7b", Layout(dp=4, tp=2, microbatches=8), td.load_cluster("8xA100-80GB")),
        ("llama-2-13b", Layout(pp=8, microbatches=8), td.load_cluster("8xA100-40GB")),
    ):
        each = critique(name, layout, where, sequence=1024)
        before = each.step.total if each.step else inf
        for advice in each.advice:
            after = td.estimate_step(name, advice.layout, where, sequence=1024).total
            assert (advice.fit.verdict, advice.seconds) == ("fits", after)
            assert after < 0.99 * before
            assert advice.layout.sequences == layout.sequences
        said = [row["speedup"] for row in each.to_dict()["advice"]]
        assert said == [before / advice.seconds for advice in each.advice]
    for partition in (None, "items"):
        split = Layout(pp=8, microbatches=8, partition=partition)
        advice = critique(model, split, CLUSTER, sequence=1024).advice
        assert {each.layout.partition for each in advice} == {partition}
    found = critique("gpt-200b", Layout(dp=160), "160xA100-40GB")
    assert (found.step, found.to_dict()["verdict"]) == (None, "no")
    assert found.advice[0].fit.verdict == "fits"


RUNS = {
    "megatron-2025": lambda n: n.zero < 2 or n.pp == 1,
    "deepspeed-2021": lambda n: n.tp == n.interleave == 1 and n.zero < 2 + 2 * (n.pp == 1),
    "torchtitan": lambda n: n.zero in (0, 3) and n.sequence_parallel == (n.tp > 1),
}


def test_only_devices_that_may_change_are_a_limit():
    limits = [
        {each.limit for each in td.sensitivity("gpt2", "4xH100", 64, devices=n)} for n in (None, 4)
    ]
    assert (limits[0] - limits[1], len(limits[1])) == ({"devices"}, 6)


@pytest.mark.parametrize("framework", RUNS)
def test_what_the_framework_runs_is_proposed_and_the_rest_is_counted(framework):
    """By its own recipe."""
    run = MODEL, "8xH100", 16
    found, every = search(*run, framework=framework), search(*run)
    assert found.recipe.name == ("fsdp-adam" if framework == "torchtitan" else "mixed-adam-16")
    assert {p.layout for p in found} == {p.layout for p in every if RUNS[framework](p.layout)}
    assert found.considered + sum(found.left_out.values()) == every.considered
    assert (every.left_out, 0 in found.left_out.values()) == ({}, False)
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
