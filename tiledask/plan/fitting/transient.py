"""What comes and goes in a step: activations, gathered weights, logits, gradients."""

from collections.abc import Iterator

from tiledask.plan.fitting.activations import cut_tokens, gradient_bytes, layer_bytes, local_tokens
from tiledask.plan.fitting.in_flight import alive
from tiledask.plan.fitting.states import ZERO, Item, chunk_kinds, layer_kinds
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.ledger import Row

__all__ = ["FORWARD", "gathered_rows", "serving_rows", "training_rows"]

FORWARD, LOSS, BACKWARD, STEP = "forward", "loss", "backward", "optimizer step"

KORTHIKANTI = "Korthikanti et al. 2022, arXiv:2205.05198"


def gathered_rows(
    layout: Layout, recipe: Recipe, stage: int, items: tuple[Item, ...]
) -> Iterator[Row]:
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
        return
    size = sizes[name]
    moments = (FORWARD, LOSS, BACKWARD) if recipe.trains else (FORWARD,)
    if layout.zero == 3 and not recipe.holds("gathered weights"):
        width = recipe.gathered_bytes
        formula = f"{width} B x {size:,} parameters of the largest item, {name}"
        for moment in moments:
            yield Row(stage, "gathered weights", moment, width * size, formula, ZERO)
    if recipe.gradient_bytes and not recipe.holds("unreduced gradients"):
        formula = f"{recipe.gradient_bytes} B x {size:,} parameters of the largest item, {name}"
        waiting = recipe.gradient_bytes * size
        yield Row(stage, "unreduced gradients", BACKWARD, waiting, formula, ZERO)


def training_rows(
    model: Model,
    layout: Layout,
    recipe: Recipe,
    sequence: int,
    stage: int,
    items: tuple[Item, ...],
) -> Iterator[Row]:
    """Activations and what is computed with them, at each moment of a training step."""
    width, ends = recipe.compute_bytes, layout.last_chunk in layout.stage_chunks(stage)
    kept = [
        *_kept_layers(model, layout, sequence, width, stage),
        *_kept_ends(model, layout, sequence, width, stage),
    ]
    for moment in (FORWARD, LOSS, BACKWARD) if ends else (FORWARD, BACKWARD):
        for tensor, size, formula, source in kept:
            yield Row(stage, tensor, moment, size, formula, source)
    if ends:
        yield from _logits(model, layout, recipe, sequence, stage)
    yield from _one_layer(model, layout, sequence, width, stage)
    largest = max((item.largest for item in items), default=0)
    for work in recipe.working:
        if work.of == "largest weight":
            formula = f"{work.bytes} B x {largest:,} parameters of the largest weight"
            yield Row(stage, work.tensor, work.moment, work.bytes * largest, formula, recipe.source)
    yield Row(stage, "activations", STEP, 0, "freed by the backward pass")


def _kept_layers(
    model: Model, layout: Layout, sequence: int, width: int, stage: int
) -> Iterator[tuple[str, int, str, str]]:
    """Activations kept from the forward pass: (tensor, bytes, formula, source)."""
    each = {
        mixture: layer_bytes(model, layout, sequence, width, mixture=mixture)
        for mixture in ((False, True) if model.experts else (False,))
    }
    kinds = chunk_kinds(model, layout)
    chunks = [kinds[c] for c in layout.stage_chunks(stage)]
    states = [
        (
            sum(n * d for n, (d, _) in zip(state, chunks, strict=True)),
            sum(n * m for n, (_, m) in zip(state, chunks, strict=True)),
        )
        for state in alive(layout, stage)
    ]
    dense, mixtures = max(states, key=lambda s: s[0] * each[False] + s[1] * each.get(True, 0))
    counted = [(dense, False)] * (not model.experts or dense > 0) + [(mixtures, True)] * (
        mixtures > 0
    )
    size = sum(n * each[mixture] for n, mixture in counted)
    terms = " + ".join(
        f"{each[mixture]:,} B a {'mixture ' if mixture else ''}layer and micro-batch x {n}"
        for n, mixture in counted
    )
    held = sum(d + m for d, m in chunks)
    formula = (
        f"{terms} layers in flight (recompute {layout.recompute}, {layout.schedule}, {held} "
        f"layers here)"
    )
    yield "activations", size, formula, f"{KORTHIKANTI}, Table 2"


def _kept_ends(
    model: Model, layout: Layout, sequence: int, width: int, stage: int
) -> Iterator[tuple[str, int, str, str]]:
    """What the embedding and the head keep, if ``stage`` has them."""
    tokens, chunks = cut_tokens(layout, sequence), layout.stage_chunks(stage)
    if 0 in chunks and (per_token := model.hidden * (model.dropout + width * model.embedding_norm)):
        n = _most_alive(layout, stage, 0)
        yield (
            "embedding activations",
            tokens * per_token * n,
            f"dropout mask, 1 B, and norm input of each token, x {n} micro-batches",
            f"{KORTHIKANTI}, section 4.3",
        )
    if layout.last_chunk in chunks:
        n, inputs = _most_alive(layout, stage, layout.last_chunk), 1 + (model.norm != "none")
        yield (
            "head activations",
            inputs * width * model.hidden * tokens * n,
            f"inputs of the final norm and of the output projection, {width} B each, "
            f"x {n} micro-batches",
            f"{KORTHIKANTI}, section 4.3",
        )


def _most_alive(layout: Layout, stage: int, chunk: int) -> int:
    """Micro-batches of ``chunk`` that ``stage`` holds at most."""
    at = layout.stage_chunks(stage).index(chunk)
    return max(state[at] for state in alive(layout, stage))


def _logits(
    model: Model, layout: Layout, recipe: Recipe, sequence: int, stage: int
) -> Iterator[Row]:
    """Logits in single precision, from the end of the forward pass to their gradient."""
    waiting, width = _most_alive(layout, stage, layout.last_chunk), recipe.compute_bytes
    elements = local_tokens(layout, sequence) * -(-model.vocab // layout.tp)
    formula = f"4 B x {elements:,} logits x "
    source = f"{KORTHIKANTI}, section 4.3"
    for moment, n in ((FORWARD, waiting), (LOSS, waiting), (BACKWARD, waiting - 1)):
        yield Row(stage, "logits", moment, 4 * elements * n, formula + f"{n} micro-batches", source)
    yield Row(
        stage,
        "logit gradients",
        LOSS,
        width * elements,
        f"{width} B x {elements:,} logits",
        "cast back to the precision of the product",
    )
    for work in recipe.working:
        if work.of == "logit" or (work.of == "logit of a split vocabulary" and layout.tp > 1):
            formula = f"{work.bytes} B x {elements:,} logits"
            yield Row(
                stage, work.tensor, work.moment, work.bytes * elements, formula, recipe.source
            )


def _one_layer(
    model: Model, layout: Layout, sequence: int, width: int, stage: int
) -> Iterator[Row]:
    """What the layer at work holds beyond what it keeps."""
    if layout.sequence_parallel and layout.tp > 1:
        whole = width * model.hidden * local_tokens(layout, sequence)
        source = f"{KORTHIKANTI}, section 4.2.2"
        yield Row(stage, "gathered sequence", FORWARD, whole, "one layer's input, whole", source)
        yield Row(
            stage,
            "gathered sequence",
            BACKWARD,
            2 * whole,
            "one layer's input, gathered again, and its gradient, whole",
            source,
        )
    kinds = [kind > 0 for kind in layer_kinds(model, layout, stage)]
    present = [mixture for mixture, there in zip((False, True), kinds, strict=True) if there]
    if not present:
        return

    def largest(recompute: str | None) -> int:
        return max(
            layer_bytes(model, layout, sequence, width, recompute, mixture=mixture)
            for mixture in present
        )

    gradients = max(gradient_bytes(model, layout, sequence, width, kind) for kind in present)
    yield Row(
        stage,
        "activation gradients",
        BACKWARD,
        gradients,
        "of the residual stream and of the two largest tensors of one layer",
        "upper bound",
    )
    if layout.recompute != "none":
        yield Row(
            stage,
            "recomputed activations",
            BACKWARD,
            largest("none") - largest(None),
            f"what {layout.recompute} recomputation dropped of one layer",
            KORTHIKANTI,
        )


def serving_rows(
    model: Model, layout: Layout, recipe: Recipe, sequence: int, stage: int
) -> Iterator[Row]:
    """One forward pass over the whole sequence, layer by layer."""
    width = recipe.compute_bytes
    kinds = [kind > 0 for kind in layer_kinds(model, layout, stage)]
    sizes = [
        layer_bytes(model, layout, sequence, width, "none", masks=False, mixture=mixture)
        for mixture, there in zip((False, True), kinds, strict=True)
        if there
    ]
    if sizes:
        yield Row(
            stage,
            "working activations",
            FORWARD,
            max(sizes),
            "tensors of one layer, all at once",
            "upper bound",
        )
    if layout.last_chunk in layout.stage_chunks(stage):
        elements = local_tokens(layout, sequence) * -(-model.vocab // layout.tp)
        yield Row(
            stage,
            "logits",
            FORWARD,
            width * elements,
            f"{width} B x {elements:,} logits",
            "one forward pass over the whole sequence",
        )
