"""What the bench of hosts measures, run on host A: each row is printed as JSON when it is there.

TWO     a connected worker on A and one on B         products, dask.array, trainings: the same
ONE     two connected workers on A                   work in each place, in rounds that take
OURS    two workers of td.start_cluster on A         turns

``python -m tiledask.lab.bench.hosts.client`` takes its Options as JSON, of schedulers that run.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import wait

import tiledask as td
from tiledask.distributed.arrays.array import ShardedArray
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.bench.hosts.link import measure_link
from tiledask.lab.bench.hosts.rows import Told, Way, in_turns, row, timed
from tiledask.lab.bench.records import resumed
from tiledask.lab.store import Store

__all__ = ["CHUNKS", "LAYOUTS", "ONE", "OURS", "TWO", "Options", "measure", "training_of"]

TWO, ONE, OURS = "two hosts", "one host, td.connect", "td.start_cluster"
LAYOUTS = ((1, 2, 1), (1, 1, 2), (2, 1, 1))
"""(dp, tp, pp)."""
CHUNKS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "quarters": lambda n: ((n // 4, n // 4), (n // 4, n // 4)),
    "halves": lambda n: ((n // 2, n // 2), (n // 2, n // 2)),
    "rows by columns": lambda n: ((n // 2, n), (n, n // 2)),
    "rows by whole": lambda n: ((n // 2, n), (n, n)),
    "halves of k": lambda n: ((n, n // 2), (n // 2, n)),
}
"""How the two operands of dask.array are cut; it has its own default besides."""
DEFAULT = "auto"
_seeds = count()


@dataclass(frozen=True)
class Options:
    """What is measured, and where."""

    sizes: tuple[int, ...]
    pairs: int
    """Rounds of a product."""
    large_pairs: int
    """Rounds of dask.array's products from 8192 on."""
    trainings: int
    """Rounds of a training."""
    steps: tuple[int, int]
    """Of the shorter and of the longer training whose difference is timed."""
    unfinished: str
    """A folder: what an interrupted run has measured is there."""
    one: str
    """A scheduler's address."""
    two: str = ""
    """Another's, whose second worker is on host B; empty without two hosts."""
    link: tuple[str, int] | None = None
    """Where somebody answers on host B."""


def measure(options: Options, known: Store) -> Iterator[dict[str, Any]]:
    """Every row, as it comes or as it is ``known``; what is under way comes as {"now": words}."""
    with ExitStack() as stack:
        places = {
            name: stack.enter_context(td.connect(address, workers=2))
            for name, address in ((TWO, options.two), (ONE, options.one))
            if address
        }
        places[OURS] = stack.enter_context(td.start_cluster(2, device="cpu", quiet=True))
        two = bool(options.two)
        if options.link:
            yield {"now": "the link alone"}
            yield known.once(lambda: _link(*options.link), part="link")
        for n in options.sizes:
            held = cache(partial(_operands, places, n))
            yield {"now": f"{n}^3 in {len(places)} places"}
            ask = partial(_products, n, held, options.pairs)
            yield from known.once(ask, n=n, pairs=options.pairs, two=two)
            yield {"now": f"{n}^3 by dask.array on {next(iter(places))}"}
            pairs = options.large_pairs if n >= 8192 else options.pairs
            ask = partial(_beside_dask, n, places, held, pairs)
            yield from known.once(ask, n=n, beside="dask", pairs=pairs, two=two)
            del held, ask
        if options.two:
            for shape in LAYOUTS:
                yield {"now": f"training {shape}"}
                ask = partial(_trainings, shape, places, options)
                how = {"steps": options.steps, "trainings": options.trainings}
                yield from known.once(ask, shape=shape, **how)


def _link(host: str, port: int) -> dict[str, Any]:
    found = measure_link(host, port)
    return {"part": "link", "latency": found.latency, "bandwidth": found.bandwidth}


# -- products --------------------------------------------------------------------------------------


Both = tuple[ShardedArray, ShardedArray]


def _operands(places: dict[str, Cluster], n: int) -> dict[str, Both]:
    """A and B [n, n], float32, by rows on two workers of each place."""
    found = {}
    for name, cluster in places.items():
        rng, mesh = np.random.default_rng(0), td.Mesh(cluster, (2,))
        a, b = (
            td.distribute(rng.standard_normal((n, n), np.float32), mesh, (td.Shard(0),))
            for _ in "ab"
        )
        found[name] = a, b
    return found


def _ours(operands: Both) -> tuple[float, Told]:
    seconds, c = timed(lambda: operands[0] @ operands[1])
    predicted, counted = c.traffic.predicted.total, c.traffic.measured.total
    return seconds, Told(predicted, counted, c.mesh.cluster.transport, c.made_by)


def _products(n: int, held: Callable[[], dict[str, Both]], pairs: int) -> list[dict[str, Any]]:
    """The same product in each place."""
    work, flop, rows = f"{n}^3", 2.0 * n**3, []
    ways: dict[str, Way] = {name: partial(_ours, both) for name, both in held().items()}
    found = in_turns(ways, pairs)
    for name, mine in found.items():
        other = {TWO: ONE, ONE: OURS}.get(name)
        against = (other, found[other][0]) if other else None
        rows.append(row("hosts", work, name, mine, against, flop))
    return rows


def _beside_dask(
    n: int, places: dict[str, Cluster], held: Callable[[], dict[str, Both]], pairs: int
) -> list[dict[str, Any]]:
    """td.matmul beside dask.array on the same workers: the best of its chunkings, its default."""
    first, cluster = next(iter(places.items()))  # two hosts, if there are
    tried = {
        name: min(_dask(cluster, n, cut(n))[0] for _ in range(2)) for name, cut in CHUNKS.items()
    }
    best = min(tried, key=tried.__getitem__)
    ours, operands, rows = "td.matmul", held()[first], list[dict[str, Any]]()
    ways: dict[str, Way] = {
        ours: lambda: _ours(operands),
        f"dask.array, {best}": lambda: _dask(cluster, n, CHUNKS[best](n)),
        f"dask.array, {DEFAULT}": lambda: _dask(cluster, n, (DEFAULT, DEFAULT)),
    }
    found = in_turns(ways, pairs)
    mine = found[ours]
    for name, theirs in found.items():
        if name != ours:
            kind = "default" if name.endswith(DEFAULT) else "best chunks"
            against = (name, theirs[0])
            rows.append(row("dask", f"{n}^3, {kind}", ours, mine, against, 2.0 * n**3))
            other = row("dask", f"{n}^3, {kind}", name, theirs, None, 2.0 * n**3)
            rows.append(other | {"tried": {chunks: round(s, 4) for chunks, s in tried.items()}})
    return rows


def _dask(cluster: Cluster, n: int, chunks: tuple[Any, Any]) -> tuple[float, Told]:
    """A product of fresh operands: of the same ones Dask would give the result that it keeps."""
    x, y = (
        da.random.default_rng(next(_seeds)).standard_normal((n, n), chunks=each, dtype=np.float32)
        for each in chunks
    )
    x, y = cluster.client.persist([x, y])
    _settled(cluster, [x, y])

    def multiplied() -> da.Array:
        made = cluster.client.persist(x @ y)
        _settled(cluster, [made])
        return made

    seconds, _ = timed(multiplied)
    return seconds, Told(how=str(chunks), transport="Dask's messages")


def _settled(cluster: Cluster, arrays: list[da.Array]) -> None:
    wait(cluster.client.futures_of(arrays), timeout=300)


# -- trainings -------------------------------------------------------------------------------------


def training_of(shape: tuple[int, int, int]) -> str:
    """The name of a training with these (dp, tp, pp)."""
    return f"GPT, (dp, tp, pp) = {shape}"


def _trainings(
    shape: tuple[int, int, int], places: dict[str, Cluster], options: Options
) -> list[dict[str, Any]]:
    """Seconds of a step on two hosts and on one."""
    text = td.load_text("tales")
    model = td.GPT(text.vocabulary, hidden=128, layers=4, heads=4, sequence=64)
    few, many = options.steps
    losses: dict[str, list[float]] = {}

    def way(name: str) -> tuple[float, Told]:
        mesh = td.Mesh(places[name], shape)
        run = partial(td.train, model, text, mesh, batch=8, microbatches=2, progress=False)
        short, _ = timed(lambda: run(steps=few))
        long, trained = timed(lambda: run(steps=many))
        losses[name] = trained.losses.tolist()
        step = trained.records.totals("step")[many - 1]
        predicted = trained.program.traffic.total
        told = Told(predicted, step.sent, places[name].transport, "a step")
        return (long - short) / (many - few), told

    rows = []
    found = in_turns({name: partial(way, name) for name in (TWO, ONE)}, options.trainings)
    for name, mine in found.items():
        against = (ONE, found[ONE][0]) if name == TWO else None
        same = {"same losses": losses[TWO] == losses[ONE]}
        rows.append(row("training", training_of(shape), name, mine, against) | same)
    return rows


def _tell(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    given = Options(**json.loads(sys.argv[1]))
    with resumed("hosts", lambda now: _tell({"now": now}), Path(given.unfinished)) as known:
        for each in measure(given, known):
            _tell(each)
