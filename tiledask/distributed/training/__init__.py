"""A small GPT trained for real, by data, tensor and pipeline parallelism at once.

run.py        train: (dp, tp, pp) ranks, threads or workers; losses, weights and records
  validate.py   what a training is asked for, looked at before a rank starts; its recipe
  planned.py    what each rank calls in a step, before anything runs
  program.py    the program of one rank
    saved.py      checkpoints, taken up again under another layout
    stages.py     the order of a schedule: actions, sends, recvs
    states.py     gradients of several micro-batches, ZeRO, the optimizer's step
      grad_norm.py  the norm of all gradients: clipping, and steps that are left out
    gpt.py        the model in parts that a stage can hold
  progress.py   who looks on: a bar, a function, the dashboard's page
    reports.py    what ranks report, put together step by step
    by_layer.py   barriers, bytes and seconds by layer, predicted and counted
"""

from tiledask.distributed.training.gpt import GPT
from tiledask.distributed.training.reports import Progress
from tiledask.distributed.training.run import Trained, train

__all__ = ["GPT", "Progress", "Trained", "train"]
