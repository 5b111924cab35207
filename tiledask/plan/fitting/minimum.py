"""How many devices at least: states alone against the memory of a device."""

from tiledask.errors import ConfigError
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.units import parse_bytes

__all__ = ["minimum_devices", "zero3_minimum_degree"]


def minimum_devices(
    parameters: int, recipe: str | Recipe = "mixed-adam-16", capacity: int | str = "40GB"
) -> int:
    """The fewest devices whose memory together holds a recipe's states, and nothing else.

    >>> [minimum_devices(200_000_000_000, r) for r in ("fp16-weights", "fp32-weights")]
    [10, 20]
    >>> [minimum_devices(200_000_000_000, r) for r in ("mixed-adam-16", "mixed-adam-18")]
    [80, 90]
    """
    whole = _parameters(parameters) * load_recipe(recipe).bytes_per_parameter
    return -(-whole // _capacity(capacity))


def zero3_minimum_degree(
    parameters: int, recipe: str | Recipe = "mixed-adam-16", capacity: int | str = "40GB"
) -> int:
    """The smallest data-parallel degree d at which ZeRO-3 holds a recipe's states:
    parameters x bytes / d <= capacity.

    States alone, dealt out evenly: no activations, no gathered weights.

    >>> zero3_minimum_degree(200_000_000_000)
    80
    """
    room, each = _capacity(capacity), load_recipe(recipe).bytes_per_parameter
    if room < each:
        raise ConfigError(
            f"a device of {room} B does not hold one parameter of {each} B; no degree helps"
        )
    return minimum_devices(parameters, recipe, capacity)


def _parameters(parameters: int) -> int:
    if isinstance(parameters, bool) or not isinstance(parameters, int) or parameters < 1:
        raise ConfigError(f"parameters must be an integer of 1 or more, got {parameters!r}")
    return parameters


def _capacity(capacity: int | str) -> int:
    room = parse_bytes(capacity)
    if room < 1:
        raise ConfigError(f"a capacity must be 1 byte or more, got {capacity!r}")
    return room
