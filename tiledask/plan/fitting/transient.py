"""What comes and goes in a step: activations, gathered weights, logits, gradients.

Rows are of place 0: whoever asks puts them on the stages of that kind.
"""

from collections.abc import Iterator, Mapping, Sequence

from tiledask.plan.fitting.activations import cut_tokens, gradient_bytes, layer_bytes, local_tokens
from tiledask.plan.fitting.states import ZERO, Item, StageKind
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.ledger import Row

__all__ = ["FORWARD", "gathered_rows", "kept_rows", "serving_rows", "working_rows"]

FORWARD, LOSS, BACKWARD, STEP = "forward", "loss", "backward", "optimizer step"

KORTHIKANTI = "Korthikanti et al. 2022, arXiv:2205.05198"


def gathered_rows(layout: Layout, recipe: Recipe, items: tuple[Item, ...]) -> list[Row]:
    """What ZeRO holds whole for a while: the weights of one item, its gradients before
    they are reduced."""
    copies = layout.dp * layout.cp
    sizes = {  # parameters that others hold copies of, so that ZeRO shards them
        item.name: (item.each.dense if copies > 1 else 0)
        + (item.each.expert if copies > layout.ep else 0)
        for item in items
    }
    name = max(sizes, key=sizes.__getitem__, default=None)
    if layout.zero < 2 or name is None or not sizes[name]:
        return []
    size, rows = sizes[name], []
    moments = (FORWARD, LOSS, BACKWARD) if recipe.trains else (FORWARD,)
    if layout.zero == 3 and not recipe.holds("gathered weights"):
        width = recipe.gathered_bytes
        formula = f"{width} B x {size:,} parameters of the largest item, {name}"
        rows += [Row(0, "gathered weights", at, width * size, formula, ZERO) for at in moments]
    if recipe.gradient_bytes and not recipe.holds("unreduced gradients"):
        formula = f"{recipe.gradient_bytes} B x {size:,} parameters of the largest item, {name}"
        waiting = recipe.gradient_bytes * size
        rows += [Row(0, "unreduced gradients", BACKWARD, waiting, formula, ZERO)]
    return rows


def kept_rows(
    model: Model, layout: Layout, recipe: Recipe, sequence: int, kinds: Sequence[StageKind]
) -> list[list[Row]]:
    """For stages of these kinds: activations, at each moment until their backward, and logits."""
    width = recipe.compute_bytes
    mixtures = (False, True) if model.experts else (False,)
    each = {m: layer_bytes(model, layout, sequence, width, mixture=m) for m in mixtures}
    tokens, logits = cut_tokens(layout, sequence), local_tokens(layout, sequence)
    found = []
    for kind in kinds:
        kept = [_kept_layers(layout, kind, each), *_kept_ends(model, width, kind, tokens)]
        moments = (FORWARD, LOSS, BACKWARD) if kind.heads else (FORWARD, BACKWARD)
        rows = [
            Row(0, tensor, moment, size, formula, source)
            for moment in moments
            for tensor, size, formula, source in kept
        ]
        if kind.heads:
            rows += _logits(layout, recipe, kind, logits * -(-model.vocab // layout.tp))
        found.append(rows)
    return found


def working_rows(
    model: Model,
    layout: Layout,
    recipe: Recipe,
    sequence: int,
    kind: StageKind,
    items: tuple[Item, ...],
) -> list[Row]:
    """What a training step works with, whatever is in flight."""
    rows = _one_layer(model, layout, sequence, recipe.compute_bytes, kind)
    largest = max((item.largest for item in items), default=0)
    for work in recipe.working:
        if work.of == "largest weight":
            formula = f"{work.bytes} B x {largest:,} parameters of the largest weight"
            size = work.bytes * largest
            rows += [Row(0, work.tensor, work.moment, size, formula, recipe.source)]
    return [*rows, Row(0, "activations", STEP, 0, "freed by the backward pass")]


_Kept = tuple[str, int, str, str]
"""(tensor, bytes, formula, source) of what is kept from the forward pass."""


def _kept_layers(layout: Layout, kind: StageKind, each: Mapping[bool, int]) -> _Kept:
    states = [
        (
            sum(n * d for n, (d, _) in zip(state, kind.chunks, strict=True)),
            sum(n * m for n, (_, m) in zip(state, kind.chunks, strict=True)),
        )
        for state in kind.alive
    ]
    dense, mixtures = max(states, key=lambda s: s[0] * each[False] + s[1] * each.get(True, 0))
    counted = [(dense, False)] * (True not in each or dense > 0) + [(mixtures, True)] * (
        mixtures > 0
    )
    size = sum(n * each[mixture] for n, mixture in counted)
    terms = " + ".join(
        f"{each[mixture]:,} B a {'mixture ' if mixture else ''}layer and micro-batch x {n}"
        for n, mixture in counted
    )
    formula = (
        f"{terms} layers in flight (recompute {layout.recompute}, {layout.schedule}, "
        f"{sum(kind.layers)} layers here)"
    )
    return "activations", size, formula, f"{KORTHIKANTI}, Table 2"


def _kept_ends(model: Model, width: int, kind: StageKind, tokens: int) -> Iterator[_Kept]:
    """What the embedding and the head keep, if the stage has them."""
    per_token = model.hidden * (model.dropout + width * model.embedding_norm)
    if kind.embeddings and per_token:
        n = _most_alive(kind, 0)
        yield (
            "embedding activations",
            tokens * per_token * n,
            f"dropout mask, 1 B, and norm input of each token, x {n} micro-batches",
            f"{KORTHIKANTI}, section 4.3",
        )
    if kind.heads:
        n, inputs = _most_alive(kind, 1), 1 + (model.norm != "none")
        yield (
            "head activations",
            inputs * width * model.hidden * tokens * n,
            f"inputs of the final norm and of the output projection, {width} B each, "
            f"x {n} micro-batches",
            f"{KORTHIKANTI}, section 4.3",
        )


def _most_alive(kind: StageKind, end: int) -> int:
    """Micro-batches that the first or the last chunk of the model holds at most."""
    at = next(number for number, is_end in enumerate(kind.ends) if is_end[end])
    return max(state[at] for state in kind.alive)


def _logits(layout: Layout, recipe: Recipe, kind: StageKind, elements: int) -> list[Row]:
    """Logits in single precision, from the end of the forward pass to their gradient."""
    waiting, width = _most_alive(kind, 1), recipe.compute_bytes
    formula = f"4 B x {elements:,} logits x "
    source = f"{KORTHIKANTI}, section 4.3"
    rows = [
        Row(0, "logits", moment, 4 * elements * n, formula + f"{n} micro-batches", source)
        for moment, n in ((FORWARD, waiting), (LOSS, waiting), (BACKWARD, waiting - 1))
    ]
    formula = f"{width} B x {elements:,} logits"
    why = "cast back to the precision of the product"
    rows += [Row(0, "logit gradients", LOSS, width * elements, formula, why)]
    for work in recipe.working:
        if work.of == "logit" or (work.of == "logit of a split vocabulary" and layout.tp > 1):
            formula, size = f"{work.bytes} B x {elements:,} logits", work.bytes * elements
            rows += [Row(0, work.tensor, work.moment, size, formula, recipe.source)]
    return rows


def _one_layer(
    model: Model, layout: Layout, sequence: int, width: int, kind: StageKind
) -> list[Row]:
    """What the layer at work holds beyond what it keeps."""
    rows = []
    if layout.sequence_parallel and layout.tp > 1:
        whole = width * model.hidden * local_tokens(layout, sequence)
        source, again = f"{KORTHIKANTI}, section 4.2.2", "one layer's input, gathered again, and"
        rows += [
            Row(0, "gathered sequence", FORWARD, whole, "one layer's input, whole", source),
            Row(
                0, "gathered sequence", BACKWARD, 2 * whole, f"{again} its gradient, whole", source
            ),
        ]
    if not kind.present:
        return rows

    def largest(recompute: str | None) -> int:
        return max(
            layer_bytes(model, layout, sequence, width, recompute, mixture=mixture)
            for mixture in kind.present
        )

    gradients = max(gradient_bytes(model, layout, sequence, width, m) for m in kind.present)
    formula = "of the residual stream and of the two largest tensors of one layer"
    rows += [Row(0, "activation gradients", BACKWARD, gradients, formula, "upper bound")]
    if layout.recompute != "none":
        dropped = largest("none") - largest(None)
        formula = f"what {layout.recompute} recomputation dropped of one layer"
        rows += [Row(0, "recomputed activations", BACKWARD, dropped, formula, KORTHIKANTI)]
    return rows


def serving_rows(
    model: Model, layout: Layout, recipe: Recipe, sequence: int, kind: StageKind
) -> list[Row]:
    """One forward pass over the whole sequence, layer by layer."""
    width, rows = recipe.compute_bytes, []
    sizes = [
        layer_bytes(model, layout, sequence, width, "none", masks=False, mixture=mixture)
        for mixture in kind.present
    ]
    if sizes:
        formula = "tensors of one layer, all at once"
        rows += [Row(0, "working activations", FORWARD, max(sizes), formula, "upper bound")]
    if kind.heads:
        elements = local_tokens(layout, sequence) * -(-model.vocab // layout.tp)
        formula, why = (
            f"{width} B x {elements:,} logits",
            "one forward pass over the whole sequence",
        )
        rows += [Row(0, "logits", FORWARD, width * elements, formula, why)]
    return rows
