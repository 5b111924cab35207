"""Figures of planning: what fits, what is fastest, what binds, where bytes and seconds go.

feasibility       the map of a search: which shapes fit, how fast they are, what forbids the others
pareto            what less memory on a device, or fewer devices, cost in time
memory_bars       bytes by tensor class on every place, against what a device can hold
cut_costs         what each cut in two costs: work, and what is sent across
curves            what was computed or measured at several sizes, on logarithmic axes
step_breakdown    the parts of a step's time, and the MFU that is left
"""
