"""The program of a layout that the planner has found."""

from dataclasses import replace

from tiledask.errors import ConfigError
from tiledask.plan.collectives.layouts import HeadCounts
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.pipelines.schedules import layout_schedule
from tiledask.plan.program.making.decoder import Decoder
from tiledask.plan.program.making.of_training import TrainingTerms, step_program
from tiledask.plan.program.program import Program

__all__ = ["layout_program", "training_terms", "why_no_program"]


def why_no_program(model: Model, layout: Layout, sequence: int = 0) -> str:
    """Why a layout has no program for sequences of that length; empty if it has one."""
    if model.experts or model.latent:
        return "experts and latent attention are not written as programs"
    if model.layer_norms != 2 or not model.causal or model.head_dense or model.embedding_width:
        return "of layers and heads only those like GPT-2's and Llama's are written as programs"
    if model.windowed_layers and sequence > model.window:
        return f"sequences longer than a window of {model.window} are not written as programs"
    if layout.cp > 1 or layout.ep > 1 or layout.expert_tp:
        return "context and expert parallelism are not written as programs"
    if layout.recompute not in ("none", "full", "selective"):
        return f"recompute={layout.recompute!r} is not written as a program"
    return ""


def training_terms(model: Model, layout: Layout, recipe: Recipe, sequence: int) -> TrainingTerms:
    """What the program of a layout follows from; nothing is clipped. Raises ConfigError if it has
    none."""
    reason = why_no_program(model, layout, sequence)
    if reason or recipe.adapters:
        reason = reason or f"the adapters of recipe {recipe.name} are not written as programs"
        raise ConfigError(f"no program of {layout}: {reason}; estimate_step has it by formula")
    made = layout_schedule(layout.schedule, layout.chunks, layout.microbatches, layout.pp)
    decoder = Decoder(
        model.vocab,
        model.hidden,
        model.layers,
        sequence,
        HeadCounts(model.heads, model.kv_heads, model.head_dim),
        model.ffn,
        gated=model.mlp == "swiglu",
        tied=model.tied,
        learned=model.learned_pos,
    )
    return TrainingTerms(
        model=decoder,
        schedule=made,
        cut=layout.chunk_layers(model.layers),
        batch=layout.dp * layout.microbatch * layout.microbatches,
        recipe=recipe,
        itemsize=recipe.compute_bytes,
        sequence_parallel=layout.sequence_parallel,
        zero=layout.zero,
        recompute=layout.recompute == "full",
        selective=layout.recompute == "selective" and not layout.flash_attention,
    )


def layout_program(model: Model, layout: Layout, recipe: Recipe, sequence: int) -> Program:
    """The Program of a step of training ``model`` in ``layout``. Raises ConfigError if it has none.

    >>> from tiledask.plan.inputs.load import load_model
    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> layout = Layout(dp=2, tp=2, pp=2, microbatches=4)
    >>> layout_program(load_model("gpt2"), layout, load_recipe("mixed-adam-16"), 1024)
    Program(training 1f1b: 8 ranks, 8,776 instructions)
    """
    terms = replace(training_terms(model, layout, recipe, sequence), clipped=True)
    return step_program(terms, (layout.dp, layout.tp, layout.pp))
