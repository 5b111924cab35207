"""What a framework holds in memory beyond the arithmetic, from the shipped files of calibration."""

from functools import cache
from typing import Any, NamedTuple

from tiledask.plan.data import read_named

__all__ = ["FrameworkMemory", "calibration_file", "memory_of"]


class FrameworkMemory(NamedTuple):
    """What a framework holds in memory beyond the arithmetic; as it stands here, nobody's own."""

    loss_bytes: int = 6  # of a logit: 4, and 2 of its gradient; more where the loss is not fused
    fp8_input_bytes: int = 2  # of a number that a product in FP8 keeps of its input for backward
    keeps_expert_outputs: int = 1  # until they are weighted; 0: weighted inside the experts
    adapter_input_bytes: int = 0  # of a number of an adapter's input: dropout's copy and its mask
    fused_gate: int = 0  # a gated activation is one kernel, which works its gate out again
    # buffers stay that others free: of each shape of a layer's matrices what autograd gets in place
    # of gradients that are added up already, and the head's input, where the sequence is cut
    keeps_buffers: int = 0
    keeps_sent: int = 0  # what a stage sends, until its gradient comes (torch's stage.py)
    # that the caching allocator holds and nobody uses, and the libraries' workspaces: fitted to
    # every second row of the BLOOM-176B engineering log that ran
    allocator_bytes: int = 2_950_000_000
    # parameters that ZeRO-3 gathers ahead at most, where it gathers weight by weight, and whose
    # gradients wait in a bucket at most; 0: it gathers a layer
    live_weights: int = 0
    live_gradients: int = 0
    uncounted: str = ""  # what runs by it saved of memory that no ledger counts


def _plain(given: Any) -> Any:
    """Lists as tuples; of a number with its range, unit and origin the number."""
    if isinstance(given, dict):
        if "value" in given:
            return float(given["value"])
        return {key: _plain(value) for key, value in given.items()}
    return tuple(given) if isinstance(given, list) else given


@cache
def calibration_file(kind: str, name: str) -> dict[str, Any]:
    """A shipped file; of a framework with all of the one that it is ``like``, but what it fits."""
    own = dict(_plain(read_named(f"calibration/{kind}", name).values))
    if "like" not in own:
        return own
    like = calibration_file(kind, own["like"])
    return like | {"fitted": ()} | own | {"memory": like.get("memory", {}) | own.get("memory", {})}


@cache
def memory_of(framework: str) -> FrameworkMemory:
    """What a run by ``framework`` holds; by "", which is nobody's own, what the arithmetic says.

    >>> [memory_of(name).loss_bytes for name in ("", "megatron-2025", "hf-lora")]
    [6, 14, 16]
    """
    every = calibration_file("framework", framework) if framework else {}
    memory = {key: int(n) for key, n in every.get("memory", {}).items()}
    return FrameworkMemory(**memory, uncounted=every.get("uncounted", ""))
