"""What is claimed about memory, and the program that a run of it goes through.

a Model                   step_program of its layout: every stage's layers, forward and backward
a number of parameters    rank 0: begin.0 backward.0 update.0

begin    gradients are cleared         backward   gradients are there: of layers nothing is known
update   sums over the copies, the optimizer's step
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from tiledask.distributed.training.config import TrainingConfig
from tiledask.plan.collectives.shards import shards
from tiledask.plan.fitting.memory import estimate_memory
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, state_bytes
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.pipelines.schedules import layout_schedule, schedule
from tiledask.plan.products.placement import Replicate, Tiling
from tiledask.plan.program.making.decoder import Decoder
from tiledask.plan.program.making.tape import Tape, Value
from tiledask.plan.program.making.training import TrainingTerms, step_program
from tiledask.plan.program.making.zero import UnitStates, flat_name
from tiledask.plan.program.ops import ProgramRole, Step, action_of, buffer_of
from tiledask.plan.program.program import Program
from tiledask.tile.optimizers import rule_for

__all__ = [
    *("UNIT", "DeviceRole", "MemoryCase", "states_program", "tensor_classes"),
    "training_terms",
]

UNIT = "parameters"
"""What all of a number of parameters are called."""
HOSTED = ("loss", "updates")
"""What stays in host memory, whatever the device: numbers."""


class DeviceRole(NamedTuple):
    """Which device of a layout."""

    stage: int = 0
    slice: int = 0
    """Rank of tensor parallelism."""
    copy: int = 0
    """Rank of data parallelism."""


@dataclass(frozen=True)
class _Parameters:
    """A model of which only the number of its parameters is known."""

    count: int
    units = (UNIT,)
    gated = False

    def stage_units(self, *_: Any) -> tuple[str, ...]:
        return self.units

    def shapes(self, *_: Any) -> Mapping[str, tuple[int, ...]]:
        return {"w": (self.count,)}

    def tilings(self, unit: str, ranks: int) -> dict[str, Tiling]:
        return {"w": Tiling((self.count,), (ranks,), (Replicate(),))}


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
    def share(self) -> int:
        """The parameters of one stage's slice, where a number of them is claimed."""
        assert not isinstance(self.what, Model)
        return -(-self.what // (self.layout.tp * self.layout.pp))

    @property
    def mesh(self) -> tuple[int, int, int]:
        """(dp, tp, pp)."""
        return self.layout.dp, self.layout.tp, self.layout.pp

    @property
    def predicted(self) -> Ledger:
        """What the planner says; places are stages."""
        layout = self.layout
        if isinstance(self.what, Model):
            return estimate_memory(self.what, layout, self.recipe, self.sequence).ledger
        states, stages = state_bytes(self.share, self.recipe, layout.zero, layout.dp), layout.pp
        formula = f"its bytes x {self.share:,} parameters"
        return Ledger.of(
            Row(stage, tensor, ALWAYS, n, formula, "state_bytes")
            for stage in range(stages)
            for tensor, n in states.items()
        )

    @cached_property
    def job(self) -> TrainingConfig:
        """What its ranks are given."""
        recipe, layout = self.recipe, self.layout
        shared: dict[str, Any] = {
            "recipe": recipe,
            "rule": rule_for(recipe),
            "dtype": f"float{8 * recipe.compute_bytes}",
            "shape": self.mesh,
        }
        if isinstance(self.what, Model):
            terms = training_terms(self.what, layout, recipe, self.sequence)
            return TrainingConfig(**vars(terms) | shared)
        return TrainingConfig(
            model=_Parameters(self.share),
            schedule=schedule("gpipe", layout.pp, 1),
            cut=(0,) * layout.pp,
            batch=layout.dp,
            itemsize=recipe.compute_bytes,
            zero=layout.zero,
            **shared,
        )

    @cached_property
    def program(self) -> Program:
        """Of a step: of the whole mesh, or of a number of parameters that of a stage's copies."""
        if isinstance(self.what, Model):
            return step_program(self.job, self.mesh)
        return states_program(self.share, self.recipe, self.layout.zero, self.layout.dp)

    @property
    def simulated(self) -> Ledger:
        """What the program says that copy 0 of slice 0 holds of each stage; places are stages."""
        stages, program = self.layout.pp, self.program
        own = stages if isinstance(self.what, Model) else 1  # with a role for each stage
        first = replace(
            program, orders=program.orders[:own], role_of=program.role_of[:own], mesh=()
        )
        rows = [row for row in first.memory.rows if row.tensor not in HOSTED]
        more = [replace(row, place=s) for s in range(own, stages) for row in rows]
        return Ledger.of([*rows, *more])


def training_terms(model: Model, layout: Layout, recipe: Recipe, sequence: int) -> TrainingTerms:
    """What the program of a layout of a dense decoder follows from; nothing is clipped.

    >>> from tiledask.plan.inputs.load import load_model
    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> layout = Layout(dp=2, tp=2, pp=2, microbatches=4)
    >>> terms = training_terms(load_model("gpt2"), layout, load_recipe("mixed-adam-16"), 1024)
    >>> step_program(terms, (2, 2, 2)).ranks
    8
    """
    decoder = Decoder(
        model.vocab, model.hidden, model.layers, model.heads, sequence, model.kv_heads, model.ffn,
        gated=model.mlp == "swiglu", tied=model.tied, head_dim=model.head_dim,
        learned=model.learned_pos,
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
    )


def states_program(count: int, recipe: Recipe, zero: int = 0, copies: int = 1) -> Program:
    """The Program of ``copies`` ranks that hold the same ``count`` parameters, by ZeRO.

    A recipe that does not train keeps weights, and nothing is done with them.

    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> kept = states_program(1000, load_recipe("mixed-adam-16"), zero=1, copies=4).check().memory
    >>> kept.by_tensor(0)["momentum/parameters"], kept.peak  # 4 B of each, 12 B of a quarter
    (1000, 7008)
    """

    def role(copy: int) -> ProgramRole:
        tape = Tape(recipe.compute_bytes)
        states = UnitStates(tape, {UNIT: {"w": (count,)}}, recipe, zero, copies, copy)
        if not recipe.trains:
            return ProgramRole({}, {}, states.state, constants=frozenset(states.state))
        states.begin()
        blocks = {"begin": tape.take()}
        tape.do("gradients", (), (Value(flat_name("gradients", UNIT), (), 0),))
        blocks["backward"] = tape.take()
        states.update({})
        blocks["update"] = tape.take()
        accumulators = frozenset(states.accumulators)
        return tape.role(blocks, states.state | {"updates": 8}, accumulators=accumulators)

    (extents,) = shards([count], copies)
    numbers = list(dict.fromkeys(extents))
    roles = [role(extents.index(extent)) for extent in numbers]
    order = tuple(Step(name, 0) for name in roles[0].blocks)
    role_of = tuple(numbers.index(extent) for extent in extents)
    name = f"states of {count:,} parameters"
    return Program(tuple(roles), (order,) * copies, role_of, name, (copies, 1, 1))


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
