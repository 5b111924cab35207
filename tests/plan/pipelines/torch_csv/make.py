"""Writes PyTorch's own schedules as files beside this one, in a folder of its version.

It needs torch alone (CPU), in an environment apart. 2.14.1 writes what 2.13.0 does. 2.15.0 has
waits, and was run as its folders torch/distributed/pipelining and fsdp over 2.14.1.
"""

from pathlib import Path
from types import SimpleNamespace

import torch
from torch.distributed.pipelining import schedules as of_torch

HERE = Path(__file__).parent / torch.__version__.partition("+")[0]
CASES = (  # torch's name, stages, ranks, micro-batches
    ("GPipe", 4, 4, 4),
    ("Interleaved1F1B", 4, 4, 6),  # this is 1F1B: what torch's 1F1B says of itself can't run
    ("Interleaved1F1B", 6, 3, 6),
    ("LoopedBFS", 6, 3, 4),
    ("InterleavedZeroBubble", 6, 3, 6),
    ("ZBVZeroBubble", 6, 3, 6),
    ("DualPipeV", 6, 3, 7),
)


def runtime(kind, stages, ranks, microbatches, rank=0):
    """A schedule of ``kind`` on stages that only say where they are."""
    mine = {
        of_torch.ScheduleZBVZeroBubble: (rank, stages - 1 - rank),
        of_torch.ScheduleDualPipeV: (rank, stages - 1 - rank),
    }.get(kind, range(rank, stages, ranks))
    held = [
        SimpleNamespace(
            stage_index=s,
            num_stages=stages,
            group_size=ranks,
            group_rank=rank,
            group=None,
            is_first=s == 0,
            is_last=s == stages - 1,
            submod=None,
            has_backward=True,
            stage_index_to_group_rank={},
        )
        for s in mine
    ]
    single = issubclass(kind, of_torch.PipelineScheduleSingle)
    return kind(held[0] if single else held, microbatches, loss_fn=lambda y, t: y.sum())


def write() -> None:
    HERE.mkdir(exist_ok=True)
    for name, stages, ranks, microbatches in CASES:
        kind = of_torch.get_schedule_class(name)
        made = runtime(kind, stages, ranks, microbatches)
        if issubclass(kind, of_torch.PipelineScheduleSingle):
            order = made._get_pipeline_order()
            made = runtime(of_torch._PipelineScheduleRuntime, stages, ranks, microbatches)
            made.pipeline_order = {  # what "compute_only" refuses
                rank: [a for a in line if a is None or a.is_compute_op]
                for rank, line in order.items()
            }
        file = f"{name}-{stages}s{ranks}r{microbatches}m-compute_only.csv"
        made._dump_csv(str(HERE / file), format="compute_only")


if __name__ == "__main__":
    write()
