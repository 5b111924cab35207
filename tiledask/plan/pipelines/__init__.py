"""Schedules: orders of actions, what is wrong with one, when everything happens, how idle it is.

schedule.py     which actions each device does, in which order, and what each waits for
validate.py     which rule an order breaks; what it keeps
schedules.py    the table of schedules by name: a new one is a line here
  two_lanes.py    those with two stages on a device; zb_auto.py: made for the seconds given
costs.py        how long actions and the ways between stages take
simulate.py     the Timeline of a schedule
timeline.py     who did what when, simulated or measured; idle time in pieces, each with its cause
optimum.py      the best order of a small pipeline
"""
