"""Training recipes as data: bytes per parameter, and which of them ZeRO shards."""

import os
from dataclasses import dataclass, field, replace
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import names, read, read_named
from tiledask.plan.ledger import ALWAYS
from tiledask.plan.units import parse_bytes
from tiledask.plan.whole import whole_number

__all__ = ["Recipe", "State", "load_recipe", "lora", "minimum_devices"]
__all__ += ["LARGEST_WEIGHT", "offload", "state_bytes", "zero3_minimum_degree"]

NEVER = 4
"""A ZeRO stage that there is not: a state that stays whole on every device."""
DEVICE, CPU, NVME = PLACES = ("device", "cpu", "nvme")
"""Where a state lies: on the device, or of its node in the host's memory or on its disks."""
MOMENTS = (ALWAYS, "forward", "loss", "backward", "optimizer step")
"""When a device may hold something."""
OF_STATES = ("parameters", "adapters", "layers", "embeddings")
OF_WORKING = LARGEST_WEIGHT, SPLIT_LOGIT = ("largest weight", "logit of a split vocabulary")


@dataclass(frozen=True)
class State:
    """One number kept for every parameter, or for a while of what an implementation works with."""

    tensor: str  # Tensor class: "weights", "gradients", "master weights", "momentum", ...
    bytes: int  # Bytes per parameter, or for every ``per`` of them
    zero: int  # The lowest ZeRO stage that shards it over the data-parallel devices; 4: none does
    moment: str = field(default=ALWAYS, metadata={"words": MOMENTS})
    of: str = field(default="parameters", metadata={"words": OF_STATES + OF_WORKING})
    """What it is kept for: all "parameters", "adapters", or those of "layers" or "embeddings"; of
    working memory those of the "largest weight", or a "logit of a split vocabulary"."""
    per: int = 1  # Parameters that ``bytes`` are kept for: 2 of 4 bits, or a block with one scale
    place: str = field(default=DEVICE, metadata={"words": PLACES})

    def sharded(self, zero: Any) -> Any:
        return zero >= self.zero

    def on_device(self, parameters: Any, shard: Any, zero: Any) -> Any:
        """Bytes that a device keeps for ``parameters``, or for its ``shard`` of them."""
        held = parameters + self.sharded(zero) * (shard - parameters)
        return self.bytes * -(-held // self.per)


@dataclass(frozen=True, repr=False)
class Recipe:
    """What training (or serving) keeps for every parameter.

    >>> load_recipe("mixed-adam-16").bytes_per_parameter
    16
    """

    name: str
    description: str
    compute_bytes: int  # Bytes of one number in the forward pass: 2 in half, 4 in single precision
    states: tuple[State, ...]
    source: str = ""
    working: tuple[State, ...] = ()
    adapters: tuple[str, ...] = ()
    """Names of frozen weights beside which low-rank matrices are trained; (): all are trained."""
    rank: int = 0  # Of these matrices
    product_bytes: int = 0
    """Bytes of an operand of the layers' products, where it is cast before them: 1 in FP8. All
    else stays ``compute_bytes`` wide."""
    framework: str = ""  # The one of data/calibration whose recipe it is; empty: nobody's own
    usual: bool = False  # That framework is the device's usual one: nobody has named it
    cached: int = 0  # Tokens, of all sequences that a copy serves, whose keys and values it keeps

    def __repr__(self) -> str:
        states = " + ".join(f"{state.bytes} {state.tensor}" for state in self.states)
        return f"Recipe({self.name}: {states} bytes a parameter)"

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes per parameter of a layer, without adapters; whole but where weights are packed."""
        kept = [s for s in self.states if s.of in ("parameters", "layers")]
        return sum(s.bytes if s.per == 1 else s.bytes / s.per for s in kept)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient as the backward pass writes it; 0 where no parameter is trained."""
        kept = (s for s in self.states if (s.tensor, s.of) == ("gradients", "parameters"))
        return next((s.bytes for s in kept), 0)

    @property
    def operand_bytes(self) -> int:
        """Bytes of an operand of the layers' products."""
        return self.product_bytes or self.compute_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight; 1 of those in 4 bits."""
        return next(s.bytes for s in self.states if s.tensor == "weights")

    @property
    def gathered_bytes(self) -> int:
        """Bytes of a weight as ZeRO gathers it: in the width of the forward pass, if narrower."""
        return min(self.weight_bytes, self.compute_bytes)

    @property
    def offloads_weights(self) -> bool:
        """Whether weights lie elsewhere, and come to the device for a layer at a time."""
        return any(s.tensor == "weights" and s.place != DEVICE for s in self.states)

    @property
    def places(self) -> tuple[str, ...]:
        """Where it keeps what is not on the device: "cpu", "nvme", both or nothing."""
        return tuple(place for place in PLACES[1:] if any(s.place == place for s in self.states))

    @property
    def trains(self) -> bool:
        return self.holds("gradients")

    def holds(self, tensor: str) -> bool:
        """Whether ``tensor`` is one of its states."""
        return any(state.tensor == tensor for state in self.states)


def load_recipe(recipe: str | os.PathLike[str] | Recipe) -> Recipe:
    """The shipped recipe of that name, or the one in a JSON file like those in data/recipes; a
    Recipe comes back as it is."""
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str | os.PathLike):
        raise ConfigError(f"a recipe is a name, a path or a Recipe, got {short(recipe)}")
    text = os.fspath(recipe)
    own = text.lower().endswith(".json") and text.lower() not in names("recipes")
    fields = read(text) if own else read_named("recipes", text)
    found = fields.record(Recipe)
    states = found.states
    if len({state.tensor for state in states}) < len(states):
        raise fields.fail("states", "names a tensor twice; say each once, with all of its bytes")
    if any(state.zero > NEVER for state in states):
        raise fields.fail("zero", f"must be a ZeRO stage, 1, 2 or 3, or {NEVER} for none")
    for key, words in (("states", OF_STATES), ("working", OF_WORKING)):
        if wrong := [state.of for state in getattr(found, key) if state.of not in words]:
            raise fields.fail(key, f"are of one of {words}, got {wrong[0]!r}")
    if bool(found.rank) != bool(found.adapters):
        raise fields.fail("rank", "is that of adapters; give both, or neither")
    if not found.adapters and any(state.of == "adapters" for state in states):
        raise fields.fail("states", "keep something for adapters, and there are none; add them")
    return found


def lora(
    rank: int = 16, matrices: tuple[str, ...] = ("query", "value"), base: str | Recipe = "lora"
) -> Recipe:
    """The recipe ``base`` with adapters of ``rank`` beside the weights called ``matrices``.

    Source: Hu et al. 2021, arXiv:2106.09685, section 4.

    >>> lora(rank=8).rank
    8
    """
    recipe = load_recipe(base)
    if not recipe.adapters:
        raise ConfigError(f"recipe {recipe.name!r} trains all weights; start from 'lora'")
    rank = whole_number("the rank of an adapter", rank, 1)
    if isinstance(matrices, str) or not matrices or not all(isinstance(m, str) for m in matrices):
        rule = "matrices must be a tuple of names such as ('query', 'value')"
        raise ConfigError(f"{rule}, got {matrices!r}")
    return replace(recipe, adapters=tuple(matrices), rank=rank)


def offload(
    recipe: str | Recipe = "mixed-adam-16", states: tuple[str, ...] | None = None, to: str = CPU
) -> Recipe:
    """``recipe`` with some of its ``states`` in the memory of the node's host, ``to="cpu"``, or on
    its disks, "nvme"; "weights" need ZeRO-3, which brings them a layer at a time.

    ``states``: names of what it keeps, by default all that its optimizer does. Its name then says
    what lies where.

    Source: Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840; Rajbhandari et al. 2021, ZeRO-Infinity,
    arXiv:2104.07857.

    >>> offload().places, offload().name
    (('cpu',), 'mixed-adam-16 + optimizer on cpu')
    """
    known = load_recipe(recipe)
    there = [state.tensor for state in known.states]
    optimizer = tuple(state.tensor for state in known.states if state.zero == 1)
    states = optimizer if states is None else states
    if not isinstance(states, tuple | list) or not states or not set(states) <= set(there):
        raise ConfigError(
            f"states must be a tuple of names of what {known.name} keeps, {', '.join(there)}, by "
            f"default all optimizer states; got {short(states)}"
        )
    if to not in PLACES[1:]:
        raise ConfigError(f"states lie on one of {PLACES[1:]}, got to={short(to)}")
    moved = tuple(replace(s, place=to) if s.tensor in states else s for s in known.states)
    words = "optimizer" if tuple(states) == optimizer else ", ".join(states)
    return replace(known, name=f"{known.name} + {words} on {to}", states=moved)


def state_bytes(
    parameters: int, recipe: str | Recipe = "mixed-adam-16", zero: int = 0, dp: int = 1
) -> dict[str, int]:
    """Bytes of each state on one of ``dp`` data-parallel devices, by tensor class; of what is not
    offloaded.

    ZeRO cuts a state into equal shards of whole numbers; the fullest device counts.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, Table 1.

    >>> sum(state_bytes(7_500_000_000, "mixed-adam-16", zero=1, dp=64).values())
    31406250000
    """
    n, zero = whole_number("parameters", parameters, 0), whole_number("zero", zero, 0, 3)
    states, shard = load_recipe(recipe).states, -(-n // whole_number("dp", dp, 1))
    here = (state for state in states if state.of == "parameters" and state.place == DEVICE)
    return {state.tensor: state.on_device(n, shard, zero) for state in here}


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
