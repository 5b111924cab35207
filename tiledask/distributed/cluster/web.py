"""The dashboard: its port, who may ask it, by which protocol, and how a notebook shows it.

It shows what runs to whoever asks, so it listens on this machine alone. A page of the web that a
browser here shows is no reason to answer: its websockets are refused by their origin, and its
requests, once its own name leads to this machine (DNS rebinding), by the host they ask for.
"""

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import ErrorHandler

from tiledask.errors import ConfigError
from tiledask.plan import html

__all__ = [
    "HOST",
    "ORIGINS",
    "SCRIPT",
    "allowed_hosts",
    "asked_port",
    "certified",
    "free_port",
    "move_away",
    "only_to_allowed_hosts",
    "origins",
    "panel",
]

HOST = "127.0.0.1"
ORIGINS = "TILEDASK_DASHBOARD_ORIGINS"
"""Variable of the environment: servers whose pages may show the dashboard, "host:port host:port".
"""


def asked_port(port: int | None) -> int:
    """The dashboard's port that was asked for, here or in the environment; 0 for any."""
    text = os.environ.get("TILEDASK_DASHBOARD_PORT", "0") if port is None else port
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number < 65536:
        raise ConfigError(f"a dashboard port is 0 (any free one) to 65535, got {text!r}")
    return number


def free_port(port: int) -> int:
    """``port`` if it is free, otherwise one that is."""
    for wanted in (port, 0):
        with socket.socket() as probing, contextlib.suppress(OSError):
            probing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probing.bind((HOST, wanted))
            found: int = probing.getsockname()[1]
            return found
    raise ConfigError(f"no free port on {HOST} for the dashboard; close a server and try again")


def move_away(port: int, running: Any) -> None:
    """None; if the dashboard of a Dask cluster was at ``port``, it is at any free one now.

    Pages that were open there are cut off, and ask again: whoever has the port then answers.
    """
    scheduler: Any = getattr(running, "scheduler", None)
    server = getattr(scheduler, "http_server", None)
    if server is None or server.port != port:
        return

    async def move() -> None:
        moved: Any = HTTPServer(scheduler.http_application, ssl_options=server.ssl_options)
        moved.add_sockets(bound := bind_sockets(0, address=HOST))
        moved.address, moved.port = bound[0].getsockname()[:2]
        for pages in scheduler.http_application.applications:
            if hasattr(pages, "websocket_origins"):
                pages.websocket_origins.update(origins(moved.port))
        server.stop()
        scheduler.http_server = scheduler.services["dashboard"] = moved
        running.scheduler_info["services"]["dashboard"] = moved.port
        await server.close_all_connections()

    with contextlib.suppress(TimeoutError):  # it is busy and stays where it is
        running.sync(move, callback_timeout=10)


def origins(port: int) -> list[str]:
    """Pages that may open the dashboard's websocket: itself, and JupyterLab on this machine.

    Bokeh takes no wildcard for a port alone, and Dask's default takes every page of the web.
    """
    ports = [port, *range(8888, 8900)]
    more = os.environ.get(ORIGINS, "")
    return [f"{host}:{p}" for p in ports for host in (HOST, "localhost")] + more.split()


def allowed_hosts() -> frozenset[str]:
    """By which names the dashboard may be asked for: this machine's own, and those of ORIGINS."""
    named = os.environ.get(ORIGINS, "").lower().split()
    return frozenset({HOST, "localhost", "[::1]", *(name.rpartition(":")[0] for name in named)})


def only_to_allowed_hosts(scheduler: Any) -> None:
    """None; from now on its web server answers 403 to whoever asks for another host."""
    application, allowed = scheduler.http_application, allowed_hosts()
    find = application.find_handler

    def find_handler(request: Any, **options: Any) -> Any:
        if request.host_name in allowed:
            return find(request, **options)
        return application.get_handler_delegate(request, ErrorHandler, {"status_code": 403})

    application.find_handler = find_handler


@contextlib.contextmanager
def certified(security: Any) -> Iterator[dict[str, str]]:
    """Dask's settings under which a dashboard that is started is encrypted as ``security`` is.

    Its certificate and key are files, which only this user can read, while that goes on.
    """
    if security is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="tiledask-web-") as folder:
        said = security.get_tls_config_for_role("scheduler")
        files = {name: Path(folder) / name for name in ("cert", "key")}
        for name, path in files.items():
            path.write_text(said[name])  # in a folder of mode 0700
        yield {f"distributed.scheduler.dashboard.tls.{name}": str(p) for name, p in files.items()}


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
