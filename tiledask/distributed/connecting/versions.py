"""Whether the processes of a cluster can work with this one: the versions that must agree.

Tasks are pickled here and read there, so Python, Dask and NumPy agree in their first two numbers,
and tiledask altogether.
"""

import sys
from functools import partial
from typing import Any

from distributed import Client
from distributed.versions import get_versions

from tiledask.distributed.cluster.tasks import asked
from tiledask.errors import ConfigError, DeadlineError

__all__ = ["check_versions", "differing"]

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
        numbers = None if name == "tiledask" else 2
        if str(mine).split(".")[:numbers] != str(its).split(".")[:numbers]:
            found.append(f"{f'{name} {its}' if its else f'no {name}'} (here {mine})")
    return found


def check_versions(client: Client, seconds: float) -> None:
    """None if the scheduler and all workers can work with this process; else ConfigError."""
    call: Any = partial(client._get_versions, packages=["tiledask"])
    try:
        found: dict[str, Any] = asked(client, call, seconds)
    except TimeoutError:
        raise DeadlineError(
            f"the workers did not all say their versions within {seconds:.3g} s: one of them is "
            f"frozen or cannot be reached; look at their logs"
        ) from None
    version = sys.modules["tiledask"].__version__
    here = get_versions(packages=["tiledask"])["packages"] | {"tiledask": version}
    there = {"the scheduler": found["scheduler"]}
    there |= {f"worker {address}": each for address, each in found["workers"].items()}
    wrong = [
        f"{who} has {', '.join(words)}"
        for who, each in there.items()
        if isinstance(each, dict) and (words := differing(here, each["packages"]))
    ]
    if wrong:
        more = f"; and {len(wrong) - _MOST} more" if len(wrong) > _MOST else ""
        raise ConfigError(
            f"{len(wrong)} of {len(there)} processes cannot work with this one: "
            f"{'; '.join(wrong[:_MOST])}{more}. What is pickled here must be read there: run them "
            f"and this process from equal environments (pip install tiledask=={version} there)"
        )
