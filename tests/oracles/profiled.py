"""Traces as profilers would write them, of runs whose one fault is known.

simulated run, with jitter --> labelled spans | kernels of each rank
"""

import gzip
import json
from itertools import pairwise
from typing import NamedTuple

import numpy as np

import tiledask as td

PIECES = 5
"""Kernels of an action."""
GAP = 4e-6
"""Seconds between two kernels."""
FORWARD, BACKWARD = 0.010, 0.020


class Made(NamedTuple):
    name: str
    cause: str
    """The right answer."""
    timelines: list
    """One per training step."""
    tail: float
    """Seconds of the optimizer after each step."""


def made(rng, fault, p, jitter, steps=1, tail=0.0, schedule="1f1b"):
    """A run of ``p`` devices with one fault; the length of each action is off by ``jitter``."""
    m = {"one at a time": 1, "ramp": max(2, p // 2) if schedule == "gpipe" else p}.get(fault, 2 * p)
    scale = np.ones(p)
    latency = overhead = 0.0
    if fault == "one at a time":
        schedule = "naive"
    elif fault == "imbalance":
        scale[rng.integers(p)] = 2.6
        m = min(4 * p, 12)
    elif fault == "communication":
        latency, m = 1.8 * FORWARD, min(3 * p, 12)
    elif fault == "overhead":
        overhead, m = 1.2 * FORWARD, min(4 * p, 12)
    order = td.schedule(schedule, p, m)
    runs = []
    for _ in range(steps):
        noise = [1 + jitter * rng.normal(size=(p, m)) for _ in "FB"]
        times = [
            t * scale[:, None] * np.maximum(0.5, off) + overhead
            for t, off in zip((FORWARD, BACKWARD), noise, strict=True)
        ]
        run = td.simulate(order, times[0].tolist(), times[1].tolist(), latency)
        frame = run.to_frame()
        frame["start"] += overhead
        runs.append(frame)
    jitters = f"jitter {100 * jitter:.0f} %"
    name = f"{fault}, {schedule}, p={p}, m={m}, {jitters}, {steps} steps, tail {tail}"
    return Made(name, fault, runs, tail)


def steps_of(run):
    """(number, seconds at which it begins, its frame, when it ends) of each step."""
    begin = 0.5
    for number, frame in enumerate(run.timelines):
        end = begin + frame.end.max() + run.tail
        yield number, begin, frame, end
        begin = end + 0.004


def _span(name, cat, pid, tid, start, end, **args):
    times = {"ts": 4.5e12 + 1e6 * start, "dur": 1e6 * (end - start)}
    return {"ph": "X", "name": name, "cat": cat, "pid": pid, "tid": tid, **times, "args": args}


def ranks(run, p, labels="", gpu_marks=True):
    """The events of each rank: every rank sees one GPU, its device 0.

    Kernels with gaps and transfers beside them; the CPU runs ahead, and kernels say which launch
    they are of. ``labels``: "PP:{stage}{kind}{microbatch}" or "{word} {microbatch}", or none.
    """
    return [_rank(run, d, labels, gpu_marks) for d in range(p)]


def _rank(run, d, labels, gpu_marks):
    process = 4000 + d
    events = [_span("PyTorch Profiler (0)", "Trace", "Spans", "PyTorch Profiler", 0.4, 9.0)]
    launch = 0
    for number, begin, frame, end in steps_of(run):
        mark = f"ProfilerStep#{number + 3}"
        events.append(_span(mark, "user_annotation", process, process, begin - 0.002, end - 0.003))
        mine = frame[frame.device == d]
        if gpu_marks:
            first, last = begin + mine.start.min(), begin + mine.end.max() + run.tail
            events.append(_span(mark, "gpu_user_annotation", 0, 7, first, last))
        cpu = begin
        for row in mine.itertuples():
            edges = begin + np.linspace(row.start, row.end, PIECES + 1)
            for a, b in pairwise(edges):
                launch += 1
                cpu += 1e-5
                call = _span("cudaLaunchKernel", "cuda_runtime", process, process, cpu, cpu + 5e-6)
                call["args"]["correlation"] = launch
                kernel = _span(
                    "ampere_sgemm_128x64_tn",
                    "kernel",
                    0,
                    7,
                    a,
                    b - GAP,
                    device=0,
                    stream=7,
                    correlation=launch,
                )
                events += [call, kernel]
            if labels:
                word = "Forward" if row.kind == "F" else "Backward"
                name = labels.format(word=word, **row._asdict())
                a, b = begin + row.start, begin + row.end - GAP
                events.append(_span(name, "gpu_user_annotation", 0, 7, a, b))
                sent = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
                events.append(_span(name, "gpu_user_annotation", 0, 20, a - 1e-3, a))
                events.append(_span(sent, "kernel", 0, 20, a - 1e-3, a, device=0, stream=20))
        if run.tail:
            a = begin + mine.end.max()
            name = "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
            events.append(_span(name, "kernel", 0, 7, a, a + run.tail, device=0, stream=7))
    return events


def write_ranks(folder, events, packed=False):
    folder.mkdir()
    for rank, mine in enumerate(events):
        text = json.dumps(
            {
                "schemaVersion": 1,
                "distributedInfo": {"backend": "nccl", "rank": rank},
                "baseTimeNanoseconds": 1790857026000000000,
                "traceEvents": mine,
            }
        )
        if packed:
            (folder / f"host_{rank}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"host_{rank}.pt.trace.json").write_text(text)
    return folder
