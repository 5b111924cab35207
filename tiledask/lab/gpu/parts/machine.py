"""The machine: its GPUs, their clocks at rest and at work, the bandwidths they reach."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tiledask.lab.bench.tiles.device import clocks, described
from tiledask.lab.gpu.part import GpuPart, Notes
from tiledask.lab.table import Grid
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile.backend import namespace

__all__ = ["PARTS"]

_ROUNDS = 7
_SIZES = {"device": 2**30, "host": 2**28}
"""Bytes of a copy on the device, and of one to or from host memory, where there is room."""
_ATTRIBUTES = {
    "multiprocessors": "multiProcessorCount",
    "memory": "totalGlobalMem",
    "L2": "l2CacheSize",
    "shared memory of a block": "sharedMemPerBlockOptin",
}


def run(notes: Notes) -> None:
    """Describe the GPU in use, then measure copies on it, to and from it, and between GPUs."""
    cp = namespace("cupy")
    if notes.begin("device"):
        notes.add("device", "timed", **_facts(cp))
    size = {
        name: max(2**20, min(most, cp.cuda.runtime.memGetInfo()[0] // 8))
        for name, most in _SIZES.items()
    }
    x, y = (cp.empty(size["device"], "u1") for _ in "xy")
    pinned, back = (_pinned(cp, size["host"]) for _ in "xy")
    pageable = np.ones(size["host"], "u1")
    up, down = (cp.cuda.Stream(non_blocking=True) for _ in "xy")

    def copy(into: int, source: int, nbytes: int, kind: str, stream: Any) -> None:
        how = getattr(cp.cuda.runtime, f"memcpy{kind}")
        cp.cuda.runtime.memcpyAsync(into, source, nbytes, how, stream.ptr)

    def to_device(source: np.ndarray) -> None:
        copy(x.data.ptr, source.ctypes.data, source.nbytes, "HostToDevice", up)

    def to_host() -> None:
        copy(back.ctypes.data, y.data.ptr, back.nbytes, "DeviceToHost", down)

    def both() -> None:
        to_device(pinned)
        to_host()

    peak = getattr(described("cupy"), "memory_bandwidth", None)
    on_device = lambda: copy(y.data.ptr, x.data.ptr, x.nbytes, "DeviceToDevice", up)  # noqa: E731
    for key, call, nbytes, expected in (
        ("written on the device", lambda: x.data.memset_async(1, x.nbytes, up), x.nbytes, peak),
        ("copied on the device, read and written", on_device, 2 * x.nbytes, peak),
        ("host to device, pinned", lambda: to_device(pinned), pinned.nbytes, None),
        ("device to host, pinned", to_host, back.nbytes, None),
        ("both ways at once, pinned", both, 2 * back.nbytes, None),
        ("host to device, pageable", lambda: to_device(pageable), pageable.nbytes, None),
    ):
        _measure(notes, cp, key, call, nbytes, expected)
    _peers(notes, cp, x)
    if notes.begin("clocks at work"):
        notes.add("clocks at work", "timed", **_at_work(cp))


def _facts(cp: Any) -> dict[str, Any]:
    """What the driver says of the device, and where the arithmetic's description differs."""
    index = cp.cuda.Device().id
    found = cp.cuda.runtime.getDeviceProperties(index)
    facts = {name: int(found[key]) for name, key in _ATTRIBUTES.items() if key in found}
    known = described("cupy")
    pairs = {"multiprocessors": "multiprocessors", "L2": "l2_bytes"}
    differs = [
        f"{name}: {facts[name]}, described as {getattr(known, field)}"
        for name, field in pairs.items()
        if known and facts.get(name) not in (None, getattr(known, field))
    ]
    return {"index": index, **facts, "differs": differs, "at rest": clocks("cupy"), **_link(cp)}


def _link(cp: Any) -> dict[str, Any]:
    """The PCI Express link and the top clock, where NVML tells them."""
    with suppress(Exception):  # no bindings, or a driver that does not say
        import pynvml as nvml

        nvml.nvmlInit()
        bus = cp.cuda.runtime.deviceGetPCIBusId(cp.cuda.Device().id)
        handle = nvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
        return {
            "PCIe generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            "PCIe lanes": nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
            "SM MHz at most": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        }
    return {}


def _pinned(cp: Any, nbytes: int) -> np.ndarray:
    memory = cp.cuda.alloc_pinned_memory(nbytes)
    return np.frombuffer(memory, "u1", nbytes)


def _measure(
    notes: Notes,
    cp: Any,
    key: str,
    call: Callable[[], None],
    nbytes: int,
    expected: float | None = None,
) -> None:
    """Note the bytes a second of ``call``, which moves ``nbytes``: the median of some rounds."""
    if not notes.begin(key, bytes=nbytes):
        return
    device, found = cp.cuda.Device(), []
    for _ in range(1 + _ROUNDS):  # the first one warms up
        device.synchronize()
        begun = time.perf_counter()
        call()
        device.synchronize()
        found.append(time.perf_counter() - begun)
    seconds = float(np.median(found[1:]))
    speed = {"bytes per second": nbytes / seconds, "all seconds": found[1:]}
    if expected:
        speed |= {"expected": expected, "share": nbytes / seconds / expected}
    notes.add(key, "timed", seconds=seconds, **speed)


def _peers(notes: Notes, cp: Any, x: Any) -> None:
    """Copies from the GPU in use to each other one, directly where the machine can."""
    runtime, here = cp.cuda.runtime, cp.cuda.Device().id
    for there in range(runtime.getDeviceCount()):
        if there == here:
            continue
        direct = bool(runtime.deviceCanAccessPeer(here, there))
        if direct:
            with suppress(runtime.CUDARuntimeError):  # it is enabled already
                runtime.deviceEnablePeerAccess(there)
        with cp.cuda.Device(there):
            other = cp.empty(x.nbytes, "u1")

        def call(other: Any = other, there: int = there) -> None:
            runtime.memcpyPeer(other.data.ptr, there, x.data.ptr, here, x.nbytes)

        how = "directly" if direct else "through the host"
        _measure(notes, cp, f"GPU {here} to GPU {there}, {how}", call, x.nbytes)


def _at_work(cp: Any) -> dict[str, Any]:
    """Clocks, power and temperature in the last of a second of products."""
    a, device = cp.ones((2048, 2048), "f4"), cp.cuda.Device()
    begun, products, found = time.monotonic(), 1, {}
    while time.monotonic() - begun < 1.0:
        called = time.monotonic()
        for _ in range(products):
            a @ a
        found = clocks("cupy")  # while those are under way
        device.synchronize()
        if time.monotonic() - called < 0.1:
            products *= 2
    return found


def tables(rows: list[dict[str, Any]]) -> Sequence[Grid]:
    """Bandwidths, then the device and its clocks."""
    speeds = [
        (
            row["key"],
            format_bytes(row["bytes"]),
            format_seconds(row["seconds"]),
            f"{format_bytes(row['bytes per second'])}/s",
            f"{100 * row['share']:.0f} % of {format_bytes(row['expected'])}/s"
            if "share" in row
            else "",
        )
        for row in rows
        if "bytes per second" in row
    ]
    named = {row["key"]: row for row in rows}
    device, work = named.get("device", {}), named.get("clocks at work", {})
    rest = device.get("at rest", {})
    facts = [
        (name, format_bytes(value) if name in ("memory", "L2") else str(value))
        for name, value in device.items()
        if name in _LISTED
    ]
    facts += [("is described otherwise", text) for text in device.get("differs", [])]
    facts += [
        (f"{name}, at rest and at work", f"{value:g}, {work.get(name, '?')}")
        for name, value in rest.items()
    ]
    return [
        Grid(("copy", "bytes", "time", "speed", "of what is expected"), speeds),
        Grid(("device", ""), facts, left=(0, 1)),
    ]


_LISTED = (*_ATTRIBUTES, "PCIe generation", "PCIe lanes", "SM MHz at most")

PARTS = (GpuPart("machine", "what machine this is", 0.5, 0.2, ("cupy",), run, tables),)
