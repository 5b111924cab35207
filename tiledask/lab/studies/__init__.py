"""Comparisons that are worked out or run at one call, and then looked at.

memory      compare_claims: claims about memory, planned and run under a cap
schedules   schedule_on: a schedule by its name, for so many devices
            same_work: a schedule's Timeline, with the same work for every device
            compare_schedules: the same as a table: end, idle time, memory, messages
kernels     records: FLOP/s that a GPU reached
trainings   train_with_failures: a small GPT whose workers are killed at chosen steps
            train_with_fault: a training with one of five faults that people make
LeNet       lenet_claims: what a textbook says of splits
"""

from tiledask.lab.accuracy import records
from tiledask.lab.claims import compare_claims, lenet_claims
from tiledask.lab.studies.spoiled import InterruptedRun, train_with_failures, train_with_fault
from tiledask.lab.sweep import compare_schedules, same_work, schedule_on

__all__ = ["InterruptedRun", "compare_claims", "compare_schedules", "lenet_claims", "records"]
__all__ += ["same_work", "schedule_on", "train_with_failures", "train_with_fault"]
