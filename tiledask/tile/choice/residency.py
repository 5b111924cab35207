"""Occupancy: the blocks that a multiprocessor holds at one time, and the limit that decides it."""

from dataclasses import dataclass

from tiledask.errors import KernelError
from tiledask.plan.inputs.hardware import Device, load_device
from tiledask.plan.units import format_bytes
from tiledask.tile.choice.config import Config

__all__ = ["Occupancy", "as_device", "occupancy", "refusal"]

WARP = 32
SIDES = 4
"""Parts of a multiprocessor, each with a quarter of the registers; a warp lives in one."""
REGISTER_UNIT = 256
"""Registers that a warp gets are a multiple of it."""
SHARED_UNIT = 128
"""Bytes of shared memory that a block gets are a multiple of it."""
RESERVE = 1024
"""Bytes of shared memory that the system takes of each block, from capability 8.0 on."""
MOST_REGISTERS = 255
"""Registers that one thread can name."""
MOST_THREADS = 1024
"""Threads of one block."""


@dataclass(frozen=True)
class Occupancy:
    """Blocks of one kernel that are resident on one multiprocessor at one time.

    >>> occupancy(Config("mine", (128, 128, 32), (64, 64), 128, 2, "bf16", registers=232), "H200")
    2 blocks of 4 warps per multiprocessor (8 of its 64 warps), limited by registers
    """

    blocks: int
    """0 if not even one fits."""
    warps: int
    """Of one block."""
    most_warps: int
    """Warps that a multiprocessor can hold; 0 if unknown."""
    limits: tuple[tuple[str, int], ...]
    """(what is limited, blocks that it allows), of those limits that are known."""

    @property
    def binding(self) -> str:
        """The limits that allow no more, joined by "and"."""
        return " and ".join(name for name, blocks in self.limits if blocks == self.blocks)

    @property
    def quarters(self) -> float:
        """The share of a multiprocessor that has a warp at all: each computes in one quarter."""
        return min(1.0, self.blocks * self.warps / SIDES)

    @property
    def share(self) -> float:
        """Resident warps over those that a multiprocessor can hold; 0 if that is unknown."""
        return self.blocks * self.warps / self.most_warps if self.most_warps else 0.0

    def __repr__(self) -> str:
        blocks = f"{self.blocks} block{'s' * (self.blocks != 1)}"
        warps = f"{self.warps} warp{'s' * (self.warps != 1)}"
        most = f" ({self.blocks * self.warps} of its {self.most_warps} warps)" * bool(self.share)
        return f"{blocks} of {warps} per multiprocessor{most}, limited by {self.binding}"


def as_device(device: Device | str) -> Device:
    """``device`` itself, or the shipped one of that name; it must tell its multiprocessors."""
    found = load_device(device) if isinstance(device, str) else device
    if not found.multiprocessors:
        raise KernelError(
            f"how tiles share {found.name} depends on its multiprocessors, and its description "
            f"gives none; add 'multiprocessors' to it, or use a shipped device such as 'H200'"
        )
    return found


def occupancy(config: Config, device: Device | str) -> Occupancy:
    """Blocks of ``config`` on one multiprocessor of ``device``, by each limit that is known.

    Registers are given to warps in units of 256, and a warp's come from one of four quarters;
    shared memory in units of 128 bytes, and 1 KiB of each block is the system's from capability
    8.0 on (the arithmetic of cuda_occupancy.h, in the CUDA toolkit). Where nothing is known of the
    device, one block is taken.
    """
    device = as_device(device)
    found: dict[str, int] = {}
    if device.registers and config.registers:
        per_warp = _up(config.registers * WARP, REGISTER_UNIT)
        found["registers"] = device.registers // SIDES // per_warp * SIDES // config.warps
    if device.shared_bytes and config.shared_bytes:
        reserve = RESERVE if _at_least(device.capability, "8.0") else 0
        taken = _up(config.shared_bytes + reserve, SHARED_UNIT)
        found["shared memory"] = device.shared_bytes // taken
        if config.shared_bytes > device.block_shared_bytes:
            found["shared memory"] = 0
    if device.threads:
        found["threads"] = device.threads // WARP // config.warps
    if device.blocks:
        found["blocks"] = device.blocks
    limits = tuple(found.items()) or (("unknown limits", 1),)
    blocks = min(allowed for _, allowed in limits)
    return Occupancy(blocks, config.warps, device.threads // WARP, limits)


def refusal(config: Config, device: Device | str) -> str:
    """Why ``device`` cannot run ``config``, with both numbers; empty if it can.

    >>> refusal(Config("mine", (256, 256, 64), (64, 64), 512, 2, "bf16", stages=4), "A100-40GB")
    '262.1 kB of shared memory per block, and A100-40GB has 166.9 kB: fewer stages or smaller tiles'
    """
    device = as_device(device)
    if not config.peak:
        return f"{config.kernel!r} runs on a CPU; td.tile.traffic counts its bytes"
    has, least = device.capability, config.capability
    if has and least and not (has == least if config.exactly else _at_least(has, least)):
        only = "exactly" if config.exactly else "or higher"
        return (
            f"needs compute capability {config.capability} {only}, and {device.name} has "
            f"{device.capability}"
        )
    if config.peak and config.peak not in dict(device.peak_flops):
        return f"computes in {config.peak}, and {device.name} has no {config.peak}"
    if config.threads > MOST_THREADS:
        return f"{config.threads} threads per block, and a block has {MOST_THREADS} at most"
    if config.registers > MOST_REGISTERS:
        return (
            f"{config.registers} registers per thread, and a thread has {MOST_REGISTERS} at "
            f"most: smaller tiles or more threads"
        )
    if device.block_shared_bytes and config.shared_bytes > device.block_shared_bytes:
        return (
            f"{format_bytes(config.shared_bytes)} of shared memory per block, and {device.name} "
            f"has {format_bytes(device.block_shared_bytes)}: fewer stages or smaller tiles"
        )
    if not occupancy(config, device).blocks:
        return (
            f"not one block fits a multiprocessor of {device.name} for its "
            f"{occupancy(config, device).binding}: smaller tiles or fewer threads"
        )
    return ""


def _at_least(capability: str, least: str) -> bool:
    """Whether ``capability`` is known and not below; "10.0" is above "9.0"."""
    return bool(capability) and _numbers(capability) >= _numbers(least)


def _numbers(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
