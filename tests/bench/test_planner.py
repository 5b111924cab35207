"""Schedules of many actions, built and simulated; a search of all layouts."""

import pytest

import tiledask as td


@pytest.mark.parametrize(("name", "stages", "microbatches"), [
    ("1f1b", 16, 256), ("1f1b", 64, 1024), ("zb-h1", 64, 1024),
])  # fmt: skip
def test_schedule(in_turns, name, stages, microbatches):
    def whole():
        built = td.schedule(name, stages, microbatches)
        timeline = td.simulate(built, 1.0, 2.0, 0.1)
        return f"{len(timeline):,} actions, {100 * timeline.bubble_fraction:.1f} % idle"

    in_turns(
        {"build": lambda: td.schedule(name, stages, microbatches), "build, simulate": whole},
        base="build, simulate",
    )


@pytest.mark.parametrize(("model", "cluster", "batch", "sequence"), [
    ("gpt-200b", "160xA100-40GB", 1536, 2048), ("llama-3.1-405b", "10000xH100", 10_000, 8192),
])  # fmt: skip
def test_search(in_turns, model, cluster, batch, sequence):
    def search():
        plans = td.search(model, cluster, batch, sequence=sequence)
        return f"{plans.considered:,} layouts, best {plans.best.seconds:.2f} s a step"

    in_turns({f"{model} on {cluster}": search}, base=f"{model} on {cluster}", rounds=2)
