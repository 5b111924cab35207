"""Schedules of a pipeline run on workers, by tasks or by loops, and when every action ran.

pipeline.py        run_schedule
engines.py         one run: each device a task that loops, or each action a Dask task
device.py          what a device does: the kernels of its stages, in their time
stages.py          stages that compute, and one that only takes its time
run.py             what came out: results, Timeline, traffic
program_run.py     run_program: a program of a schedule, op by op, on threads or workers
"""
