"""How a notebook shows a running cluster: its address, and in JupyterLab a panel that follows it."""

from functools import cache
from pathlib import Path

from tiledask.plan import html

__all__ = ["panel"]


def panel(said: str, why: str, link: str, started: float) -> str:
    """HTML of a cluster that ``said`` describes: where its dashboard is, and a button for its page.

    The script in it runs where outputs are trusted. JupyterLab's panels then show the cluster that
    was ``started`` last, in seconds since 1970. Elsewhere the link stays, and no button.
    """
    address = link.removesuffix("/status")
    return (
        f"<div data-dashboard='{html.words(address)}' data-started='{started!r}'>"
        f"<b>{html.words(said)}</b>, dashboard: "
        f"<a href='{html.words(address)}/tiledask' target='_blank'>{html.words(address)}/tiledask</a> "
        f"<button hidden>Show the dashboard page</button><br><small>{html.words(why)}</small></div>"
        f"<script>{_script()}</script>"
    )


@cache
def _script() -> str:
    return Path(__file__).with_name("panel.js").read_text("utf-8")
