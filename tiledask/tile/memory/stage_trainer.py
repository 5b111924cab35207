"""One pipeline stage of a training step on one device, everything it holds in a memory pool.

weights    [embedding | layer | layer | head]     a flat array; views of it are the matrices
forward    keeps what the backward needs, until that micro-batch's backward has used it
backward   adds to the gradients, and lets go of what it has used
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import prod

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.tile.backend import Array, to_numpy
from tiledask.tile.memory import decoder
from tiledask.tile.memory.flat_states import DTYPES, FlatStates
from tiledask.tile.memory.pool import Pool

__all__ = ["Role", "StageTrainer", "check_model"]

FORWARD, LOSS, BACKWARD, STEP = "forward", "loss", "backward", "optimizer step"
SCHEDULES = ("naive", "gpipe", "1f1b", "eager-1f1b")
"""With one chunk on a stage and whole backwards."""


@dataclass(frozen=True)
class Role:
    """Which device of a layout."""

    stage: int = 0
    slice: int = 0
    """Rank of tensor parallelism."""
    copy: int = 0
    """Rank of data parallelism."""


def check_model(model: Model, layout: Layout, recipe: Recipe, sequence: int) -> None:
    """Refuse what no code here executes."""
    plain = {
        "norm": "layernorm",
        "mlp": "gelu",
        "kv_heads": model.heads,
        "experts": 0,
        "qk_norm": None,
        "kv_lora_rank": 0,
        "mtp_layers": 0,
        "embedding_norm": False,
        "dropout": False,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
    }
    simple = {
        "cp": 1,
        "ep": 1,
        "interleave": 1,
        "sequence_parallel": False,
        "flash_attention": False,
    }
    for owner, fields in ((model, plain), (layout, simple)):
        for field, value in fields.items():
            if getattr(owner, field) != value:
                raise ConfigError(
                    f"what can be executed is a decoder like GPT-2's with {field}={value!r}, got "
                    f"{getattr(owner, field)!r}; change it, or run the states alone of "
                    f"model.parameters={model.parameters:,}"
                )
    for field, allowed in (("schedule", SCHEDULES), ("recompute", decoder.RECOMPUTED)):
        if getattr(layout, field) not in allowed:
            raise ConfigError(
                f"what can be executed has {field} of {', '.join(allowed)}, got "
                f"{getattr(layout, field)!r}"
            )
    if 0 < model.learned_pos < sequence:
        raise ConfigError(
            f"{model.name} has {model.learned_pos} positions, got sequence={sequence}; use a "
            f"sequence of {model.learned_pos} or less"
        )
    if not recipe.trains:
        raise ConfigError(
            f"recipe {recipe.name!r} does not train; to hold its weights alone pass "
            f"model.parameters={model.parameters:,} instead of the model"
        )


class StageTrainer:
    """A pipeline stage on one device: slice 0 of ``layout.tp``, copy ``role.copy`` of its dp.

    Sums over slices are left out: each device adds up its own part only, in arrays of the same
    shape. All copies get the same micro-batches, so that the mean of their gradients is each
    one's own, and what ZeRO-3 gathers is drawn again. A tied output projection that is not on the
    embedding's device has gradients of its own; the two are not summed.
    """

    def __init__(
        self,
        pool: Pool,
        model: Model,
        layout: Layout,
        recipe: Recipe,
        sequence: int,
        role: Role,
        seed: int = 0,
    ) -> None:
        self.pool, self.model, self.layout, self.sequence = pool, model, layout, sequence
        self.recipe, self.role, self.seed = recipe, role, seed
        self.heads = -(-model.heads // layout.tp)
        self.ends = role.stage == layout.pp - 1
        self.items = self._items()
        self.bounds = np.cumsum(
            [0] + [sum(map(prod, shapes.values())) for shapes in self.items.values()]
        ).tolist()
        self.states = FlatStates(
            pool, recipe, self.bounds[-1], layout.zero, layout.dp, role.copy, (seed, role.stage)
        )
        self.saved: dict[int, dict[str, Array]] = {}
        """By micro-batch in flight."""
        self.loss = 0.0
        works = [w for w in recipe.working if w.of == "largest weight"]
        self.casts = works[0].tensor if works else ""

    def _items(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Name -> shapes of its weights, in the order in which they lie."""
        model, layout, stage = self.model, self.layout, self.role.stage
        rows: dict[str, tuple[int, ...]] = {"tokens": (-(-model.vocab // layout.tp), model.hidden)}
        items: dict[str, dict[str, tuple[int, ...]]] = {}
        if stage == 0:
            more = {"positions": (model.learned_pos, model.hidden)} if model.learned_pos else {}
            items["embedding"] = rows | more
        layer = decoder.layer_shapes(
            model.hidden, self.heads * model.head_dim, -(-model.ffn // layout.tp)
        )
        for n in range(layout.stage_layers(stage, model.layers)):
            items[f"layer {n}"] = layer
        if self.ends:
            shared = model.tied and stage == 0
            items["head"] = {"norm": (2, model.hidden)} | ({} if shared else rows)
        return items

    @property
    def layers(self) -> list[str]:
        return [name for name in self.items if name.startswith("layer")]

    # -- actions ----------------------------------------------------------------------------------

    def forward(self, i: int, block: np.ndarray | None) -> np.ndarray | None:
        """The block for the next stage; None from the last."""
        self.pool.enter(FORWARD)
        kept: dict[str, Array] = {}
        if self.role.stage == 0:
            kept["ids"] = self.pool.put("token ids", self.tokens(i)[:, :-1])
            value = decoder.embed(self.weights("embedding"), kept["ids"])
        else:
            value = self.pool.xp.asarray(block)
        for name in self.layers:
            x = self.keep(decoder.KEPT, value)
            value, kept[name] = decoder.layer_forward(self.weights(name), x, self.heads, self.keep)
            for dropped in decoder.RECOMPUTED[self.layout.recompute]:
                del kept[name][dropped]
        self.saved[i] = kept
        if not self.ends:
            return _off(self.keep("sent", value))
        x = self.keep("head activations", value)
        kept["head"] = decoder.head_forward(self._head_weights(), x, self.keep)
        return None

    def backward(self, i: int, block: np.ndarray | None) -> np.ndarray | None:
        """The gradient for the stage before; None from the first."""
        kept = self.saved.pop(i)
        self.pool.enter(LOSS if self.ends else BACKWARD)
        if self.ends:
            dy = self._head_backward(kept.pop("head"), i)
        else:
            dy = [self.keep(decoder.GRADIENT, self.pool.xp.asarray(block))]
        for name in reversed(self.layers):
            dy = [self._layer_backward(name, kept.pop(name), dy)]
        if self.role.stage:
            return _off(dy.pop())
        with self.gradients("embedding") as grads:
            decoder.embed_grad(grads, dy.pop(), kept.pop("ids"), self.add)
        return None

    def step(self) -> None:
        """The optimizer's step, once all micro-batches are back."""
        self.pool.enter(STEP)
        self.states.step()

    def _layer_backward(self, name: str, saved: dict[str, Array], dy: list[Array]) -> Array:
        weights = self.weights(name)
        saved = self._complete(saved, weights)
        with self.gradients(name) as grads:
            return decoder.layer_backward(
                weights, grads, saved, dy, self.heads, self.keep, self.add
            )

    def _head_backward(self, saved: dict[str, Array], i: int) -> list[Array]:
        targets, weight = self.tokens(i)[:, 1:], 1 / self.layout.microbatches
        with self.gradients("head") as grads, self._tied_gradients() as more:
            loss, rest = decoder.head_backward(
                self._head_weights(), {**more, **grads}, saved, targets, self.keep, self.add, weight
            )
            self.loss += loss
            self.pool.enter(BACKWARD)
            return [rest()]

    @property
    def _shared(self) -> bool:
        """Whether the output projection is the embedding matrix of this very device."""
        return "tokens" not in self.items["head"]

    def _tied_gradients(self) -> AbstractContextManager[dict[str, Array]]:
        return self.gradients("embedding") if self._shared else nullcontext({})

    def _head_weights(self) -> dict[str, Array]:
        return {**(self.weights("embedding") if self._shared else {}), **self.weights("head")}

    def _complete(self, saved: dict[str, Array], weights: dict[str, Array]) -> dict[str, Array]:
        """``saved`` with what was dropped computed again."""
        if self.layout.recompute == "full":
            _, saved = decoder.layer_forward(weights, saved["x"], self.heads, self.keep)
        elif self.layout.recompute == "selective":
            p = decoder.attention_weights(saved["q"], saved["k"], self.heads)
            saved["p"] = self.keep(decoder.KEPT, p)
        return saved

    # -- memory -----------------------------------------------------------------------------------

    def keep(self, tensor: str, value: Array) -> Array:
        """``value`` in the device's memory, in the precision of the forward pass; logits in
        single precision."""
        width = self.recipe.compute_bytes
        width = max(4, width) if tensor == "logits" else width
        return self.pool.put(tensor, value, DTYPES[width])

    def add(self, gradient: Array, value: Array) -> None:
        """Adds to a gradient; by way of a copy in single precision if the recipe works so."""
        if self.casts:
            value = self.pool.put(self.casts, value, np.float32)
        gradient += value.astype(gradient.dtype, copy=False)

    def weights(self, name: str) -> dict[str, Array]:
        """The weights of an item; under ZeRO-3 gathered for as long as they are used."""
        start, stop = self._bounds(name)
        flat = self.states.part("weights", start, stop)
        if self.layout.zero == 3 and self.layout.dp > 1:
            width = DTYPES[min(self.recipe.weight_bytes, self.recipe.compute_bytes)]
            flat = self.pool.put("gathered weights", self.states.drawn(start, stop), width)
        return decoder.views(flat, self.items[name])

    @contextmanager
    def gradients(self, name: str) -> Iterator[dict[str, Array]]:
        """The gradients of an item, whole; afterwards each copy keeps its share of them."""
        start, stop = self._bounds(name)
        held = self.states.part("gradients", start, stop)
        if self.layout.zero < 2 or self.layout.dp == 1:
            yield decoder.views(held, self.items[name])
            return
        whole = self.pool.empty("unreduced gradients", (stop - start,), held.dtype)
        whole[...] = 0
        yield decoder.views(whole, self.items[name])
        first = max(start, self.states.ranges["gradients"][0])
        held += whole[first - start : first - start + len(held)]

    def _bounds(self, name: str) -> tuple[int, int]:
        at = list(self.items).index(name)
        return self.bounds[at], self.bounds[at + 1]

    def tokens(self, i: int) -> Array:
        """[micro-batch, sequence + 1]: micro-batch i, the same on whichever device."""
        shape = self.layout.microbatch, self.sequence + 1
        rng = np.random.default_rng((self.seed, i))
        return self.pool.xp.asarray(rng.integers(self.model.vocab, size=shape, dtype=np.int32))


def _off(array: Array) -> np.ndarray:
    """A copy for the way to another device; this device's memory is free again."""
    return np.array(to_numpy(array))
