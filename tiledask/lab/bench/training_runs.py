"""The runs of the bench of training: ours on Dask's workers, torch's on processes beside them.

Every step that is measured is a Step: seconds, and what became of the core-seconds that the
machine had in that time. The words are those of training.py's first lines.
"""

import json
import os
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import psutil

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.ranks.records import Record
from tiledask.distributed.training import GPT, Trained, train
from tiledask.errors import ClusterLostError, DeadlineError
from tiledask.lab.bench.training_cores import Meter
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.tile import layers as tile
from tiledask.tile.datasets import load_text
from tiledask.tile.optimizers import Adam

__all__ = [
    "BATCH",
    "PeerProcesses",
    "RankLayout",
    "Step",
    "TrainingRun",
    "model_of",
    "ours",
    "ring_bytes",
    "same",
    "write_arrays",
]

LAYERS, HEADS, SEQUENCE, BATCH, VOCABULARY = 8, 8, 64, 16, 256
RATE, SEED = 1e-3, 0
PEER = Path(__file__).with_name("training_peer.py")
LIMIT = 600.0
"""Seconds that a training may take."""


class RankLayout(NamedTuple):
    """How the ranks train together."""

    name: str
    shape: tuple[int, int, int]
    """(dp, tp, pp)."""
    microbatches: int = 1

    @property
    def schedule(self) -> Schedule:
        return td.schedule("1f1b", self.shape[2], self.microbatches)


class Step(NamedTuple):
    """One step: seconds, and core-seconds of which the first four add up to the whole."""

    seconds: float
    compute: float
    transfer: float
    scheduling: float
    others: float
    dask: float
    """Of scheduling: threads of Dask, in the workers and in the client's process."""
    idle: float
    """Of scheduling: no process had anything to do."""

    @property
    def share(self) -> float:
        """Share of scheduling in the core-seconds that were not others'."""
        whole = self.compute + self.transfer + self.scheduling
        return self.scheduling / whole if whole else 0.0


@dataclass(frozen=True)
class TrainingRun:
    """What a training of either program was."""

    losses: list[float]
    seconds: list[float]
    """Of each measured step."""
    cpu: list[float]
    """Core-seconds of all ranks' processes in each of them."""
    payload: dict[str, int]
    """Kind and number of ranks -> bytes of the tensors that all ranks bring to it in a step."""
    sent: dict[str, int]
    """The same -> bytes that leave all ranks: counted (ours), by a ring's arithmetic (torch)."""
    steps: tuple[Step, ...] = ()
    """Ours."""
    written: int = 0
    """Bytes that torch's processes handed to system calls in a step."""


def model_of(hidden: int) -> GPT:
    """The small GPT of this width."""
    return GPT(VOCABULARY, hidden, layers=LAYERS, heads=HEADS, sequence=SEQUENCE)


# -- ours ------------------------------------------------------------------------------------------


def ours(
    cluster: Cluster, model: GPT, layout: RankLayout, steps: int, warm: int, dtype: str = "float32"
) -> TrainingRun:
    """A training on Dask's workers; the first ``warm`` steps are not measured."""
    ranks = td.Mesh(cluster, layout.shape)
    with Meter() as meter:
        got = train(
            model,
            load_text("tales"),
            ranks,
            steps=steps,
            batch=BATCH,
            microbatches=layout.microbatches,
            rule=Adam(RATE),
            dtype=dtype,
            seed=SEED,
            progress=False,
            timeout=LIMIT,
        )
    measured = tuple(_steps(got, meter, warm, prod(layout.shape)))
    rows = [r for r in got.records if r.step is not None and r.step >= warm]
    payload, sent = Counter(), Counter()
    for r in rows:
        payload[kind_of(r)] += r.payload
        sent[kind_of(r)] += r.sent
    count = steps - warm
    return TrainingRun(
        got.losses.tolist(),
        [s.seconds for s in measured],
        [s.compute + s.transfer + s.dask for s in measured],
        {kind: n // count for kind, n in payload.items() if n},
        {kind: n // count for kind, n in sent.items() if n},
        measured,
    )


def kind_of(record: Record) -> str:
    """ "all_reduce of 8", or "send"."""
    return record.kind if record.barrier is None else f"{record.kind} of {len(record.group)}"


def _steps(got: Trained, meter: Meter, warm: int, ranks: int) -> Iterator[Step]:
    """The steps from ``warm`` on. A step ends when its ranks have ended it, on the average, and
    begins when the one before has ended so."""
    inside, by_step = Counter(), {}
    for r in got.records:
        inside[r.step] += r.cpu
    for s in got.records.steps:
        by_step.setdefault(s.step, []).append(s)
    ends = {n: fmean(s.end for s in all_) for n, all_ in by_step.items()}
    for n in sorted(by_step)[warm:]:
        mine = by_step[n]
        assert len(mine) == ranks
        seconds = ends[n] - ends[n - 1]
        machine = meter.between(ends[n - 1], ends[n])
        threads, processes = sum(s.cpu for s in mine), sum(s.process for s in mine)
        transfer = inside[n]
        dask = processes - threads + machine.mine
        # the counters are in hundredths of a second: what is none may seem to be less
        others = max(0.0, machine.busy + machine.stolen - processes - machine.mine)
        whole = psutil.cpu_count() * seconds
        yield Step(
            seconds,
            threads - transfer,
            transfer,
            whole - others - threads,
            others,
            dask,
            machine.idle,
        )


# -- torch's ---------------------------------------------------------------------------------------


def write_arrays(path: Path, model: GPT, steps: int, dtype: str) -> None:
    """The weights that `ours` begins with, and its batches, for the peer."""
    text = load_text("tales")
    drawn = [text.batch(SEED, n, BATCH, model.sequence, slice(0, BATCH)) for n in range(steps)]
    ids, targets = (np.stack(each).astype(np.int64) for each in zip(*drawn, strict=True))
    weights = {
        f"{unit}.{name}": w
        for unit in model.units
        for name, w in tile.initialise(
            model.parameters(unit), SEED, prefix=f"{unit}.", dtype=dtype
        ).items()
    }
    np.savez(path, ids=ids, targets=targets, **weights)


class PeerProcesses:
    """Processes of another interpreter, one for each rank, that train when they are told to."""

    def __init__(self, python: str, ranks: int) -> None:
        self.python, self.ranks = python, ranks

    def __enter__(self) -> "PeerProcesses":
        with ExitStack() as stack:
            self._folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tiledask-"))
            self._said = stack.enter_context(open(Path(self._folder) / "errors", "w+"))
            stack.callback(self._kill)
            env = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            command = [self.python, "-I", str(PEER), self._folder]
            self._processes = [
                subprocess.Popen(
                    [*command, str(rank), str(self.ranks)],
                    stdin=subprocess.PIPE,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=self._said,
                    env=env,
                )
                for rank in range(self.ranks)
            ]
            self.version = self._answers()[0]["torch"]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def train(
        self,
        arrays: Path,
        model: GPT,
        layout: RankLayout,
        steps: int,
        warm: int,
        dtype: str = "float32",
    ) -> TrainingRun:
        """Train as `ours` does, with the peer's processes."""
        job = {
            "arrays": str(arrays),
            "shape": layout.shape,
            "microbatches": layout.microbatches,
            "steps": steps,
            "warm": warm,
            "dtype": dtype,
            "rate": RATE,
            "batch": BATCH,
            "count": BATCH * model.sequence,
            "hidden": model.hidden,
            "layers": model.layers,
            "heads": model.heads,
            "sequence": model.sequence,
            "vocabulary": model.vocabulary,
        }
        for process in self._processes:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        found = self._answers()
        losses = np.sum([each["losses"] for each in found if each["losses"]], axis=0).tolist()
        ends = np.array([[t["end"] for t in each["times"]] for each in found]).mean(axis=0)
        cpu, written = (
            [sum(each["times"][n][what] for each in found) for n in range(warm, steps)]
            for what in ("cpu", "written")
        )
        payload = Counter()
        for each in found:
            payload.update(each["payload"])
        payload = {kind: round(n) for kind, n in payload.items()}
        sent = {kind: round(ring_bytes(kind, n)) for kind, n in payload.items()}
        seconds = np.diff(ends)[warm - 1 :].tolist()
        return TrainingRun(losses, seconds, cpu, payload, sent, (), round(fmean(written)))

    def _answers(self) -> list[dict[str, Any]]:
        """A line of JSON from each process; all of them end if one does, or if it takes too long."""  # noqa: E501
        late = threading.Timer(LIMIT, lambda: [p.kill() for p in self._processes])
        late.start()
        try:
            return [self._answer(process, late) for process in self._processes]
        finally:
            late.cancel()

    def _answer(self, process: subprocess.Popen, late: threading.Timer) -> dict[str, Any]:
        for line in process.stdout:
            if line.startswith("{"):  # gloo prints lines of its own
                return json.loads(line)
        if not late.is_alive():
            raise DeadlineError(
                f"torch's {self.ranks} processes had not trained after {LIMIT:g} s; give them "
                f"fewer --steps or a smaller --hidden"
            )
        self._said.seek(0)
        words = (self._said.read().strip().splitlines() or ["without a word"])[-1]
        raise ClusterLostError(
            f"a process of torch's ended ({words}); does {self.python} have torch with gloo?"
        )


def ring_bytes(kind: str, payload: float) -> float:
    """What leaves all ranks together on a ring, of the bytes that they bring together.

    >>> ring_bytes("all_reduce of 4", 400), ring_bytes("send", 400)
    (600.0, 400)
    """
    if kind == "send":
        return payload
    n = int(kind.rpartition(" ")[2])
    return 2 * (n - 1) / n * payload


def same(a: Sequence[float], b: Sequence[float]) -> float:
    """The largest relative difference of two programs' losses."""
    return float(np.abs(np.array(a) / np.array(b) - 1).max())
