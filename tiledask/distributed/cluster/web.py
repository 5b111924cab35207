"""The dashboard: its port, whose pages may show it, and how a notebook does.

It shows what runs to whoever asks, so it listens on this machine alone, and refuses the websockets
of pages of the web that a browser here shows.
"""

import contextlib
import os
import socket
from pathlib import Path

from tiledask.errors import ConfigError
from tiledask.plan import html

__all__ = ["HOST", "SCRIPT", "origins", "panel", "port_for"]

HOST = "127.0.0.1"


def port_for(port: int | None) -> int | None:
    """A free port for the dashboard: ``port``, or TILEDASK_DASHBOARD_PORT of the environment, if it
    is free, else any; None for no dashboard ("none")."""
    text = os.environ.get("TILEDASK_DASHBOARD_PORT", "0") if port is None else str(port)
    if text == "none":
        return None
    if not text.isdecimal() or int(text) >= 65536:
        raise ConfigError(
            f"a dashboard port is 0 (any free one) to 65535, got {text}; "
            f"TILEDASK_DASHBOARD_PORT=none starts none"
        )
    for wanted in (int(text), 0):
        with socket.socket() as probing, contextlib.suppress(OSError):
            probing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probing.bind((HOST, wanted))
            found: int = probing.getsockname()[1]
            return found
    raise ConfigError(f"no free port on {HOST} for the dashboard; close a server and try again")


def origins(port: int) -> list[str]:
    """Pages that may open the dashboard's websocket: itself, JupyterLab on this machine, and those
    of the servers in TILEDASK_DASHBOARD_ORIGINS, "host:port host:port".

    Bokeh takes no wildcard for a port alone, and Dask's default takes every page of the web.
    """
    ports = [port, *range(8888, 8900)]
    more = os.environ.get("TILEDASK_DASHBOARD_ORIGINS", "").split()
    return [f"{host}:{p}" for p in ports for host in (HOST, "localhost")] + more


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
