"""Comparisons that are worked out or run at one call, and then looked at.

memory      replay: allocations one after the other under a cap
            run_cases, compare_claims: four questions, planned and run under a cap
schedules   same_work: a schedule's Timeline, with the same work for every device
            compare_schedules: the same as a table: end, idle time, memory, messages
            timeline_of, zero_bubble_table: Table 5 of the Zero Bubble paper, row by row
kernels     ladders, records, recorded: rungs that others published, and runs of ours
trainings   train_with_failures: a small GPT whose workers are killed at chosen steps
            train_with_fault: a training with one of five faults that people make
sweeps      Store: cells that are kept as they come, and measured once
LeNet       lenet_claims, lenet_trainings, lenet_training_claims: what a textbook says of splits
"""

from tiledask.lab.claims import compare_claims, run_cases
from tiledask.lab.ladders import ladders, recorded, records
from tiledask.lab.lenet import lenet_claims, lenet_training_claims, lenet_trainings
from tiledask.lab.published import timeline_of, zero_bubble_table
from tiledask.lab.store import Store
from tiledask.lab.studies.faulty import train_with_fault
from tiledask.lab.studies.interrupted import InterruptedRun, train_with_failures
from tiledask.lab.studies.replay import replay
from tiledask.lab.sweep import compare_schedules, same_work

__all__ = [
    "InterruptedRun",
    "Store",
    "compare_claims",
    "compare_schedules",
    "ladders",
    "lenet_claims",
    "lenet_training_claims",
    "lenet_trainings",
    "recorded",
    "records",
    "replay",
    "run_cases",
    "same_work",
    "timeline_of",
    "train_with_failures",
    "train_with_fault",
    "zero_bubble_table",
]
