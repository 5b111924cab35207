"""Traces as profilers would write them, of runs whose one fault is known.

simulated run, with jitter --> labelled spans | kernels of each rank | polled utilisation
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


def write_merged(path, events):
    """All ranks in one file, each as a process: args.device is 0 everywhere."""
    merged = [e | {"pid": rank} for rank, mine in enumerate(events) for e in mine]
    path.write_text(json.dumps({"traceEvents": merged}))
    return path


def write_polls(path, run, p, period, noise=0.0, rng=None):
    """As nvidia-smi prints them, rounded to whole percents; ``period`` in seconds."""
    spans = [
        (r.device, b + r.start, b + r.end) for _, b, f, _ in steps_of(run) for r in f.itertuples()
    ]
    first, last = min(s[1] for s in spans), max(s[2] for s in spans)
    edges = np.arange(first, last + period, period)
    if period > 0.1:
        edges = edges[:-1]  # in the midst of training, not after it
    lines = ["timestamp, index, utilization.gpu [%]"]
    for d in range(p):
        busy = sum(np.clip(edges - a, 0, b - a) for e, a, b in spans if e == d)
        share = np.diff(busy) / np.diff(edges)
        if noise:
            share = np.clip(share + noise * rng.normal(size=len(share)), 0, 1)
        for k, s in enumerate(share):
            lines.append(f"2026/01/01 10:00:{k * period:09.6f}, {d}, {round(100 * s)} %")
    path.write_text("\n".join(lines))
    return path


def write_spans(path, run):
    """Who was busy from when to when, of the first step, without labels."""
    run.timelines[0][["device", "start", "end"]].to_csv(path, index=False)
    return path
