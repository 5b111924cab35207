"""A line that is alone, whose fetches come while work is done.

    compute   [wait][multiply 0][multiply 1][multiply 2]       this thread
    fetch     [fetch 0][fetch 1]  [fetch 2]                    a thread of its own

Instructions are gone through in the order of the line, which fetches what comes next before it
works on what is there: so nothing is fetched over what is in use.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from time import time
from typing import Any

from tiledask.distributed.programs.runner import Bind, LineRunner, Outside
from tiledask.plan.program.instructions import COMPUTE_STREAM, Instructions

__all__ = ["PrefetchRunner"]


class PrefetchRunner(LineRunner):
    """One way through a line that is alone."""

    def __init__(
        self,
        program: Instructions,
        stays: Mapping[str, Any],
        bind: Bind,
        outside: Outside,
        waited: Callable[[float, float], None] = lambda begun, end: None,
    ) -> None:
        """``waited`` hears from when to when the work waited for what is fetched."""
        super().__init__(None, program, stays, bind, outside)
        self.waited = waited

    def run(self) -> bool:
        """True, once the line was gone through."""
        self._frames.clear()
        coming: dict[str, Future[None]] = {}
        with ThreadPoolExecutor(1, "fetch") as fetching:
            try:
                for (_, frame), calls in zip(self.line, self._bound, strict=True):
                    env = self._env(frame)
                    for each, call in calls:
                        call = _noted(each, call)
                        if each.stream != COMPUTE_STREAM:
                            coming[each.writes[0]] = fetching.submit(call, env)
                            continue
                        if needed := [coming.pop(name) for name in each.reads if name in coming]:
                            begun = time()
                            for fetched in needed:
                                fetched.result()
                            self.waited(begun, time())
                        call(env)
            finally:
                for fetched in coming.values():
                    fetched.cancel()
                self._frames.clear()
        return True


def _noted(each: Any, call: Callable[[Any], None]) -> Callable[[Any], None]:
    def called(env: Any) -> None:
        try:
            call(env)
        except Exception as error:
            error.add_note(f"in {each!r}")
            raise

    return called
