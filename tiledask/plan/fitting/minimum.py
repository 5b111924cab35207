"""How many devices at least: states alone against the memory of a device, filled to the last
byte. How many it takes with activations and overhead, ``fits`` says."""

from bisect import bisect_left

from tiledask.errors import ConfigError
from tiledask.plan.inputs.recipes import Recipe, load_recipe, state_bytes
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
    """The smallest data-parallel degree d at which ``state_bytes`` under ZeRO-3 are ``capacity`` or
    fewer: for states that ZeRO deals out, parameters x bytes / d.

    States alone, in shards of whole parameters: no activations, no gathered weights.

    >>> zero3_minimum_degree(200_000_000_000)
    80
    """
    room, degrees = _capacity(capacity), range(1, _parameters(parameters) + 1)

    def held(degree: int) -> int:
        return sum(state_bytes(parameters, recipe, 3, degree).values())

    if held(parameters) > room:
        each = load_recipe(recipe).bytes_per_parameter
        raise ConfigError(
            f"a device of {room} B does not hold one parameter of {each} B, and what ZeRO-3 leaves "
            f"whole of the others: {held(parameters)} B; no degree helps"
        )
    return degrees[bisect_left(degrees, True, key=lambda degree: held(degree) <= room)]


def _parameters(parameters: int) -> int:
    if isinstance(parameters, bool) or not isinstance(parameters, int) or parameters < 1:
        raise ConfigError(f"parameters must be an integer of 1 or more, got {parameters!r}")
    return parameters


def _capacity(capacity: int | str) -> int:
    room = parse_bytes(capacity)
    if room < 1:
        raise ConfigError(f"a capacity must be 1 byte or more, got {capacity!r}")
    return room
