"""tiledask's page in the Dask dashboard, and the same page as a file.

On a cluster that ``td.start_cluster`` starts or that ``td.connect`` connects to, the page is there.
On another one:

    dask scheduler --preload tiledask.lab.dashboard
    client.register_plugin(tiledask.lab.dashboard.Recorder())    # if it runs already

recorder     collects events and tasks: a ReportedRun each
views        what is drawn of one: a View of boxes in lanes, idle shares, facts
board        a View in Bokeh
page, saved  the page in the dashboard, and `td.report`: the same as a file
"""

import logging
from typing import TYPE_CHECKING

from tiledask.extras import needed_for
from tiledask.lab.dashboard.recorder import Collector

if TYPE_CHECKING:
    from distributed import Scheduler

__all__ = ["Recorder", "dask_setup", "open_page"]


class Recorder(Collector):
    """Collects what the page shows, and puts the page into the dashboard when it starts.

    On a cluster that runs already: ``client.register_plugin(tiledask.lab.dashboard.Recorder())``.
    """

    async def start(self, scheduler: "Scheduler") -> None:
        """Called by Dask: once with the scheduler, or when the plugin is registered later."""
        await super().start(scheduler)
        try:
            with needed_for("it"):
                from tiledask.lab.dashboard.page import put_into

                put_into(scheduler)
        except Exception as error:  # a page is worth no scheduler
            logging.getLogger(__name__).warning("no page in the dashboard: %s", error)


async def open_page(scheduler: "Scheduler") -> None:
    """None; the page is in the dashboard of a scheduler that runs already."""
    await scheduler.register_scheduler_plugin(Recorder(), idempotent=True)


def dask_setup(scheduler: "Scheduler") -> None:
    """Called by Dask on a scheduler that preloads this module."""
    scheduler.add_plugin(Recorder(), idempotent=True)
