"""What data parallelism and ZeRO call in a training step, and who keeps which numbers.

            gradients           forward             backward            after the step
plain       all_reduce          -                   -                   -
ZeRO-1, 2   reduce_scatter      -                   -                   all_gather of weights
ZeRO-3      reduce_scatter      all_gather          all_gather          -

Rajbhandari et al. 2020, arXiv:1910.02054, section 7: as many bytes as without ZeRO for stages 1
and 2, half as many again for stage 3.
"""

from collections.abc import Mapping

from oracles.expected_calls import Expected, all_reduced, expected

from tiledask.plan.collectives.shards import shards

Calls = tuple[Expected, ...]


def zero_step(
    layers: Mapping[str, int],
    ranks: int,
    zero: int,
    weight_bytes: int,
    gradient_bytes: int,
    early: bool | None = None,
    algorithm: str | None = None,
) -> Calls:
    """All collectives of a step, in order, for ``layers``: numbers by name.

    ``early``: gradients are summed layer by layer during the backward, so that nobody keeps all
    of them; default: from ZeRO-2 on.

    >>> layers = {"one": 8, "two": 8}
    >>> [sum(c.cost.sent[0] for c in zero_step(layers, 4, zero, 4, 4)) for zero in range(4)]
    [96, 96, 96, 144]
    """
    early = zero >= 2 if early is None else early
    sharded = dict(zip(layers, shards(list(layers.values()), ranks), strict=True))

    def gather(name: str, when: str) -> Calls:
        return expected(f"{name}/{when}", "all_gather", sharded[name], weight_bytes, algorithm)

    def add_up(name: str) -> Calls:
        label = f"{name}/gradients"
        if zero == 0:
            return all_reduced(label, layers[name], ranks, gradient_bytes, algorithm)
        return expected(label, "reduce_scatter", sharded[name], gradient_bytes, algorithm)

    calls: list[Calls] = []
    if zero == 3:
        calls += [gather(name, "forward") for name in layers]
    for name in reversed(list(layers)):
        calls += [gather(name, "backward")] if zero == 3 else []
        calls += [add_up(name)] if early else []
    calls += [] if early else [add_up(name) for name in layers]
    calls += [gather(name, "weights") for name in layers] if zero in (1, 2) else []
    return tuple(call for each in calls for call in each)
