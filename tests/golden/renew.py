"""Write the golden values anew, and say what has changed.

    python tests/golden/renew.py                 all sets, from what their files have as given
    python tests/golden/renew.py ledgers steps   these
    python tests/golden/renew.py --fast          all but those that need workers or are slow
    python tests/golden/renew.py --check ...     say what has changed, and write nothing
    python tests/golden/renew.py questions --add '40 h' '{"question": 40, "inputs": {"h": 8}}'

A change of golden values is a change of what the package answers: say in the commit why.
"""

import argparse
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

sys.path[:0] = [str(Path(__file__).parents[n]) for n in (1, 2)]

from threadpoolctl import threadpool_limits  # noqa: E402

from golden.sets import SETS  # noqa: E402
from golden.store import GoldenSet, change, count, differences  # noqa: E402


def renewed(one: GoldenSet, check: bool, cluster: object, more: dict[str, object]) -> str:
    """What has changed in a set, in a line and a line for each of the first rows. ``more``: key ->
    what is given, of new rows."""
    begun = process_time()
    old = one.stored() | {key: [given, None] for key, given in more.items()}
    new = {key: [given, one.compute(given, cluster)] for key, (given, _) in old.items()}
    rows, largest, shown = 0, 0.0, []
    for key in old:
        found = list(differences(old[key][1], new[key][1]))
        rows += bool(found)
        largest = max([largest, *(change(a, b) for _, a, b in found)])
        if found and len(shown) < 5:
            where, a, b = found[0]
            shown.append(f"    {key}: {where}: {a!r} -> {b!r}")
    if not check:
        one.write(new)
    values = sum(count(values) for _, values in new.values())
    refused = sum(isinstance(v, dict) and "refused" in v for _, v in new.values())
    return "\n".join(
        [
            f"{one.name:14} {len(new):5} rows, {values:6} values, "
            f"{one.path.stat().st_size / 1e3:6.0f} kB, "
            f"{process_time() - begun:5.1f} s; {rows} rows changed"
            + (f", most by {largest:.2g}" if rows else "")
            + (f"; {refused} refused" if refused else ""),
            *shown,
        ]
    )


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", choices=[[], *SETS])
    parser.add_argument("--fast", action="store_true", help="no slow ones, none on workers")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--add", nargs=2, metavar=("KEY", "JSON"), help="a row of the one SET")
    asked = parser.parse_args(words)
    more = {asked.add[0]: json.loads(asked.add[1])} if asked.add else {}
    if more and len(asked.sets) != 1:
        parser.error(f"--add is for one SET, got {len(asked.sets)}")
    names = asked.sets or [n for n in SETS if not (asked.fast and SETS[n].mark)]
    with ExitStack() as stack:
        stack.enter_context(threadpool_limits(1))
        # commands write down there what somebody has solved
        os.environ["XDG_STATE_HOME"] = stack.enter_context(TemporaryDirectory())
        cluster = None
        if any(SETS[name].mark == "cluster" for name in names):
            import tiledask as td

            cluster = stack.enter_context(td.start_cluster(workers=4, device="cpu", quiet=True))
        for name in names:
            print(renewed(SETS[name], asked.check, cluster, more), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
