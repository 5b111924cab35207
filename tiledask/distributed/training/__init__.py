"""A small GPT trained for real, by data, tensor and pipeline parallelism at once.

run.py        train: (dp, tp, pp) ranks, threads or workers; losses, weights and records;
              training_program: what every rank would do, before anything runs
  config.py     its options as one frozen value, checked before a rank starts
  job.py        one rank's way through its steps, and checkpoints, taken up under another layout
    trainer.py    what a rank keeps, and the kernels of its program that use it
    gpt.py        the model in parts that a stage can hold
  progress.py   who looks on: a bar, the dashboard's page

What a step is, instruction by instruction, is written in plan/program/making/training.py.
"""

from tiledask.distributed.training.gpt import GPT
from tiledask.distributed.training.run import Trained, train

__all__ = ["GPT", "Trained", "train"]
