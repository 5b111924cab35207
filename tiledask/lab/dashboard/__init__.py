"""tiledask's page in the Dask dashboard, and the same page as a file.

On a cluster that ``td.start_cluster`` starts or that ``td.connect`` connects to, the page is there.
On another one:

    dask scheduler --preload tiledask.lab.dashboard
    client.register_plugin(tiledask.lab.dashboard.Recorder())    # if it runs already

views  what runs have reported, and what is drawn of it: boxes in lanes, idle shares, facts
board  a View in Bokeh
page   the page in the dashboard, from events and tasks; `td.report`: the same as a file
"""

from typing import TYPE_CHECKING

from tiledask.lab.dashboard.page import Recorder

if TYPE_CHECKING:
    from distributed import Scheduler

__all__ = ["Recorder", "dask_setup", "open_page"]


async def open_page(scheduler: "Scheduler") -> None:
    """None; the page is in the dashboard of a scheduler that runs already."""
    await scheduler.register_scheduler_plugin(Recorder(), idempotent=True)


def dask_setup(scheduler: "Scheduler") -> None:
    """Called by Dask on a scheduler that preloads this module."""
    scheduler.add_plugin(Recorder(), idempotent=True)
