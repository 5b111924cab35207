"""The tour's own work: start clusters, run the parts in turn, print, write the report."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.markdown import Markdown

import tiledask as td
from tiledask.distributed.cluster.start import choose_device
from tiledask.lab.doctor import examine
from tiledask.lab.report import Report, Section
from tiledask.lab.table import Claim, Comparison
from tiledask.lab.tour.fit import at_scale, on_paper
from tiledask.lab.tour.idle import idle_time
from tiledask.lab.tour.layers import layers_on_devices
from tiledask.lab.tour.product import two_levels
from tiledask.plan.units import format_seconds

__all__ = ["tour"]

WORKERS = 4


def tour(
    folder: str | os.PathLike = "build/tour",
    *,
    device: str = "auto",
    console: Console | None = None,
) -> Report:
    """The Report of the whole story, run on this machine; its page and pictures are in ``folder``.

    ``device`` is "auto", "cuda" or "cpu", as for ``start_cluster``. Tables are printed as their
    part ends; a part that breaks off becomes a claim that fails, and the others go on. Takes
    about a minute on two cores that do nothing else.
    """
    console = console or Console()
    choose_device(device)  # what cannot be had is refused now, not in the middle
    Path(folder).mkdir(parents=True, exist_ok=True)
    report = Report("tiledask: the tour", facts={f.name: f.found for f in examine()})
    begun = perf_counter()
    with _part(report, console, "1. Does it fit? 200 B parameters on 40 GB GPUs") as (section, say):
        on_paper(section)
        say("12 workers with a cap of 40 MB")
        # a cap stands for a device of that size; on a GPU it would be the pool's, so take CPUs
        at_scale(section, partial(td.start_cluster, device="cpu", quiet=True))
    with td.start_cluster(workers=WORKERS, device=device) as cluster:
        title = "2. The two-level tiled product"
        with _part(report, console, title) as (section, say):
            say("multiplying")
            two_levels(section, cluster)
        with _part(report, console, "3. 24 layers on 4 devices") as (section, say):
            say("running the layers")
            layers_on_devices(section, cluster)
        with _part(report, console, "4. Idle time") as (section, say):
            idle_time(section, cluster, say)
    page = report.write(Path(folder))
    console.print(f"[bold]{report.summary}[/bold] in {format_seconds(perf_counter() - begun)}")
    console.print(f"the report: {page}", soft_wrap=True)
    return report


@contextmanager
def _part(report: Report, console: Console, title: str) -> Iterator[tuple[Section, object]]:
    """A section that shows what it is doing, and prints its text and tables when it is done."""
    console.rule(f"[bold]{title}[/bold]", align="left")
    section, begun = report.section(title), perf_counter()
    with console.status(title) as status:

        def say(doing: str) -> None:
            status.update(f"{title}: {doing}")
            if not console.is_terminal:
                console.print(f"  {doing} ...")

        try:
            yield section, say
        except Exception as error:  # the other parts, and the report, shall not go with it
            words = f"{type(error).__name__}: {error}"
            broken = Claim("runs to its end", measured=False, rule="true", note=words)
            section.table(Comparison(title, (broken,)))
    for kind, item in section.items:
        if kind != "figure":
            console.print(Markdown(item) if kind == "text" else item)
            console.print()
    console.print(f"[dim]part done in {format_seconds(perf_counter() - begun)}[/dim]\n")
