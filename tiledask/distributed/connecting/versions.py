"""Whether the processes of a cluster can work with this one: the versions that must agree.

Tasks are pickled here and read there, so Python, Dask and NumPy agree in their first two numbers,
and tiledask altogether.
"""

import sys
from functools import partial
from typing import Any

from distributed import Client
from distributed.versions import get_versions

from tiledask.distributed.cluster.cluster import asked
from tiledask.errors import ConfigError

__all__ = ["VERSION", "check_versions", "differing", "versions_of"]

_PACKAGE = sys.modules["tiledask"]  # whose first line ran before this one
VERSION: str = _PACKAGE.__version__
"""Of this package, in this process."""
_ALIKE = ("python", "dask", "distributed", "numpy")
_MOST = 5
"""Processes that an error names."""


def differing(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """How the versions of packages ``there`` keep a process from working with one ``here``.

    >>> differing({"tiledask": "1.2.0", "numpy": "2.4.6"}, {"tiledask": None, "numpy": "2.4.1"})
    ['no tiledask (here 1.2.0)']
    """
    found = []
    for name in ("tiledask", *_ALIKE):
        mine, its = here.get(name), there.get(name)
        same = mine == its if name == "tiledask" else _first_two(mine) == _first_two(its)
        if not same:
            found.append(f"{f'{name} {its}' if its else f'no {name}'} (here {mine})")
    return found


def _first_two(version: str | None) -> list[str]:
    return (version or "").split(".")[:2]


def versions_of(client: Client, seconds: float) -> dict[str, Any]:
    """What the scheduler and the workers say of their versions; TimeoutError after ``seconds``."""
    call: Any = partial(client._get_versions, packages=["tiledask"])
    found: dict[str, Any] = asked(client, call, seconds)
    return found


def check_versions(said: dict[str, Any]) -> None:
    """None if those who ``said`` which versions they have can work with this process; else
    ConfigError."""
    here = get_versions(packages=["tiledask"])["packages"] | {"tiledask": VERSION}
    there = {"the scheduler": said["scheduler"]}
    there |= {f"worker {address}": each for address, each in said["workers"].items()}
    wrong = {
        who: words
        for who, each in there.items()
        if isinstance(each, dict) and (words := differing(here, each["packages"]))
    }
    if not wrong:
        return
    listed = [f"{who} has {', '.join(words)}" for who, words in wrong.items()]
    more = f"; and {len(listed) - _MOST} more" if len(listed) > _MOST else ""
    only = all(word.partition(" (")[0].endswith("tiledask") for w in wrong.values() for word in w)
    way = f"pip install tiledask=={VERSION} there"
    if not only:
        way = "run them and this process from equal environments"
    raise ConfigError(
        f"{len(wrong)} of {len(there)} processes cannot work with this one: "
        f"{'; '.join(listed[:_MOST])}{more}. What is pickled here must be read there: {way}"
    )
