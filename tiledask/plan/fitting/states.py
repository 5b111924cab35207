"""States alone, against the memory of devices that are filled to the last byte."""

from tiledask.errors import ConfigError
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.units import parse_bytes
from tiledask.plan.whole import whole_number

__all__ = ["minimum_devices", "zero3_minimum_degree"]


def minimum_devices(
    parameters: int, recipe: str | Recipe = "mixed-adam-16", capacity: int | str = "40GB"
) -> int:
    """The fewest devices whose memory together holds a recipe's states, and nothing else.

    >>> [minimum_devices(200_000_000_000, r) for r in ("fp16-weights", "mixed-adam-16")]
    [10, 80]
    """
    room = whole_number("a capacity", parse_bytes(capacity), 1, of="bytes")
    whole = whole_number("parameters", parameters, 1) * load_recipe(recipe).bytes_per_parameter
    return int(-(-whole // room))


def zero3_minimum_degree(
    parameters: int, recipe: str | Recipe = "mixed-adam-16", capacity: int | str = "40GB"
) -> int:
    """The smallest data-parallel degree d at which ZeRO-3 holds a recipe's states alone:
    parameters x bytes that it shards / d + parameters x bytes that it leaves whole <= capacity.

    >>> zero3_minimum_degree(200_000_000_000)
    80
    """
    known, parameters = load_recipe(recipe), whole_number("parameters", parameters, 1)
    whole = sum(s.bytes for s in known.states if s.of == "parameters" and not s.sharded(3))
    each, kept = known.bytes_per_parameter, whole * parameters
    room = whole_number("a capacity", parse_bytes(capacity), 1, of="bytes")
    if room < kept + each - whole:
        raise ConfigError(
            f"a device of {room} B does not hold one parameter of {each} B and what ZeRO-3 leaves "
            f"whole of the others, {kept} B; no degree helps"
        )
    return int(-(-(each - whole) * parameters // (room - kept)))
