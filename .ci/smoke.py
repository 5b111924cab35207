"""One of each, on the Dask, NumPy and Python that are here: planned, simulated and run.

    smoke.py         needs the package with its extra `run` and nothing else
    smoke.py plan    needs the base install: the planner

`make test-versions` runs it in many environments. What works is printed; the first thing that does
not ends it.
"""

import logging
import os
import signal
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import tiledask as td


def plan_and_simulate() -> None:
    model, cluster = td.load_model("llama-2-7b"), td.load_cluster("8xA100-80GB")
    plans = td.search(model, cluster, global_batch=64)
    assert td.fits(model, plans.best.layout, cluster).verdict == "fits"
    assert td.partition([1.0] * 24, stages=4).sizes == (6, 6, 6, 6)
    timeline = td.simulate(td.schedule("1f1b", stages=4, microbatches=8), 1.0, 2.0)
    assert abs(timeline.bubble_fraction - 3 / 11) < 1e-12


def products(cluster) -> None:
    """Bytes predicted and measured are equal, and so is C."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(150, 90)), rng.normal(size=(90, 70))
    mesh = td.Mesh(cluster, (2, 2))
    A = td.distribute(a, mesh, (td.Shard(0), td.Shard(1)))
    B = td.distribute(b, mesh, (td.Shard(0), td.Shard(1)))
    for algorithm in (None, "summa", "cannon"):
        C = td.matmul(A, B, algorithm=algorithm)
        assert C.traffic.measured == C.traffic.predicted, algorithm
        assert C.traffic.measured.total > 0
        assert np.allclose(td.to_numpy(C), a @ b)
    rows = td.redistribute(A, (td.Shard(0), td.Replicate()))
    assert np.array_equal(td.to_numpy(rows), a)


def dask_arrays(cluster) -> None:
    """Lazily, and from the workers' blocks."""
    import dask.array as da

    a = np.arange(120.0 * 80).reshape(120, 80)
    x, y = da.from_array(a, chunks=(50, 30)), da.from_array(a.T, chunks=(40, 60))
    with cluster.client.as_current():
        assert np.allclose(td.matmul(x, y).compute(), a @ a.T)
    X = td.from_dask(x.rechunk((60, 40)), td.Mesh(cluster, (2, 2)), (td.Shard(0), td.Shard(1)))
    assert np.array_equal(td.to_numpy(X), a)


def files(cluster) -> None:
    with tempfile.TemporaryDirectory() as folder:
        a = np.arange(100.0 * 60).reshape(100, 60)
        np.save(Path(folder) / "a.npy", a)
        np.save(Path(folder) / "b.npy", a.T.copy())
        A, B = (td.open_array(Path(folder) / name) for name in ("a.npy", "b.npy"))
        td.matmul(A, B, out=Path(folder) / "c.npy", cluster=cluster)
        assert np.allclose(np.load(Path(folder) / "c.npy"), a @ a.T)


def schedules(cluster) -> None:
    x = np.ones((8, 4), "f4")
    stages = td.stages.stack((0, 1, 2), width=4, hidden=8)
    for name in ("gpipe", "1f1b", "zb-h1"):
        order = td.schedule(name, stages=2, microbatches=4)
        for engine in ("tasks", "loop"):
            run = td.run_schedule(order, stages, x, cluster, target=x, engine=engine)
            assert run.traffic.measured == run.traffic.predicted, (name, engine)
            assert 0 < run.timeline.bubble_fraction < 1
            assert run.loss > 0


def trainings(cluster) -> None:
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=2, sequence=16)
    alone = td.train(model, text, (1, 1, 1), steps=2, batch=4)
    split = td.train(model, text, td.Mesh(cluster, (1, 2, 2)), steps=2, batch=4, microbatches=2)
    assert np.allclose(split.losses, alone.losses, rtol=1e-4)


def a_lost_worker(cluster) -> None:
    """What it held comes back with the one that takes its place."""
    import dask.array as da

    a = np.arange(64.0 * 64).reshape(64, 64)
    array = td.from_dask(da.from_array(a, 16) + 1, td.Mesh(cluster, (4,)), (td.Shard(0),))
    os.kill(cluster.run(os.getpid)[2], signal.SIGKILL)
    assert np.array_equal(td.to_numpy(array, timeout=60), a + 1)


def main(*only: str) -> None:
    """All of it; the planner alone, and that nothing else was loaded, if ``only`` is "plan"."""
    names = [name for name in ("numpy", "dask", "distributed") if find_spec(name)]
    print(sys.version.split()[0], *(f"{name} {version(name)}" for name in names), flush=True)
    plan_and_simulate()
    print("planned and simulated", end="", flush=True)
    if only:
        assert names == ["numpy"], f"the base install brought {names}"
        return
    logging.getLogger("tiledask").setLevel(logging.ERROR)  # it would say that Bokeh has no page
    with td.start_cluster(workers=4, device="cpu", quiet=True) as cluster:
        for run in (products, dask_arrays, files, schedules, trainings, a_lost_worker):
            run(cluster)
            print(f", {run.__name__.replace('_', ' ')}", end="", flush=True)
    print()


if __name__ == "__main__":  # workers import this file too
    main(*sys.argv[1:])
