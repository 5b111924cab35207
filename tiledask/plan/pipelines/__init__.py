"""Schedules: orders of actions, what is wrong with one, when everything happens, how idle it is.

schedule.py     which actions each device does, in which order
schedules.py    the table of schedules by name: a new one is a line here
  generators      the functions that make them
needs.py        what an action waits for apart from its turn, and whether an order can run
simulate.py     when each action runs
  longest_path.py   the loop over turns and data that says so
  transfers/       how results travel between devices
timeline.py     who did what when, simulated or measured
  idle.py         what each action waited for
  causes.py       idle time in pieces, each with its cause
  footprint.py    memory over time
bound.py, optimum.py      what no order beats; the best order of a small pipeline
closed_form.py, known.py  what formulas say, and where each holds
"""
