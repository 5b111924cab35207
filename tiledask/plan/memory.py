"""Bytes on every pipeline stage: a ledger row per tensor class and moment.

             always                    forward      loss         backward        optimizer step
stage s   weights, gradients,       activations  activations  activations      (activations
          master weights, momentum,              logits       + one layer's     are gone)
          variance                                            gradients
peak = always + the fullest moment
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tiledask.errors import ConfigError
from tiledask.plan.activations import alive, layer_bytes
from tiledask.plan.layout import Layout
from tiledask.plan.ledger import Ledger, Row
from tiledask.plan.model import Model, count
from tiledask.plan.recipes import Recipe, load_recipe
from tiledask.plan.units import format_bytes

__all__ = ["MemoryEstimate", "estimate_memory", "stage_parameters", "stage_rows"]

FORWARD, LOSS, BACKWARD, STEP = "forward", "loss", "backward", "optimizer step"

_ZERO = "Rajbhandari et al. 2020, arXiv:1910.02054, Table 1"
_KORTHIKANTI = "Korthikanti et al. 2022, arXiv:2205.05198"


@dataclass(frozen=True, repr=False)
class MemoryEstimate:
    """What a layout needs on each device, and why.

    >>> from tiledask.plan.specs import load_model
    >>> gpt2 = load_model("gpt2")
    >>> estimate_memory(gpt2, Layout(), sequence=1024).ledger.by_tensor(0)["weights"]
    248879616
    """

    model: Model
    layout: Layout
    recipe: Recipe
    sequence: int
    """Tokens per sequence."""
    ledger: Ledger
    """Places are pipeline stages; bytes are those of one device of the stage."""

    @property
    def per_stage(self) -> tuple[int, ...]:
        """Peak bytes on one device of each stage."""
        return tuple(self.ledger.per_place.values())

    @property
    def peak(self) -> int:
        """Bytes on the fullest device."""
        return self.ledger.peak

    @property
    def total(self) -> int:
        """Peak bytes of all devices together."""
        return sum(self.per_stage) * self.layout.dp * self.layout.tp

    def __repr__(self) -> str:
        return (
            f"MemoryEstimate({self.model.name}, {self.layout}, {self.recipe.name}, "
            f"sequence {self.sequence}: peak {format_bytes(self.peak)} per device)"
        )

    def _repr_html_(self) -> str:
        place, moment, _ = self.ledger.binding
        tensors = list(dict.fromkeys(row.tensor for row in self.ledger.rows))
        head = "".join(f"<th>{name}</th>" for name in ("stage", *tensors, "peak"))
        body = ""
        for stage, peak in self.ledger.per_place.items():
            held = self.ledger.by_tensor(stage)
            cells = "".join(f"<td>{format_bytes(held.get(name, 0))}</td>" for name in tensors)
            body += f"<tr><th>{stage}</th>{cells}<td><b>{format_bytes(peak)}</b></td></tr>"
        return (
            f"<table><caption>{self!r}; the fullest is stage {place} at {moment}. Each stage is "
            f"shown at its own fullest moment; GB = 1e9 bytes.</caption><tr>{head}</tr>{body}"
            f"</table>"
        )


def estimate_memory(
    model: Model,
    layout: Layout,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int = 2048,
) -> MemoryEstimate:
    """Bytes per device on every pipeline stage, by tensor class and moment.

    States follow the recipe and ZeRO (Rajbhandari et al. 2020, Table 1), activations
    Korthikanti et al. 2022 (Table 2) times the micro-batches in flight. Beside these stand
    the logits, the gradients of one layer's activations during its backward (an upper
    bound: all of them at once) and what ZeRO gathers for one layer. A recipe without
    gradients is one forward pass without a key-value cache: the tensors of one layer at a
    time. Not in here: what the driver, the libraries and the allocator take; see ``fits``.

    A tensor parallelism that the heads do not allow is a ConfigError, more stages than
    layers a PartitionError.

    >>> from tiledask.plan.specs import load_model
    >>> estimate_memory(load_model("gpt-200b"), Layout(tp=8, pp=10, recompute="full"))
    MemoryEstimate(gpt-200b, dp=1 tp=8 pp=10 recompute=full, mixed-adam-16, sequence 2048: peak 43.12 GB per device)
    """  # noqa: E501
    if isinstance(sequence, bool) or not isinstance(sequence, int) or sequence < 1:
        raise ConfigError(f"sequence must be an integer of 1 or more tokens, got {sequence!r}")
    recipe = load_recipe(recipe)
    model.check_tp(layout.tp)
    rows = (
        row
        for stage in range(layout.pp)
        for row in stage_rows(model, layout, recipe, sequence, stage)
    )
    return MemoryEstimate(model, layout, recipe, sequence, Ledger.of(rows))


def stage_parameters(model: Model, layout: Layout, stage: int) -> int:
    """Parameters on one device of ``stage``, before any sharding over data parallelism.

    The last of several stages holds the embedding matrix once more if it is tied.
    """
    return sum(n * size for n, size in _items(model, layout, stage).values())


def _items(model: Model, layout: Layout, stage: int) -> dict[str, tuple[int, int]]:
    """Items on ``stage``: name -> (how many, parameters of each on one device)."""
    layers = layout.stage_layers(stage, model.layers)
    items = {"layer": (layers, count(model.layer, layout.tp))} if layers else {}
    if stage == 0:
        items["embedding"] = (1, count(model.embedding, layout.tp))
    if stage == layout.pp - 1:
        head = model.head + (model.tied_copy if layout.pp > 1 else ())
        items["head"] = (1, count(head, layout.tp))
    return items


def stage_rows(
    model: Model, layout: Layout, recipe: Recipe, sequence: int, stage: int
) -> Iterator[Row]:
    """The ledger rows of one stage; the parts are in the functions below."""
    yield from _states(model, layout, recipe, stage)
    yield from _gathered(model, layout, recipe, stage)
    if recipe.trains:
        yield from _training(model, layout, recipe, sequence, stage)
        yield Row(stage, "activations", STEP, 0, "freed by the backward pass")
    else:
        yield from _serving(model, layout, recipe, sequence, stage)


def _states(model: Model, layout: Layout, recipe: Recipe, stage: int) -> Iterator[Row]:
    parameters = stage_parameters(model, layout, stage)
    for state in recipe.states:
        cut = state.sharded(layout.zero) and layout.dp > 1
        held = -(-parameters // layout.dp) if cut else parameters
        formula = f"{state.bytes} B x {parameters:,} parameters" + (
            f" / dp {layout.dp} (ZeRO-{layout.zero})" if cut else ""
        )
        source = _ZERO if cut else recipe.source
        yield Row(stage, state.tensor, state.moment, state.bytes * held, formula, source)


def _gathered(model: Model, layout: Layout, recipe: Recipe, stage: int) -> Iterator[Row]:
    """What ZeRO holds whole for a while: the weights of one item, its gradients before
    they are reduced."""
    if layout.dp == 1 or layout.zero < 2:
        return
    items = _items(model, layout, stage)
    name = max(items, key=lambda item: items[item][1])
    size = items[name][1]
    moments = (FORWARD, LOSS, BACKWARD) if recipe.trains else (FORWARD,)
    if layout.zero == 3:
        formula = f"{recipe.weight_bytes} B x {size:,} parameters of the largest item, {name}"
        for moment in moments:
            yield Row(stage, "gathered weights", moment, recipe.weight_bytes * size, formula, _ZERO)
    if recipe.trains:
        formula = f"{recipe.gradient_bytes} B x {size:,} parameters of the largest item, {name}"
        yield Row(
            stage, "unreduced gradients", BACKWARD, recipe.gradient_bytes * size, formula, _ZERO
        )


def _training(
    model: Model, layout: Layout, recipe: Recipe, sequence: int, stage: int
) -> Iterator[Row]:
    width = recipe.compute_bytes
    kept = _kept(model, layout, sequence, width, stage)
    for moment in (FORWARD, LOSS, BACKWARD) if stage == layout.pp - 1 else (FORWARD, BACKWARD):
        for tensor, size, formula, source in kept:
            yield Row(stage, tensor, moment, size, formula, source)
    if stage == layout.pp - 1:
        yield from _logits(model, layout, sequence, width, stage)
    if not layout.stage_layers(stage, model.layers):
        return
    backward = layer_bytes(model, layout, sequence, width, "none", masks=False)
    yield Row(
        stage, "activation gradients", BACKWARD, backward,
        "gradients of one layer's activations, all at once", "upper bound",
    )  # fmt: skip
    if layout.recompute != "none":
        whole = layer_bytes(model, layout, sequence, width, "none")
        again = whole - layer_bytes(model, layout, sequence, width)
        yield Row(
            stage, "recomputed activations", BACKWARD, again,
            f"what {layout.recompute} recomputation dropped of one layer", _KORTHIKANTI,
        )  # fmt: skip


def _kept(
    model: Model, layout: Layout, sequence: int, width: int, stage: int
) -> list[tuple[str, int, str, str]]:
    """Activations kept from the forward pass: (tensor, bytes, formula, source)."""
    chunks = layout.chunk_layers(model.layers)[stage :: layout.pp]
    states = alive(layout, stage)
    held = max(sum(n * layers for n, layers in zip(state, chunks, strict=True)) for state in states)
    each = layer_bytes(model, layout, sequence, width)
    formula = (
        f"{each:,} B a layer and micro-batch (recompute {layout.recompute}) x {held} layers in "
        f"flight ({layout.schedule}, {sum(chunks)} layers here)"
    )
    kept = [("activations", held * each, formula, f"{_KORTHIKANTI}, Table 2")]
    tokens = _cut(sequence, layout)
    first, last = (max(state[chunk] for state in states) for chunk in (0, -1))
    if stage == 0 and (per_token := model.hidden * (model.dropout + width * model.embedding_norm)):
        size = tokens * per_token * first
        kept.append(
            ("embedding activations", size, "dropout mask, 1 B, and norm input of each token, "
             f"x {first} micro-batches", f"{_KORTHIKANTI}, section 4.3"),
        )  # fmt: skip
    if stage == layout.pp - 1:
        inputs = 1 + (model.norm != "none")
        kept.append(
            ("head activations", inputs * width * model.hidden * tokens * last,
             f"inputs of the final norm and of the output projection, {width} B each, "
             f"x {last} micro-batches", f"{_KORTHIKANTI}, section 4.3"),
        )  # fmt: skip
    return kept


def _logits(model: Model, layout: Layout, sequence: int, width: int, stage: int) -> Iterator[Row]:
    """Logits in single precision, from the end of the forward pass to their gradient."""
    waiting = max(state[-1] for state in alive(layout, stage))
    elements = sequence * layout.microbatch * -(-model.vocab // layout.tp)
    formula = f"4 B x {elements:,} logits x "
    source = f"{_KORTHIKANTI}, section 4.3"
    for moment, n in ((FORWARD, waiting), (LOSS, waiting), (BACKWARD, waiting - 1)):
        yield Row(stage, "logits", moment, 4 * elements * n, formula + f"{n} micro-batches", source)
    yield Row(
        stage, "logit gradients", LOSS, width * elements,
        f"{width} B x {elements:,} logits", "cast back to the precision of the product",
    )  # fmt: skip


def _serving(
    model: Model, layout: Layout, recipe: Recipe, sequence: int, stage: int
) -> Iterator[Row]:
    width = recipe.compute_bytes
    if layout.stage_layers(stage, model.layers):
        size = layer_bytes(model, layout, sequence, width, "none", masks=False)
        yield Row(
            stage, "working activations", FORWARD, size,
            "tensors of one layer, all at once", "upper bound",
        )  # fmt: skip
    if stage == layout.pp - 1:
        elements = sequence * layout.microbatch * -(-model.vocab // layout.tp)
        yield Row(
            stage, "logits", FORWARD, width * elements, f"{width} B x {elements:,} logits",
            "one forward pass over the whole sequence",
        )  # fmt: skip


def _cut(sequence: int, layout: Layout) -> int:
    """Tokens of a micro-batch on one device outside the tensor-parallel products."""
    shards = layout.tp if layout.sequence_parallel else 1
    return layout.microbatch * -(-sequence // shards)
