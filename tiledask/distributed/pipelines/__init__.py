"""Schedules of a pipeline run on workers, by tasks or by loops, and when every action ran.

pipeline.py        run_schedule
job.py             one run: who does what next, and what was heard of it
pipeline_tasks.py  each action a Dask task
pipeline_loop.py   each device one task
actions.py         what one action does
stages.py          stages that compute, and one that only takes its time
run.py             what came out: results, Timeline, traffic
program_run.py     run_program: a program of a schedule, line by line, on threads or workers
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
