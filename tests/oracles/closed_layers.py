"""The collectives of tensor-parallel layers, forward and backward, before anything runs.

t ranks; x [batch, tokens, in] is on all of them, or cut along its tokens (sequence parallel):

                 forward                           backward
column_linear    -            | all_gather x       all_reduce dx | reduce_scatter dx
row_linear       all_reduce y | reduce_scatter y   -             | all_gather dy
embedding        all_reduce y | reduce_scatter y   -             | all_gather dy
cross_entropy    maximum, sums of b s              -
a norm           -                                 -             | all_reduce dw

Behind a bar stands the sequence-parallel form; there a column_linear that keeps only its shard
gathers x once more in the backward. An all_reduce is a reduce_scatter and an
all_gather (Korthikanti et al., arXiv:2205.05198), so both forms move the same bytes as long as
the gathered x is kept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tiledask.errors import ConfigError
from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost, even
from tiledask.plan.collectives.shards import deal_heads
from tiledask.plan.products.traffic import Traffic


class Call(NamedTuple):
    """One collective of a layer."""

    label: str
    """As in the records of a run: layer/operation/forward or backward."""
    kind: str
    counts: tuple[int, ...]
    """Elements of each member's chunk."""
    members: tuple[int, ...]
    """Ranks of the tensor-parallel group that take part."""
    wide: bool = False
    """Whether halves are exchanged in single precision."""

    def itemsize(self, of_activations: int) -> int:
        """Bytes of an element, where activations have ``of_activations``."""
        return 4 if self.wide and of_activations == 2 else of_activations

    def cost(self, itemsize: int, algorithm: str | None = None) -> Traffic:
        """What the members move, in bytes, where activations have ``itemsize`` bytes."""
        chosen = algorithm or default(self.kind, len(self.members))
        return cost(self.kind, chosen, self.counts, self.itemsize(itemsize))


C = TypeVar("C")
"""The kind of call: a Call, or the GridCall of a layer on a grid."""


@dataclass(frozen=True)
class LayerCalls(Generic[C]):
    """The collectives of a layer in their order."""

    forward: tuple[C, ...] = ()
    backward: tuple[C, ...] = ()

    @property
    def calls(self) -> tuple[C, ...]:
        """Of a whole step."""
        return self.forward + self.backward

    def then(self, *others: "LayerCalls[C]") -> "LayerCalls[C]":
        """This layer, then those; backwards in the opposite order."""
        for other in others:
            self = LayerCalls(self.forward + other.forward, other.backward + self.backward)
        return self

    def inside(self: "LayerCalls[Call]", label: str) -> "LayerCalls[Call]":
        """The same as parts of a layer called ``label``."""
        named = (
            tuple(call._replace(label=f"{label}/{call.label}") for call in calls)
            for calls in (self.forward, self.backward)
        )
        return LayerCalls(*named)


@dataclass(frozen=True)
class Stream:
    """What flows between layers: [batch, tokens, width] over ``ranks``.

    >>> Stream(2, 7, 16, ranks=4, sequence=True).chunks
    (64, 64, 64, 32)
    """

    batch: int
    tokens: int
    width: int
    ranks: int
    """Of the tensor-parallel group."""
    sequence: bool = False
    """Whether it is cut along its tokens."""
    regather: bool = False
    """Whether layers keep only their shard, and gather again in the backward."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements of each rank's chunk in a collective."""
        if self.sequence:
            return tuple(self.batch * n * self.width for n in even(self.tokens, self.ranks))
        return even(self.batch * self.tokens * self.width, self.ranks)


def column_linear(x: Stream, name: str = "column_linear") -> LayerCalls[Call]:
    """Of x w, w cut along its columns.

    >>> [(c.label, c.kind, c.counts) for c in column_linear(Stream(1, 4, 2, ranks=2)).calls]
    [('column_linear/backward', 'all_reduce', (4, 4))]
    """
    forward, backward = f"{name}/forward", f"{name}/backward"
    if not x.sequence:
        return _calls(x.ranks, backward=[(backward, "all_reduce", x.chunks)])
    again = [(backward, "all_gather", x.chunks)] if x.regather else []
    back = [*again, (backward, "reduce_scatter", x.chunks)]
    return _calls(x.ranks, [(forward, "all_gather", x.chunks)], back)


def row_linear(y: Stream, name: str = "row_linear") -> LayerCalls[Call]:
    """Of x w, w cut along its rows; ``y`` is what comes out."""
    forward, backward = f"{name}/forward", f"{name}/backward"
    if not y.sequence:
        return _calls(y.ranks, [(forward, "all_reduce", y.chunks)])
    return _calls(
        y.ranks, [(forward, "reduce_scatter", y.chunks)], [(backward, "all_gather", y.chunks)]
    )


def embedding(y: Stream, name: str = "embedding") -> LayerCalls[Call]:
    """Of a table cut along its rows: each rank adds the rows that it has."""
    return row_linear(y, name)


def cross_entropy(x: Stream, smoothing: float = 0.0) -> LayerCalls[Call]:
    """Of logits cut along their classes: the maximum and two sums of each token, three if smoothed.

    3 b s elements in 2 barriers (Megatron has 3), where gathering the logits would move b s V.
    The sums of halves are taken, and exchanged, in single precision.
    """
    tokens, sums = x.batch * x.tokens, 3 if smoothing else 2
    made = _calls(
        x.ranks,
        [
            ("cross_entropy/maximum/forward", "all_reduce", even(tokens, x.ranks)),
            ("cross_entropy/sums/forward", "all_reduce", even(sums * tokens, x.ranks)),
        ],
    )
    return LayerCalls(tuple(call._replace(wide=True) for call in made.forward))


def norm(x: Stream, bias: bool = False, name: str = "norm") -> LayerCalls[Call]:
    """Of a norm of ``x``: its weights' gradients, where every rank sees other tokens."""
    if not x.sequence:
        return LayerCalls()
    counts = even(x.width * (2 if bias else 1), x.ranks)
    return _calls(x.ranks, backward=[(f"{name}/backward", "all_reduce", counts)])


def mlp(x: Stream) -> LayerCalls[Call]:
    """Of the plain feed-forward layer."""
    return column_linear(x, "w_1").then(row_linear(x, "w_2")).inside("mlp")


def swiglu_mlp(x: Stream, fused: bool = True) -> LayerCalls[Call]:
    """Of the gated feed-forward layer; ``fused``: gate and up are one matrix, w_gate_up."""
    into = ["w_gate_up"] if fused else ["w_gate", "w_up"]
    return _into(x, into).then(row_linear(x, "w_down")).inside("mlp")


def self_attention(
    x: Stream, query: int, kv: int, width: int, fused: bool = True, bias: bool = False
) -> LayerCalls[Call]:
    """Of attention by heads: ``query`` and ``kv`` heads of ``width`` columns.

    ``fused``: q, k and v are one matrix, wqkv, as in Megatron-LM: one all_reduce backward. Of wq,
    wk and wv each has its own.

    >>> stream = Stream(1, 8, 16, ranks=2)
    >>> [len(self_attention(stream, 4, 4, 4, fused=f).backward) for f in (True, False)]
    [1, 3]
    """
    into = _into(x, ["wqkv"] if fused else ["wq", "wk", "wv"])
    _, heads = deal_heads(query, kv, x.ranks)
    columns = 2 * width * (x.width + bias)  # of k and of v, with their biases
    sums = [
        Call("shared kv/backward", "all_reduce", even(columns * (stop - start), len(ranks)), ranks)
        for ranks, (start, stop) in heads.shared()
    ]
    into = LayerCalls(into.forward, into.backward + tuple(sums))
    return into.then(row_linear(x, "wo")).inside("attention")


def decoder_block(
    x: Stream,
    query: int,
    kv: int,
    width: int,
    fused: bool = True,
    gated: bool = True,
    norm_bias: bool = False,
    bias: bool = False,
) -> LayerCalls[Call]:
    """Of a block: norm, attention, norm, feed-forward; ``fused`` as in both of these.

    >>> [len(decoder_block(Stream(1, 8, 16, ranks=2), 4, 4, 4, fused=fused).calls)
    ...  for fused in (True, False)]
    [4, 7]
    """
    feed = swiglu_mlp(x, fused=fused) if gated else mlp(x)
    attention = self_attention(x, query, kv, width, fused=fused, bias=bias)
    return norm(x, norm_bias, "norm_1").then(attention, norm(x, norm_bias, "norm_2"), feed)


def bytes_by_rank(calls: Iterable[Call], ranks: int, itemsize: int) -> tuple[Sequence[int], ...]:
    """(sent, received) in bytes by each rank of the group in all of ``calls``.

    >>> bytes_by_rank(column_linear(Stream(1, 4, 2, ranks=2)).calls, 2, itemsize=8)
    ((64, 64), (64, 64))
    """
    sent, received = [0] * ranks, [0] * ranks
    for call in calls:
        if not set(call.members) <= set(range(ranks)):
            raise ConfigError(f"{call.label} has ranks {call.members}, the group only {ranks}")
        each = call.cost(itemsize)
        for i, rank in enumerate(call.members):
            sent[rank] += each.sent[i]
            received[rank] += each.received[i]
    return tuple(sent), tuple(received)


def _into(x: Stream, names: Sequence[str]) -> LayerCalls[Call]:
    """Of the matrices that all take x, and are gone through backwards in the same order."""
    all_of = [column_linear(x, name) for name in names]
    return LayerCalls(
        tuple(call for each in all_of for call in each.forward),
        tuple(call for each in all_of for call in each.backward),
    )


_Called = tuple[str, str, tuple[int, ...]]
"""The label, the kind and the counts of a Call."""


def _calls(
    ranks: int, forward: Iterable[_Called] = (), backward: Iterable[_Called] = ()
) -> LayerCalls[Call]:
    """With all ranks as members; one rank alone calls nothing."""
    if ranks == 1:
        return LayerCalls()
    everyone = tuple(range(ranks))
    ways = (tuple(Call(*each, everyone) for each in calls) for calls in (forward, backward))
    return LayerCalls(*ways)
