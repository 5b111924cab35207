"""The planner against published numbers.

published   every published number, by its id
measured    memory that devices showed, beside the estimate
verdicts    set-ups that ran or did not, beside what we say of them

`python -m tiledask.lab.accuracy.page` makes a page of exact.py, sources.py and searched.py, tables
of rows.py; runs.py has the published runs, refit.py finds the fitted constants again.
"""

from tiledask.lab.accuracy.rows import published
from tiledask.lab.accuracy.sources import measured, verdicts

__all__ = ["measured", "published", "verdicts"]
