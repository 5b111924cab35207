"""The programs of claims: of a layout that the planner has found, and of states of which only a
number of parameters is known; and what their buffers are, in a ledger's words.

rank 0: begin.0 backward.0 update.0

begin    gradients are cleared         backward   gradients are there: of layers nothing is known
update   sums over the copies, the optimizer's step
"""

from tiledask.errors import ConfigError
from tiledask.plan.collectives.layouts import HeadCounts
from tiledask.plan.collectives.shards import shards
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.pipelines.schedules import layout_schedule
from tiledask.plan.program.making.decoder import Decoder
from tiledask.plan.program.making.tape import Tape, Value
from tiledask.plan.program.making.training import TrainingTerms
from tiledask.plan.program.making.zero import UnitStates, flat_name
from tiledask.plan.program.ops import Block, ProgramRole, Step, buffer_of
from tiledask.plan.program.program import Program

__all__ = ["UNIT", "states_program", "tensor_classes", "training_terms", "why_no_program"]

UNIT = "parameters"
"""What all of a number of parameters are called."""
_BY_WORD = {
    **dict.fromkeys(("ids", "targets"), "token ids"),
    **dict.fromkeys(("inverse", "mean", "maximum", "sums", "loss"), "statistics"),
    **dict.fromkeys(("whole", "cast"), "gathered weights"),
}
_IN_BACKWARD = {
    **dict.fromkeys(("db", "dw", "packed", "part", "shared"), "gradients of weights"),
    **dict.fromkeys(("dx", "dy", "handed", "sum"), "activation gradients"),
}
"""By the word with which a buffer's name begins."""
_LOGITS = {"largest_logit": "logits", "logits_grad": "logit gradients"}
"""By the kernel that reads, or writes, them alone."""


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
    none.

    >>> from tiledask.plan.inputs.load import load_model
    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> from tiledask.plan.program.making.training import step_program
    >>> layout = Layout(dp=2, tp=2, pp=2, microbatches=4)
    >>> terms = training_terms(load_model("gpt2"), layout, load_recipe("mixed-adam-16"), 1024)
    >>> step_program(terms, (2, 2, 2)).ranks
    8
    """
    reason = why_no_program(model, layout, sequence)
    if reason or recipe.adapters:
        reason = reason or f"the adapters of recipe {recipe.name} are not written as programs"
        raise ConfigError(f"no program of {layout}: {reason}; estimate_step has it by formula")
    decoder = Decoder(
        model.vocab, model.hidden, model.layers, sequence,
        HeadCounts(model.heads, model.kv_heads, model.head_dim), model.ffn,
        gated=model.mlp == "swiglu", tied=model.tied, learned=model.learned_pos,
    )  # fmt: skip
    return TrainingTerms(
        model=decoder,
        schedule=layout_schedule(layout.schedule, layout.chunks, layout.microbatches, layout.pp),
        cut=layout.chunk_layers(model.layers),
        batch=layout.dp * layout.microbatch * layout.microbatches,
        recipe=recipe,
        itemsize=recipe.compute_bytes,
        sequence_parallel=layout.sequence_parallel,
        zero=layout.zero,
        recompute=layout.recompute == "full",
        selective=layout.recompute == "selective" and not layout.flash_attention,
    )


def states_program(count: int, recipe: Recipe, zero: int = 0, copies: int = 1) -> Program:
    """The Program of ``copies`` ranks that hold the same ``count`` parameters, by ZeRO.

    A recipe that does not train keeps weights, and nothing is done with them.

    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> kept = states_program(1000, load_recipe("mixed-adam-16"), zero=1, copies=4).check().memory
    >>> kept.by_tensor(0)["momentum/parameters"], kept.peak  # 4 B of each, 12 B of a quarter
    (1000, 7008)
    """
    (extents,) = shards([count], copies)
    numbers = list(dict.fromkeys(extents))
    roles = [_states(count, recipe, zero, copies, extents.index(extent)) for extent in numbers]
    order = tuple(Step(name, 0) for name in roles[0].blocks)
    role_of = tuple(numbers.index(extent) for extent in extents)
    name = f"states of {count:,} parameters"
    return Program(tuple(roles), (order,) * copies, role_of, name, (copies, 1, 1))


def _states(count: int, recipe: Recipe, zero: int, copies: int, copy: int) -> ProgramRole:
    tape = Tape(recipe.compute_bytes)
    states = UnitStates(tape, {UNIT: {"w": (count,)}}, recipe, zero, copies, copy)
    if not recipe.trains:
        return ProgramRole({}, {}, states.state, constants=frozenset(states.state))
    states.begin()
    begin = tape.take()
    tape.do("gradients", (), (Value(flat_name("gradients", UNIT), (), 0),))
    backward = tape.take()
    states.update({})
    each = {"begin": begin, "backward": backward, "update": tape.take()}
    blocks = [Block(kind, -1, tuple(ops)) for kind, ops in each.items()]
    accumulators = frozenset(states.accumulators)
    return tape.role(blocks, states.state | {"updates": 8}, accumulators=accumulators)


def tensor_classes(role: ProgramRole) -> dict[str, str]:
    """The tensor class of every buffer of a training's role, as ledgers have them.

    What a forward leaves to a backward are activations, but for statistics of norms and of the
    loss; what is gone before its block ends is "in between".
    """
    classes = {name: name.partition("/")[0].replace("_", " ") for name in role.state}
    placed = [(block, op) for block in role.blocks.values() for op in block.ops]
    last = {buffer_of(name): block for block, op in placed for name in op.reads}
    for block, op in placed:
        for name in map(buffer_of, op.writes):
            word = name.partition(".")[0].partition(":")[0].rstrip("0123456789")
            usual = "activations" if last.get(name, block) is not block else "in between"
            if block.kind != "F":
                usual = _IN_BACKWARD.get(word, "recomputed activations")
            classes.setdefault(name, _BY_WORD.get(word, usual))
        if op.name in _LOGITS:
            named = op.reads if op.name == "largest_logit" else op.writes
            classes[named[0]] = _LOGITS[op.name]
    return classes
