"""Write the golden values anew, and say what has changed.

    python tests/golden/renew.py                 all sets, from what their files have as given
    python tests/golden/renew.py ledgers steps   these
    python tests/golden/renew.py questions --add '40 h' '{"question": 40, "inputs": {"h": 8}}'

`git diff` shows it too. A change of golden values is a change of what the package answers: say in
the commit why.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path[:0] = [str(Path(__file__).parents[n]) for n in (1, 2)]

from threadpoolctl import threadpool_limits  # noqa: E402

import tiledask as td  # noqa: E402
from golden.sets import SETS  # noqa: E402
from golden.store import GoldenSet, differences  # noqa: E402


def renewed(one: GoldenSet, cluster: object, more: dict[str, object]) -> str:
    """What has changed in a set, and the first change of some rows. ``more``: key -> what is given,
    of new rows."""
    old = one.stored() | {key: [given, None] for key, given in more.items()}
    new = {key: [given, one.compute(given, cluster)] for key, (given, _) in old.items()}
    found = {key: [*differences(old[key][1], new[key][1])] for key in old}
    found = {key: each for key, each in found.items() if each}
    if found:  # what differs by rounding alone stays
        one.write(new)
    lines = [f"{one.name:14} {len(found)} of {len(new)} rows changed"]
    for key, ((where, a, b), *_) in [*found.items()][:5]:
        lines.append(f"    {key}: {where}: {a!r} -> {b!r}")
    return "\n".join(lines)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET", choices=[[], *SETS])
    parser.add_argument("--add", nargs=2, metavar=("KEY", "JSON"), help="a row of the one SET")
    asked = parser.parse_args(words)
    more = {asked.add[0]: json.loads(asked.add[1])} if asked.add else {}
    if more and len(asked.sets) != 1:
        parser.error(f"--add is for one SET, got {len(asked.sets)}")
    with threadpool_limits(1), TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder  # where commands write down what was solved
        sets = [SETS[name] for name in asked.sets or SETS]
        cluster = None
        if any(one.mark == "cluster" for one in sets):
            cluster = td.start_cluster(workers=4, device="cpu", quiet=True)
        for one in sets:
            print(renewed(one, cluster, more), flush=True)
        if cluster:
            cluster.close()


if __name__ == "__main__":
    main(sys.argv[1:])
