"""Pipeline schedules: orders of actions, when everything happens, how idle it is, and the best."""
