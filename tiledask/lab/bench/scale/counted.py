"""What the scheduler counts of itself for the bench of scale; runs there, sent by the client."""

import time
from typing import Any

from distributed.comm import tcp

__all__ = ["count_messages", "counted"]

_counts = {"messages in": 0, "messages out": 0, "bytes in": 0, "bytes out": 0}


def count_messages() -> None:
    """None; from now on this process counts what goes through its connections."""
    if getattr(tcp.TCP, "counted", False):
        return
    write, read, read_bytes = tcp.TCP.write, tcp.TCP.read, tcp.read_bytes_rw

    async def writes(self: Any, *args: Any, **options: Any) -> Any:
        nbytes = await write(self, *args, **options)
        _counts["messages out"] += 1
        _counts["bytes out"] += nbytes
        return nbytes

    async def reads(self: Any, *args: Any, **options: Any) -> Any:
        found = await read(self, *args, **options)
        _counts["messages in"] += 1
        return found

    async def reads_bytes(stream: Any, nbytes: int) -> Any:
        _counts["bytes in"] += nbytes
        return await read_bytes(stream, nbytes)

    changed: Any = tcp  # what is put in its place, Dask's types do not know of
    changed.TCP.write, changed.TCP.read, changed.read_bytes_rw = writes, reads, reads_bytes
    changed.TCP.counted = True


def counted() -> dict[str, float]:
    """CPU seconds of this process so far, its messages, their bytes, and what time it is."""
    return {"scheduler": time.process_time(), **_counts, "at": time.time()}
