"""Benches: `python -m pytest tests/bench` runs them. They print, and assert no speed."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import pytest
from dask.distributed import Client, LocalCluster

from tiledask.plan.units import format_seconds

HERE = Path(__file__).parent
SETTLE = 0.3
"""Seconds between two calls: OpenBLAS's threads keep their cores for 0.1 s after a product."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run over all tests goes without them."""
    asked = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    return None if any(path == HERE or HERE in path.parents for path in asked) else True


@pytest.fixture
def in_turns(capsys: pytest.CaptureFixture, request: pytest.FixtureRequest, record_property):
    """Times implementations in turn, so that a slow moment of the machine slows all of them."""

    def run(ways: dict[str, Callable[[], Any]], base: str, rounds: int = 3) -> dict[str, float]:
        """Median seconds of each; their results are printed beside, if they return facts."""
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        facts: dict[str, Any] = {}
        for turn in range(-1, rounds):  # the first one warms up
            for name in ways if turn % 2 else reversed(ways):
                sleep(SETTLE)
                begun = perf_counter()
                facts[name] = ways[name]()
                if turn >= 0:
                    seconds[name].append(perf_counter() - begun)
        medians = {name: median(found) for name, found in seconds.items()}
        record_property("seconds", seconds)
        with capsys.disabled():
            print(f"\n{request.node.name}, medians of {rounds} rounds in turn")
            for name, took in medians.items():
                said = facts[name] if isinstance(facts[name], str) else ""
                speed = medians[base] / took
                print(f"  {name:34} {format_seconds(took):>8}  {speed:5.2f} x {base}  {said}")
        return medians

    return run


@pytest.fixture(scope="session")
def two_workers():
    import tiledask as td

    with td.start_cluster(workers=2, device="cpu", quiet=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def plain_dask():
    """A client of what users of dask.array have: a process for each core, one thread each."""
    options = {"host": "127.0.0.1", "dashboard_address": ":0"}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster,
        Client(cluster) as client,
    ):
        yield client
