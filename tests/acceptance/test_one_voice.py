"""One voice: forty questions, each asked in every way there is, and one right value for all.

    question | worked out by hand | a way: what it says | another convention: what it says, and why

Ways are td.*, `tiledask ... --json`, td.ask, and what the walkthroughs show. A way that counts
something else stands under ``else_``, with its own right value and, in words, what differs.
"""

import pytest
from voice_bytes import BYTES, MEMORY
from voice_time import CUTS, IDLE
from voice_ways import Voice, same

TABLE = MEMORY + BYTES + IDLE + CUTS
PRINTED = 1e-3
"""As far off as four printed digits may be."""


def marks(name):
    return [pytest.mark.cluster] if name.startswith("matmul") else []


ASKED = [
    pytest.param(way, row.right, id=f"{row.asks}-{name}", marks=marks(name))
    for row in TABLE
    for name, way in row.ways.items()
] + [
    pytest.param(way, value, id=f"{row.asks}-{name}: {words}", marks=marks(name))
    for row in TABLE
    for name, (words, value, way) in row.else_.items()
]


@pytest.mark.parametrize(("way", "right"), ASKED)
def test_every_way_gives_the_right_value(answers, way, right):
    found = way(Voice(answers))
    printed = isinstance(found, list) and not isinstance(right, list)
    for each in found if printed else [found]:  # what a walkthrough shows, in four digits
        assert same(each, right, PRINTED if printed else 1e-9), f"{each} for {right}"


def test_there_are_forty_questions():
    assert len({row.asks for row in TABLE}) == len(TABLE) >= 40
    assert sum(len(row.ways) + len(row.else_) for row in TABLE) >= 100
