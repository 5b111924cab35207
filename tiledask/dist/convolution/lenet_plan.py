"""What d2l's LeNet needs in each of its three partitionings, before anything runs."""

from dataclasses import dataclass
from itertools import starmap

from tiledask.dist.convolution.lenet import BOUNDARIES, LENET, flops
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.collectives.convolution import in_stages, layerwise
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.data_parallel import averaging
from tiledask.plan.collectives.expected import Expected
from tiledask.plan.products.placement import split

__all__ = ["Need", "need", "stages_of"]

PARAMETERS = sum(layer.size for layer in LENET)


@dataclass(frozen=True)
class Need:
    """What a partitioning needs of its ranks in one training step."""

    calls: tuple[Expected, ...]
    """All collectives and transfers, in order."""
    parameters: tuple[int, ...]
    """That each rank holds."""
    flops: tuple[int, ...]
    """Of each rank's products."""

    @property
    def sent(self) -> tuple[int, ...]:
        """Bytes that each rank sends."""
        none = (0,) * len(self.flops)
        return tuple(map(sum, zip(none, *(call.cost.sent for call in self.calls), strict=True)))

    @property
    def barriers(self) -> int:
        """How often all ranks wait for all."""
        return sum(call.kind not in ("send", "recv") for call in self.calls)

    @property
    def transfers(self) -> int:
        """Messages from one rank to another that no other waits for."""
        return sum(call.kind == "send" for call in self.calls)

    @property
    def imbalance(self) -> float:
        """Operations of the busiest rank over their mean: 1 is perfect."""
        return max(self.flops) * len(self.flops) / sum(self.flops)


def need(name: str, images: int, ranks: int, itemsize: int) -> Need:
    """The Need of "layerwise", "network" or "data parallel" for a batch of ``images``.

    >>> found = need("network", 256, 4, 4)
    >>> found.parameters, found.transfers, sum(found.sent)
    ((200, 25050, 102528, 1290), 6, 8822784)
    """
    if name == "layerwise":
        calls = layerwise(BOUNDARIES, images, ranks, itemsize)
        dealt = [even(boundary.units, ranks) for boundary in BOUNDARIES]
        held = [
            [layer.size // boundary.units * n for n in units]
            for layer, boundary, units in zip(LENET, BOUNDARIES, dealt, strict=True)
        ]
        done = [
            [flops(layer.name, images, n) for n in units]
            for layer, units in zip(LENET, dealt, strict=True)
        ]
        return Need(calls, _by_rank(held), _by_rank(done))
    if name == "network":
        stages = [[LENET[i] for i in stage] for stage in stages_of(ranks)]
        ends = [BOUNDARIES[stage[-1]] for stage in stages_of(ranks)]
        calls = in_stages(ends, images, ranks, itemsize)
        return Need(
            calls,
            tuple(sum(layer.size for layer in stage) for stage in stages),
            tuple(sum(flops(layer.name, images) for layer in stage) for stage in stages),
        )
    if name == "data parallel":
        calls = averaging(PARAMETERS, ranks, itemsize)
        calls = tuple(call._replace(label=f"gradients/{call.label}") for call in calls)
        work = tuple(
            sum(flops(layer.name, mine) for layer in LENET) for mine in even(images, ranks)
        )
        return Need(calls, (PARAMETERS,) * ranks, work)
    raise ConfigError(
        f"LeNet is split 'layerwise', as a 'network' or 'data parallel', got {name!r}"
    )


def stages_of(ranks: int) -> list[tuple[int, ...]]:
    """Which layers each rank has. Raises PlacementError for more ranks than layers.

    >>> stages_of(4), stages_of(3)
    ([(0,), (1,), (2,), (3,)], [(0, 1), (2,), (3,)])
    """
    if ranks > len(LENET):
        raise PlacementError(
            f"a stage has a layer or more, and LeNet has {len(LENET)}: got {ranks} ranks; use "
            f"{len(LENET)} or fewer"
        )
    return list(map(tuple, starmap(range, split(0, len(LENET), ranks))))


def _by_rank(by_layer: list[list[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*by_layer, strict=True)))
