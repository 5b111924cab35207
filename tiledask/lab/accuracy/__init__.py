"""The planner against published numbers.

`python -m tiledask.lab.accuracy.page` makes a page of all of them.

runs      published numbers by their id; published runs in the planner's words
evaluate  every number beside ours, in groups with a goal
"""

from tiledask.lab.accuracy.runs import published

__all__ = ["published"]
