"""Figures of timelines, memory, traffic, owners, layers, idle time, products, plans, tiles.

Each function takes plain values and returns a matplotlib Figure that belongs to no window: save
it, or let a notebook show it. A figure is imported when it is first used, and matplotlib when it is
first drawn. What one notebook draws once is plain matplotlib in its cell, on a `canvas`.

style, picture  the look that all share, the Figure that draws itself, and again by sliders
primitives      what figures are made of: boxes in lanes and in planes, notes, legends
timelines       who did what when; memory over time, tasks in slots, layers on devices
bars            bytes by tensor class, the time of a step; curves over sizes and steps
arrays          formulas over ranks, owners of blocks, tiles of a product, bytes between ranks
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "arrays": "corner owners placements tile_step traffic_matrix",
    "bars": "curves memory_bars step_breakdown",
    "picture": "sliders",
    "style": "BLUE RED canvas",
    "timelines": "gantt layers_on_devices memory_timeline slots",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"td.plots has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
