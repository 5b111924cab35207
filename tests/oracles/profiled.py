"""Traces as torch.profiler would write them, of simulated runs with jitter."""

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
    timelines: list
    """One per training step."""
    tail: float
    """Seconds of the optimizer after each step."""


def made(rng, p, jitter, steps=1, tail=0.0):
    """A run of 1F1B on ``p`` devices; the length of each action is off by ``jitter``."""
    order = td.schedule("1f1b", p, 2 * p)
    runs = []
    for _ in range(steps):
        noise = [np.maximum(0.5, 1 + jitter * rng.normal(size=(p, 2 * p))) for _ in "FB"]
        run = td.simulate(order, (FORWARD * noise[0]).tolist(), (BACKWARD * noise[1]).tolist())
        runs.append(run.to_frame())
    return Made(runs, tail)


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


def _rank(run, d, gpu_marks):
    """The events of a rank, which sees one GPU, its device 0: kernels with gaps, and launches that
    run ahead of them."""
    process = 4000 + d
    events = [_span("PyTorch Profiler (0)", "Trace", "Spans", "PyTorch Profiler", 0.4, 9.0)]
    for number, begin, frame, end in steps_of(run):
        mark = f"ProfilerStep#{number + 3}"
        events.append(_span(mark, "user_annotation", process, process, begin - 0.002, end - 0.003))
        mine = frame[frame.device == d]
        first, last = begin + mine.start.min(), begin + mine.end.max()
        if gpu_marks:
            events.append(_span(mark, "gpu_user_annotation", 0, 7, first, last + run.tail))
        cpu = begin
        for row in mine.itertuples():
            for a, b in pairwise(begin + np.linspace(row.start, row.end, PIECES + 1)):
                cpu += 1e-5
                launch = "cudaLaunchKernel", "cuda_runtime", process, process
                events.append(_span(*launch, cpu, cpu + 5e-6))
                kernel = "ampere_sgemm_128x64_tn", "kernel", 0, 7
                events.append(_span(*kernel, a, b - GAP, device=0, stream=7))
        if run.tail:
            name = "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
            tune = name, "kernel", 0, 7, last, last + run.tail
            events.append(_span(*tune, device=0, stream=7))
    return events


def write_ranks(folder, run, p, gpu_marks=True):
    folder.mkdir()
    for rank in range(p):
        about = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank},
            "baseTimeNanoseconds": 1790857026000000000,
            "traceEvents": _rank(run, rank, gpu_marks),
        }
        (folder / f"host_{rank}.pt.trace.json").write_text(json.dumps(about))
    return folder
