"""tiledask's page in the Dask dashboard, and the same page as a file.

On a cluster that ``td.start_cluster`` starts, the page is there. On another one:

    dask scheduler --preload tiledask.lab.dashboard
    client.register_plugin(tiledask.lab.dashboard.Recorder())    # if it runs already
"""

from typing import TYPE_CHECKING

from tiledask.lab.dashboard.recorder import Recorder

if TYPE_CHECKING:
    from distributed import Scheduler

__all__ = ["Recorder", "dask_setup"]


def dask_setup(scheduler: "Scheduler") -> None:
    """Called by Dask on a scheduler that preloads this module."""
    scheduler.add_plugin(Recorder(), idempotent=True)
