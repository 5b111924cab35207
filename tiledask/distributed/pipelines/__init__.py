"""Schedules of a pipeline run on workers, by tasks or by loops, and when every action ran.

pipeline.py        run_schedule; run_program, on threads or workers; what comes of both
device.py          what a device does: the kernels of its stages, in its time
stages.py          stages that compute, and one that only takes its time
"""
