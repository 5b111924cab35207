"""Devices, links and clusters: datasheet numbers as frozen values."""

import dataclasses
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import Fields, names, read, read_named
from tiledask.plan.inputs.layout import MOST_OF_ANY
from tiledask.plan.units import format_bytes, parse_bytes

__all__ = ["LATENCY", "SHARE", "ClusterSpec", "Device", "Link", "load_cluster", "load_device"]

LATENCY, SHARE = {"within_node": 5e-6, "between_nodes": 10e-6}, 0.8
"""Seconds, and the part of its bandwidth reached, of a link whose description says none."""


@dataclass(frozen=True)
class Link:
    """A connection of one device, in one direction."""

    name: str
    bytes_per_second: float
    latency: float = LATENCY["between_nodes"]  # Seconds that a message of no bytes takes
    share: float = SHARE  # Part of ``bytes_per_second`` that large collectives reach

    @property
    def reached(self) -> float:
        """Bytes per second of a large collective: the datasheet times the share."""
        return self.bytes_per_second * self.share


@dataclass(frozen=True, repr=False)
class Device:
    """One accelerator.

    >>> a100 = load_device("A100-40GB")
    >>> a100.memory_bytes, a100.memory_mib, a100.peak("bf16")
    (40000000000, 40960, 312000000000000.0)
    """

    name: str
    memory_bytes: int  # The nominal capacity, 1e9 bytes a GB: the budget of the arithmetic
    memory_bandwidth: float  # Bytes per second
    peak_flops: tuple[tuple[str, float], ...]
    """(precision, FLOP/s), dense: without the factor for structured sparsity."""
    memory_mib: int | None = None  # What the driver reports, where a source for it is at hand
    source: str = ""
    """The documents that the numbers are from; what is arithmetic or a convention says so."""
    checked: str = ""  # What the numbers were compared with, and what was not seen
    multiprocessors: int = 0  # Units that each compute one tile of a matrix product; 0 if unknown
    calibration: str = "other"
    """The file of data/calibration/device with the shares of these numbers that programs reach."""
    capability: str = ""  # Compute capability, such as "9.0"; empty if unknown
    clock: float = 0.0  # Boost clock in Hz; 0 if unknown, as are all the numbers below
    l2_bytes: int = 0
    l2_bytes_per_clock: int = 0  # What all multiprocessors together can read from L2 in a clock
    registers: int = 0  # 32-bit registers of one multiprocessor
    threads: int = 0  # Threads that can be resident on one multiprocessor
    blocks: int = 0  # Thread blocks that can be resident on one multiprocessor
    shared_bytes: int = 0  # Shared memory of one multiprocessor
    block_shared_bytes: int = 0  # That one thread block can have, once it has opted in to more
    shared_bytes_per_clock: int = 0  # What one multiprocessor can read from its own in a clock
    aliases: tuple[str, ...] = ()  # Other names

    @property
    def l2_bandwidth(self) -> float:
        """Bytes per second that the multiprocessors can read from L2, at most; 0 if unknown."""
        return self.l2_bytes_per_clock * self.clock

    @property
    def shared_bandwidth(self) -> float:
        """Bytes per second out of all shared memories together, at most; 0 if unknown: bytes per
        clock of one multiprocessor (32 banks of 4), times multiprocessors, times the clock."""
        return self.shared_bytes_per_clock * self.multiprocessors * self.clock

    def __repr__(self) -> str:
        memory, bandwidth = map(format_bytes, (self.memory_bytes, self.memory_bandwidth))
        peaks = ", ".join(f"{flops / 1e12:.4g} in {name}" for name, flops in self.peak_flops[-3:])
        return f"Device({self.name}: {memory} at {bandwidth}/s, TFLOP/s: {peaks})"

    def peak(self, precision: str) -> float:
        """FLOP/s in ``precision``; one that the datasheet does not give is a ConfigError."""
        peaks = dict(self.peak_flops)
        if precision not in peaks:
            has = ", ".join(peaks)
            raise ConfigError(f"{self.name} has no peak for {precision!r}; it has {has}")
        return peaks[precision]


@dataclass(frozen=True, repr=False)
class ClusterSpec:
    """Equal devices in equal nodes: what a plan is made for.

    >>> spec = load_cluster("80xA100-40GB")
    >>> spec.devices, spec.devices_per_node, spec.device.memory_bytes
    (80, 8, 40000000000)
    """

    devices: int
    device: Device
    devices_per_node: int
    within_node: Link
    between_nodes: Link
    host_bytes: int = 0  # Memory of a node's host, for what is offloaded there; 0 if unknown
    nvme_bytes: int = 0  # Of a node's disks, likewise
    assumed: str = ""
    """What is assumed of devices of which only the memory is known; empty where nothing is."""

    @property
    def uneven(self) -> str:
        """What is assumed of devices that do not fill their nodes; empty where they do."""
        full, last = divmod(self.devices, self.devices_per_node)
        if not (full and last):
            return ""
        nodes = f"{full} full node{'s' * (full > 1)} of {self.devices_per_node}"
        return f"{self.devices} devices are taken as {nodes} and one with {last}"

    def __repr__(self) -> str:
        links = ", ".join(link.name for link in (self.within_node, self.between_nodes))
        return f"ClusterSpec({self}, nodes of {self.devices_per_node}; {links})"

    def __str__(self) -> str:
        size = format_bytes(self.device.memory_bytes)
        return f"{self.devices} x {self.device.name} ({size} each)"


def load_device(name: str) -> Device:
    """The shipped device ``name``; unknown names are a ConfigError."""
    return _cluster(1, _find(name)).device


def load_cluster(spec: str | os.PathLike[str] | ClusterSpec) -> ClusterSpec:
    """The cluster written as COUNTxNAME or COUNTxMEMORY, or described in a JSON file; a ClusterSpec
    comes back as it is.

    Of devices known by their memory alone, "80x40GB", speed and links are assumed to be those of
    the shipped device that has it, or of the nearest, as ``assumed`` says; they have that memory
    to the byte, and nothing beyond it.
    A file holds ``devices`` (their number) and ``device``: a shipped name or an object
    like those in data/hardware; all else in it replaces the device's own: ``devices_per_node``,
    ``within_node``, ``between_nodes``, or ``host_bytes`` and ``nvme_bytes``, the memory and the
    disks of a node for what is offloaded. A link has a ``name``, ``bytes_per_second`` of
    one device in one direction, and may have ``latency`` (seconds; if absent, 5e-6 within and
    10e-6 between nodes) and ``share`` (the part of the bandwidth that collectives reach, or 0.8).

    >>> str(load_cluster("8xH100"))
    '8 x H100 (80 GB each)'
    >>> load_cluster("80x40GB").assumed
    'speed and links of A100-40GB'
    """
    if isinstance(spec, ClusterSpec):
        return spec
    if not isinstance(spec, str | os.PathLike):
        raise ConfigError(
            f"a cluster is named by text such as '80xA100-40GB' or by a path, got {short(spec)}"
        )
    text = os.fspath(spec)
    match = re.fullmatch(r"\s*([0-9]+)\s*[x×]\s*(\S+|[0-9.]+ *[a-z]+)\s*", text, re.IGNORECASE)
    file = text.lower().endswith(".json")
    if match and not file:
        count = int(match[1][:30])
        if not 1 <= count <= MOST_OF_ANY:
            rule = f"a cluster has 1 device or more, and {MOST_OF_ANY:,} at most"
            raise ConfigError(f"{rule}; got {short(text)}")
        if not re.fullmatch(r"[0-9.]+ *[kmgtp]i?b", match[2], re.IGNORECASE):
            return _cluster(count, _find(match[2]))
        if not (size := parse_bytes(match[2])):
            raise ConfigError(f"a device has 1 byte of memory or more, got {short(match[2])}")
        # all else is the nearest shipped device's; of equally near ones, GPUs first
        sizes = {each: _find(each).values["memory_bytes"] for each in names("hardware")}
        far = {each: abs(there - size) for each, there in sizes.items()}
        nearest = min(far, key=lambda each: (far[each], each.startswith("tpu"), each))
        near = _cluster(count, _find(nearest))
        same, shipped = near.device.memory_bytes == size, near.device.name
        name = shipped if same else match[2].replace(" ", "")
        device = replace(near.device, name=name, memory_bytes=size, memory_mib=None, aliases=())
        return replace(near, device=device, assumed=f"speed and links of {shipped}")
    if file or (len(text) < 4096 and Path(text).is_file()):
        fields = read(text)
        fields.need(key for key in ("devices", "device") if key not in fields)
        named = isinstance(fields.values.get("device"), str)
        base = _find(fields.take(str, "device")) if named else fields.object("device")
        own = {key: v for key, v in fields.values.items() if key not in ("devices", "device")}
        return _cluster(fields.take(int, "devices"), Fields({**base.values, **own}, fields.where))
    raise ConfigError(
        f"cannot read {short(text)} as a cluster; write COUNTxNAME such as '80xA100-40GB', "
        f"COUNTxMEMORY such as '80x40GB', or the path of a JSON file"
    )


def _find(name: str) -> Fields:
    """The shipped description of a device by its name or one of its aliases."""
    known = names("hardware")
    for other in known if name.lower() not in known else ():
        described = read_named("hardware", other)
        if name.lower() in map(str.lower, described.values.get("aliases", ())):
            return described
    return read_named("hardware", name)  # or says which there are


def _cluster(devices: int, fields: Fields) -> ClusterSpec:
    """``devices`` of the device in ``fields``, in the nodes described there."""
    values: dict[str, Any] = {"devices": devices, "device": {}}
    own = {field.name for field in dataclasses.fields(Device)}
    for key, value in fields.values.items():
        (values["device"] if key in own else values)[key] = value
        if key in LATENCY and isinstance(value, dict):
            values[key] = {"latency": LATENCY[key], **value}
    fields = Fields(values, fields.where)
    cluster = fields.record(ClusterSpec)
    for key in LATENCY:
        link = getattr(cluster, key)
        if not 0 < link.share <= 1:
            rule = f"must be above 0 and at most 1, got {link.share:g}"
            raise fields.object(key).fail("share", rule)
        if not link.bytes_per_second:
            raise fields.object(key).fail("bytes_per_second", "must be above 0 bytes/s, got 0")
    return cluster
