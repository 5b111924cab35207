"""Schedules: orders of actions, what is wrong with one, when everything happens, how idle it is.

schedule.py     which actions each device does, in which order
schedules.py    the table of schedules by name: a new one is a line here
  generators      the functions that make them
costs.py        how long actions and the ways between stages take
walk.py         the one loop: every device goes on until it lacks a result
needs.py        what an action waits for, and whether an order can run
simulate.py     when each action runs
bound.py        what no order beats, and the path that decides
timeline.py     who did what when, simulated or measured
spans.py        spans in columns: what a Timeline is
  idle.py         idle time in pieces, each with its cause
  footprint.py    memory over time
optimum.py      the best order of a small pipeline
utilisation.py  how many micro-batches reach a utilisation
closed_form.py  what formulas say
"""
