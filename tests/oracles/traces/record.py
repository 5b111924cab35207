"""Records the traces beside it: torch's pipelining runtime over gloo, under torch.profiler.

    python -m venv v && v/bin/pip install torch==2.13.0 numpy && v/bin/python record.py [CASE ...]

A process per rank; a stage sleeps instead of computing, so what is wrong with each run is known.
Files are what `export_chrome_trace` wrote, packed.
"""

import multiprocessing
import os
import queue
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules as runtime
from torch.distributed.pipelining.stage import PipelineStage
from torch.profiler import ProfilerActivity, profile, record_function

HERE = Path(__file__).parent
WIDTH = 8
# name: schedule, ranks, chunks per rank, micro-batches, steps, and what is not as it should be;
# all in seconds. "slow" is rank: factor; "link" the time a block travels; "overhead" comes before
# each action, "optimizer" after each step, and naps are "longer" times as long.
CASES = {
    "layer_wise_4": {"schedule": "GPipe", "ranks": 4, "m": 1},
    "layer_wise_2_three_steps": {"schedule": "GPipe", "ranks": 2, "m": 1, "steps": 3},
    "layer_wise_3_optimizer": {"schedule": "GPipe", "ranks": 3, "m": 1, "optimizer": 0.01},
    "layer_wise_4_chunks": {"schedule": "LoopedBFS", "ranks": 2, "chunks": 2, "m": 1},
    "gpipe_few": {"schedule": "GPipe", "ranks": 4, "m": 2},
    "gpipe_few_two_steps": {"schedule": "GPipe", "ranks": 4, "m": 4, "steps": 2},
    "1f1b_few": {"schedule": "1F1B", "ranks": 4, "m": 4, "longer": 4},
    "1f1b_few_optimizer": {"schedule": "1F1B", "ranks": 3, "m": 3, "steps": 2, "optimizer": 0.02},
    "interleaved_few": {
        "schedule": "Interleaved1F1B",
        "ranks": 4,
        "chunks": 2,
        "m": 4,
        "longer": 8,
    },
    "gpipe_slow_last": {"schedule": "GPipe", "ranks": 4, "m": 8, "slow": {3: 3.0}},
    "1f1b_slow_third": {"schedule": "1F1B", "ranks": 4, "m": 8, "slow": {2: 2.5}},
    "1f1b_slow_first": {"schedule": "1F1B", "ranks": 2, "m": 8, "slow": {0: 2.0}, "steps": 2},
    "interleaved_slow": {
        "schedule": "Interleaved1F1B",
        "ranks": 2,
        "chunks": 2,
        "m": 6,
        "slow": {1: 2.5},
    },
    "1f1b_slow_links": {"schedule": "1F1B", "ranks": 3, "m": 9, "link": 0.02},
    "gpipe_slow_links": {"schedule": "GPipe", "ranks": 3, "m": 4, "link": 0.03},
    "1f1b_overhead": {"schedule": "1F1B", "ranks": 2, "m": 8, "overhead": 0.012},
}
USUAL = {
    "chunks": 1,
    "steps": 1,
    "slow": {},
    "link": 0.0,
    "overhead": 0.0,
    "optimizer": None,
    "longer": 1,
}
FORWARD, BACKWARD = 0.006, 0.012


class Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_seconds = backward
        with record_function("layers forward"):
            time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        with record_function("layers backward"):
            time.sleep(ctx.backward_seconds)
        return grad.clone(), None, None


class Stage(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))
        self.factor = factor

    def forward(self, x):
        return Nap.apply(x * self.weight, FORWARD * self.factor, BACKWARD * self.factor)


class Sleepy(torch.optim.SGD):
    def __init__(self, parameters, seconds):
        super().__init__(parameters, lr=1e-3)
        self.seconds = seconds

    def step(self, closure=None):
        time.sleep(self.seconds)
        return super().step(closure)


def rank_of(case, rank, meeting, folder):
    options = USUAL | CASES[case]
    ranks, m, chunks = options["ranks"], options["m"], options["chunks"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    slower = options["longer"] * options["slow"].get(rank, 1.0) / chunks
    stages = [
        PipelineStage(Stage(slower), rank + c * ranks, ranks * chunks, torch.device("cpu"))
        for c in range(chunks)
    ]
    if options["link"]:
        runtime._batch_p2p = slow_links(options["link"])
    for stage in stages:
        for name in ("forward_one_chunk", "backward_one_chunk"):
            setattr(stage, name, after(options["overhead"], getattr(stage, name)))
    maker = runtime.get_schedule_class(options["schedule"])
    loss = torch.nn.functional.mse_loss
    many = issubclass(maker, runtime.PipelineScheduleMulti)
    schedule = maker(stages if many else stages[0], m, loss_fn=loss)
    weights = [stage.submod.weight for stage in stages]
    optimizer = options["optimizer"] and Sleepy(weights, options["optimizer"])
    rows = torch.ones(2 * m, WIDTH)

    def step():
        is_last = rank == ranks - 1
        schedule.step(*([rows] * (rank == 0)), **({"target": rows} if is_last else {}))
        if optimizer:
            optimizer.step()

    step()  # shapes are told, pairs connect
    marks = torch.profiler.schedule(wait=0, warmup=1, active=options["steps"], repeat=1)
    path = folder / f"rank{rank}.json.gz"

    def write(profiler):
        profiler.export_chrome_trace(str(path))

    with profile(activities=[ProfilerActivity.CPU], schedule=marks, on_trace_ready=write) as run:
        for _ in range(1 + options["steps"]):
            step()
            run.step()
    dist.barrier()
    dist.destroy_process_group()


def slow_links(seconds):
    """In the runtime's place: a block arrives ``seconds`` late, and its sender goes on at once."""
    waiting = queue.Queue()

    def carry():
        while True:
            due, op = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            dist.isend(op.tensor, group=op.group, tag=op.tag, group_dst=op.group_peer).wait()

    threading.Thread(target=carry, daemon=True).start()

    def batch(ops, desc=None):
        received = []
        for op in ops:
            if op.op is dist.isend:
                waiting.put((time.monotonic() + seconds, op))
            else:
                received.append(
                    dist.irecv(op.tensor, group=op.group, tag=op.tag, group_src=op.group_peer)
                )
        return received

    return batch


def after(seconds, call):
    def later(*args, **kwargs):
        time.sleep(seconds)
        return call(*args, **kwargs)

    return later if seconds else call


def record(case):
    ranks = range(CASES[case]["ranks"])
    folder = HERE / case
    folder.mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as temporary:
        meeting = Path(temporary) / "meeting"
        runs = [context.Process(target=rank_of, args=(case, r, meeting, folder)) for r in ranks]
        for run in runs:
            run.start()
        for run in runs:
            run.join(300)
    assert all(run.exitcode == 0 for run in runs), case


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in sys.argv[1:] or CASES:
        record(name)
        print(name)
