"""Golden values, computed again from what stands beside them: a third of the rows each time.

`python -m pytest -p no:nbval -m "" tests/golden` takes all of them.

A difference is a change of what the package answers. If it is meant, `python tests/golden/renew.py`
writes the new values and says what has changed.
"""

from itertools import islice
from pathlib import Path

import pytest

from golden import store
from golden.sets import SETS

SHOWN = 12
MOST_BYTES = 310_000
MARKS = {"": (), "slow": (pytest.mark.slow,), "cluster": (pytest.mark.cluster,)}
every = pytest.mark.parametrize(
    ("name", "step"),
    [
        pytest.param(name, step, marks=(*MARKS[SETS[name].mark], *more), id=name + text)
        for step, more, text in ((3, (), ""), (1, (pytest.mark.slow,), " all"))
        for name in SETS
        if step == 1 or SETS[name].mark != "slow"
    ],
)


@every
def test_golden_values_are_what_they_were(name, step, request, one_thread):
    one = SETS[name]
    cluster = request.getfixturevalue("cluster") if one.mark == "cluster" else None
    alike = one.alike
    found = [
        (key, *each)
        for key, (given, values) in islice(one.stored().items(), 0, None, step)
        for each in store.differences(values, one.compute(given, cluster), exactly=alike)
    ]
    if found:
        rows = len({key for key, *_ in found})
        shown = "\n".join(f"{k}: {at}: {old!r} -> {new!r}" for k, at, old, new in found[:SHOWN])
        words = f"{name}: {rows} rows differ in {len(found)} values\n{shown}\nif that is meant: "
        pytest.fail(f"{words}python tests/golden/renew.py {name}", pytrace=False)


def test_files_are_those_of_the_sets_and_small():
    files = sorted(Path(store.FOLDER).glob("*.json.gz"))
    assert [path.name.partition(".")[0] for path in files] == sorted(SETS)
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
