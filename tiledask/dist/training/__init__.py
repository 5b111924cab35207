"""A small GPT trained for real, by data, tensor and pipeline parallelism at once.

run.py        train: (dp, tp, pp) ranks, threads or workers; losses, weights and records
  planned.py    what each rank calls in a step, before anything runs
  program.py    the program of one rank
    saved.py      checkpoints, taken up again under another layout
    stages.py     the order of a schedule: actions, sends, recvs
    states.py     gradients of several micro-batches, ZeRO, the optimizer's step
    gpt.py        the model in parts that a stage can hold
"""

from tiledask.dist.training.gpt import GPT
from tiledask.dist.training.run import Trained, train

__all__ = ["GPT", "Trained", "train"]
