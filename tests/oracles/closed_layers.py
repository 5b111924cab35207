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

from typing import NamedTuple

from tiledask.plan.collectives.algorithms import default
from tiledask.plan.collectives.cost import cost, even
from tiledask.plan.collectives.shards import deal_heads


class Call(NamedTuple):
    """One collective: its label as in the records of a run, layer/operation/forward or backward;
    elements of each member's chunk; the ranks of the tensor-parallel group that take part."""

    label: str
    kind: str
    counts: tuple[int, ...]
    members: tuple[int, ...]

    def cost(self, itemsize):
        """What the members move, in bytes."""
        return cost(self.kind, default(self.kind, len(self.members)), self.counts, itemsize)


class LayerCalls(NamedTuple):
    """The collectives of a layer in their order."""

    forward: tuple[Call, ...] = ()
    backward: tuple[Call, ...] = ()

    @property
    def calls(self):
        """Of a whole step."""
        return self.forward + self.backward

    def then(self, *others):
        """This layer, then those; backwards in the opposite order."""
        for other in others:
            self = LayerCalls(self.forward + other.forward, other.backward + self.backward)
        return self

    def inside(self, label):
        """The same as parts of a layer called ``label``."""
        return LayerCalls(
            *(tuple(c._replace(label=f"{label}/{c.label}") for c in calls) for calls in self)
        )


class Stream(NamedTuple):
    """What flows between layers: [batch, tokens, width] over ``ranks``, cut along its tokens if
    ``sequence``; layers that ``regather`` keep only their shard and gather again backwards.

    >>> Stream(2, 7, 16, ranks=4, sequence=True).chunks
    (64, 64, 64, 32)
    """

    batch: int
    tokens: int
    width: int
    ranks: int
    sequence: bool = False
    regather: bool = False

    @property
    def chunks(self):
        """Elements of each rank's chunk in a collective."""
        if self.sequence:
            return tuple(self.batch * n * self.width for n in even(self.tokens, self.ranks))
        return even(self.batch * self.tokens * self.width, self.ranks)

    def calls(self, forward=(), backward=()):
        """Of (label, kind, counts) of all ranks; one rank alone calls nothing."""
        if self.ranks == 1:
            return LayerCalls()
        everyone = tuple(range(self.ranks))
        both = forward, backward
        return LayerCalls(*(tuple(Call(*each, everyone) for each in calls) for calls in both))


def column_linear(x, *names):
    """Of x w, w cut along its columns; or of several such matrices that all take x, and are gone
    through backwards in the same order."""
    forward, backward = [], []
    for name in names or ("column_linear",):
        into, back = f"{name}/forward", f"{name}/backward"
        if x.sequence:
            forward.append((into, "all_gather", x.chunks))
            backward += [(back, "all_gather", x.chunks)] * x.regather
        backward.append((back, "reduce_scatter" if x.sequence else "all_reduce", x.chunks))
    return x.calls(forward, backward)


def row_linear(y, name="row_linear"):
    """Of x w, w cut along its rows; ``y`` is what comes out."""
    kind = "reduce_scatter" if y.sequence else "all_reduce"
    back = [(f"{name}/backward", "all_gather", y.chunks)] * y.sequence
    return y.calls([(f"{name}/forward", kind, y.chunks)], back)


def embedding(y):
    """Of a table cut along its rows: each rank adds the rows that it has."""
    return row_linear(y, "embedding")


def cross_entropy(x):
    """Of logits cut along their classes: the maximum and two sums of each token.

    3 b s elements in 2 barriers (Megatron has 3), where gathering the logits would move b s V.
    """
    each = {"maximum": 1, "sums": 2}
    counts = {what: even(n * x.batch * x.tokens, x.ranks) for what, n in each.items()}
    return x.calls((f"cross_entropy/{what}/forward", "all_reduce", n) for what, n in counts.items())


def norm(x, bias, name):
    """Of a norm of ``x``: its weights' gradients, where every rank sees other tokens."""
    summed = (f"{name}/backward", "all_reduce", even(x.width * (1 + bias), x.ranks))
    return x.calls(backward=[summed] * x.sequence)


def mlp(x):
    return column_linear(x, "w_1").then(row_linear(x, "w_2")).inside("mlp")


def swiglu_mlp(x, fused=True):
    """``fused``: gate and up are one matrix, w_gate_up."""
    into = column_linear(x, *(["w_gate_up"] if fused else ["w_gate", "w_up"]))
    return into.then(row_linear(x, "w_down")).inside("mlp")


def self_attention(x, query, kv, width, fused=True, bias=False):
    """Of attention by heads: ``query`` and ``kv`` heads of ``width`` columns.

    ``fused``: q, k and v are one matrix, wqkv, as in Megatron-LM: one all_reduce backward. Of wq,
    wk and wv each has its own.
    """
    into = column_linear(x, *(["wqkv"] if fused else ["wq", "wk", "wv"]))
    _, heads = deal_heads(query, kv, x.ranks)
    columns = 2 * width * (x.width + bias)  # of k and of v, with their biases
    sums = tuple(
        Call("shared kv/backward", "all_reduce", even(columns * (stop - start), len(ranks)), ranks)
        for ranks, (start, stop) in heads.shared()
    )
    into = into._replace(backward=into.backward + sums)
    return into.then(row_linear(x, "wo")).inside("attention")


def decoder_block(x, *heads, fused=True, gated=True, norm_bias=False, bias=False):
    """Of a block: norm, attention, norm, feed-forward; ``heads`` and ``fused`` as in these."""
    feed = swiglu_mlp(x, fused) if gated else mlp(x)
    attention = self_attention(x, *heads, fused, bias)
    return norm(x, norm_bias, "norm_1").then(attention, norm(x, norm_bias, "norm_2"), feed)


def bytes_by_rank(calls, ranks, itemsize):
    """(sent, received) in bytes by each rank of the group in all of ``calls``.

    >>> bytes_by_rank(column_linear(Stream(1, 4, 2, ranks=2)).calls, 2, itemsize=8)
    ((64, 64), (64, 64))
    """
    sent, received = [0] * ranks, [0] * ranks
    for call in calls:
        each = call.cost(itemsize)
        for i, rank in enumerate(call.members):
            sent[rank] += each.sent[i]
            received[rank] += each.received[i]
    return tuple(sent), tuple(received)
