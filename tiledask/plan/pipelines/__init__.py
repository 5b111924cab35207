"""Schedules: orders of actions, what is wrong with one, when everything happens, how idle it is."""
