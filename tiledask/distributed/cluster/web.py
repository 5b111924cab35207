"""How a notebook shows a cluster: its dashboard's address, and a button for its page."""

from pathlib import Path

from tiledask.plan import html

__all__ = ["SCRIPT", "panel"]

SCRIPT = f"<script>{Path(__file__).with_name('panel.js').read_text('utf-8')}</script>"
"""Runs where outputs are trusted; nothing in it depends on the cluster."""


def panel(said: str, why: str, link: str, started: float) -> str:
    """HTML of a cluster that ``said`` describes: where its dashboard is, and a button for its page.

    JupyterLab's panels then show the cluster that was ``started`` last, in seconds since 1970, of
    those that answer. Elsewhere the link stays, and no button.
    """
    address = html.words(link.removesuffix("/status"))
    return (
        f"<div data-dashboard='{address}' data-started='{html.words(started)}'>"
        f"<b>{html.words(said)}</b>, dashboard: "
        f"<a href='{address}/tiledask' target='_blank'>{address}/tiledask</a> "
        f"<button hidden>Show the dashboard page</button><br><small>{html.words(why)}</small></div>"
        f"{SCRIPT}"
    )
