"""What is claimed about memory: by the planner, and of a Model by the program of a step of it."""

from dataclasses import dataclass, replace
from functools import cached_property

from tiledask.distributed.training.config import TrainingConfig
from tiledask.plan.fitting.memory import estimate_memory
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, state_bytes
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.pipelines.schedules import layout_schedule
from tiledask.plan.program.making.decoder import Decoder
from tiledask.plan.program.making.training import step_program
from tiledask.plan.program.ops import ProgramRole, action_of, buffer_of
from tiledask.plan.program.program import Program
from tiledask.tile.optimizers import rule_for

__all__ = ["MemoryCase", "tensor_classes"]

HOSTED = ("loss", "updates")
"""What stays in host memory, whatever the device: numbers."""


@dataclass(frozen=True)
class MemoryCase:
    """What is claimed, at the scale at which it is run."""

    what: Model | int
    """A Model, or a number of parameters."""
    layout: Layout
    recipe: Recipe
    sequence: int
    capacity: int
    """Bytes of one device."""

    @property
    def stages(self) -> int:
        """Those that are run: of a number of parameters one, for all hold the same."""
        return self.layout.pp if isinstance(self.what, Model) else 1

    @property
    def share(self) -> int:
        """The parameters of one stage's slice, where a number of them is claimed."""
        assert not isinstance(self.what, Model)
        return -(-self.what // (self.layout.tp * self.layout.pp))

    @property
    def predicted(self) -> Ledger:
        """What the planner says; places are stages."""
        layout, recipe = self.layout, self.recipe
        if isinstance(self.what, Model):
            return estimate_memory(self.what, layout, recipe, self.sequence).ledger
        states = state_bytes(self.share, recipe, layout.zero, layout.dp).items()
        formula = f"its bytes x {self.share:,} parameters"
        return Ledger.of(Row(0, t, ALWAYS, n, formula, "state_bytes") for t, n in states)

    @cached_property
    def job(self) -> TrainingConfig:
        """The training whose step a Model's ranks do. Nothing is clipped or scaled."""
        model, layout, recipe = self.what, self.layout, self.recipe
        assert isinstance(model, Model)
        decoder = Decoder(
            model.vocab, model.hidden, model.layers, model.heads, self.sequence, model.kv_heads,
            model.ffn, tied=model.tied, head_dim=model.head_dim, learned=model.learned_pos,
        )  # fmt: skip
        return TrainingConfig(
            model=decoder,
            shape=(layout.dp, layout.tp, layout.pp),
            schedule=layout_schedule(
                layout.schedule, layout.chunks, layout.microbatches, layout.pp
            ),
            cut=layout.chunk_layers(model.layers),
            batch=layout.dp * layout.microbatch * layout.microbatches,
            recipe=recipe,
            rule=rule_for(recipe),
            dtype=f"float{8 * recipe.compute_bytes}",
            itemsize=recipe.compute_bytes,
            zero=layout.zero,
            recompute=layout.recompute == "full",
        )

    @cached_property
    def program(self) -> Program:
        """Of a step of a Model, on the whole mesh."""
        return step_program(self.job, self.job.shape)

    @property
    def simulated(self) -> Ledger:
        """What a Model's program says that copy 0 of slice 0 holds of each stage, and of a number
        of parameters what the planner does; places are stages."""
        if not isinstance(self.what, Model):
            return self.predicted
        program, own = self.program, slice(self.stages)
        orders, roles = program.orders[own], program.role_of[own]
        held = replace(program, orders=orders, role_of=roles, mesh=()).memory
        return Ledger.of(row for row in held.rows if row.tensor not in HOSTED)


# -- buffers, by a ledger's words ------------------------------------------------------------------

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


def tensor_classes(role: ProgramRole) -> dict[str, str]:
    """The tensor class of every buffer of a training's role, as ledgers have them.

    What a forward leaves to a backward are activations, but for statistics of norms and of the
    loss; what is gone before its block ends is "in between".
    """
    classes = {name: name.partition("/")[0].replace("_", " ") for name in role.state}
    placed = [(block, op) for block, ops in role.blocks.items() for op in ops]
    last = {buffer_of(name): block for block, op in placed for name in op.reads}
    for block, op in placed:
        for name in map(buffer_of, op.writes):
            word = name.partition(".")[0].partition(":")[0].rstrip("0123456789")
            usual = "activations" if last.get(name, block) is not block else "in between"
            if action_of(block)[0] != "F":
                usual = _IN_BACKWARD.get(word, "recomputed activations")
            classes.setdefault(name, _BY_WORD.get(word, usual))
        if op.name in _LOGITS:
            named = op.reads if op.name == "largest_logit" else op.writes
            classes[named[0]] = _LOGITS[op.name]
    return classes
