"""Streams side by side: what is fetched comes while work is done, and never over what is in use.

Holds `tiledask.distributed.programs.prefetch`.
"""

import threading

import pytest

from tiledask.distributed.programs.prefetch import PrefetchRunner
from tiledask.plan.products.placement import Shard, Tiling
from tiledask.plan.products.product import plan_product
from tiledask.plan.program.instructions import Fetch
from tiledask.plan.program.making.of_product import multiply_program

PATIENCE = 240.0


class Watched:
    """Where a product's line reads, and what its kernel does: said in order, in words."""

    def __init__(self, on_fetch=lambda n: None, on_multiply=lambda n: None):
        self.said, self.on_fetch, self.on_multiply = [], on_fetch, on_multiply
        self.fetched, self.multiplied = 0, 0

    def fetch(self, each):
        def fetched(room):
            n, self.fetched = self.fetched, self.fetched + 1
            self.said.append(("begin", each.buffer))
            self.on_fetch(n)
            self.said.append(("there", each.buffer))
            return f"panel {n}"

        return fetched

    def keep(self, each):
        return lambda c: self.said.append(("keep", each.buffer))

    def bind(self, each, part, told):
        reads = [name for name in each.reads if name.startswith("room")]

        def multiply(*arrays):
            n, self.multiplied = self.multiplied, self.multiplied + 1
            self.said.append(("use", *reads))
            self.on_multiply(n)
            self.said.append(("used", *reads))

        return multiply


def line():
    """A rank of SUMMA's that fetches four panels of one operand or more."""
    tilings = (Tiling(shape, (1, 4), (Shard(0), Shard(1))) for shape in ((4, 32), (32, 8)))
    return multiply_program(plan_product("summa", *tilings, panel=4), 8).alone(1)


def run(watched, program):
    stays = dict.fromkeys(program.role(0).stays, "here")
    return PrefetchRunner(program, stays, watched.bind, watched).run()


def fetches(program):
    return [x for x in program.role(0).parts[0].instructions if isinstance(x, Fetch)]


def test_a_panel_comes_while_the_one_before_is_multiplied():
    program, second = line(), threading.Event()

    def on_fetch(n):
        if n == 1:
            second.set()

    def on_multiply(n):
        assert second.wait(PATIENCE), "nothing is fetched while work is done"

    watched = Watched(on_fetch, on_multiply)
    assert run(watched, program)
    assert watched.fetched == len(fetches(program)) > 3
    assert watched.said[-1] == ("keep", "C")


def test_nothing_comes_over_what_is_in_use():
    for _ in range(20):
        watched = Watched()
        run(watched, line())
        there = {}
        for word, *buffers in watched.said:
            for buffer in buffers:
                state = there.get(buffer, "free")
                wanted = {"begin": "free", "there": "begin", "use": "there", "used": "use"}
                if word in wanted:
                    assert state == wanted[word], (word, buffer, state)
                    there[buffer] = "free" if word == "used" else word


@pytest.mark.parametrize("where", ["fetch", "multiply"])
def test_an_error_on_either_stream_ends_both(where):
    def fails(n):
        if n == 2:
            raise RuntimeError("the link is cut")

    watched = Watched(**{f"on_{where}": fails})
    with pytest.raises(RuntimeError, match="the link is cut") as error:
        run(watched, line())
    assert f"{where} " in error.value.__notes__[0]
    assert ("keep", "C") not in watched.said
    assert not [t for t in threading.enumerate() if t.name.startswith("fetch")]
