"""Tasks that judge answers: puzzles, the idle-time ladder, and the walkthroughs' exercises.

    task = load_puzzle("24-on-4")     # or a level, or a JSON file of one's own
    task = fewest_bytes(...)          # an exercise is a function of what it is about
    task.draw(answer)
    task.check(answer)                # a Result: quiet if not attempted
    task.hint()                       # one more hint than before
    task = idle_level(3, seed=7)      # the idle-time ladder: fresh numbers, and task.working()
    task.check(answer).require()      # raises unless every target is met

No answer is stored; the best one is found by trying or by proof. terminal has the words of
`tiledask puzzle`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tiledask.extras import needed_for
from tiledask.lab.exercises.planning.fewest_gpus import copies_that_fit, fewest_gpus
from tiledask.lab.exercises.planning.four_terms import four_terms
from tiledask.lab.exercises.planning.layouts import (
    fastest_within,
    fewest_devices,
)
from tiledask.lab.exercises.products.block_and_tile import block_and_tile
from tiledask.lab.exercises.products.tile_choice import tile_within
from tiledask.lab.exercises.training.save_intervals import save_intervals
from tiledask.lab.idle_ladder import IdleLevel, LevelWorking, idle_level
from tiledask.lab.judging import Exercise, Hint, JudgedTask, Result, Target, UnsolvedError
from tiledask.lab.puzzles import (
    Puzzle,
    load_puzzle,
    puzzle_levels,
    puzzle_names,
)

if TYPE_CHECKING:
    from tiledask.lab.exercises.planning.layer_too_large import layer_too_large
    from tiledask.lab.exercises.products.choreography import cheapest_choreography
    from tiledask.lab.exercises.products.kernel_repair import repaired_kernel
    from tiledask.lab.exercises.products.levels import four_products, levels_at_fault, run_blocks
    from tiledask.lab.exercises.products.placements import fewest_bytes
    from tiledask.lab.exercises.products.shifts import cannon_by_shifts
    from tiledask.lab.exercises.skip_connection import skip_connection
    from tiledask.lab.exercises.slots import tasks_on_slots
    from tiledask.lab.exercises.split_layers.attention_heads import balanced_heads
    from tiledask.lab.exercises.split_layers.convolutions import (
        borrowed_rows,
        split_each_layer,
        until_layerwise_moves_more,
    )
    from tiledask.lab.exercises.split_layers.f_and_g import f_and_g
    from tiledask.lab.exercises.split_layers.lenet_hybrids import hybrid_lenet
    from tiledask.lab.exercises.split_layers.partial_sums import fewest_sums
    from tiledask.lab.exercises.split_layers.smoothed_loss import smoothed_loss
    from tiledask.lab.exercises.training.faulty_run import faulty_run
    from tiledask.lab.exercises.training.ranks_on_hosts import ranks_on_hosts
    from tiledask.lab.exercises.training.scale_rule import scale_rule
    from tiledask.lab.exercises.training.step_traffic import step_traffic
    from tiledask.lab.exercises.training.uneven_copies import uneven_copies

__all__ = [
    "Exercise",
    "Hint",
    "IdleLevel",
    "JudgedTask",
    "LevelWorking",
    "Puzzle",
    "Result",
    "Target",
    "UnsolvedError",
    "balanced_heads",
    "block_and_tile",
    "borrowed_rows",
    "cannon_by_shifts",
    "cheapest_choreography",
    "copies_that_fit",
    "f_and_g",
    "fastest_within",
    "faulty_run",
    "fewest_bytes",
    "fewest_devices",
    "fewest_gpus",
    "fewest_sums",
    "four_products",
    "four_terms",
    "hybrid_lenet",
    "idle_level",
    "layer_too_large",
    "levels_at_fault",
    "load_puzzle",
    "puzzle_levels",
    "puzzle_names",
    "ranks_on_hosts",
    "repaired_kernel",
    "run_blocks",
    "save_intervals",
    "scale_rule",
    "skip_connection",
    "smoothed_loss",
    "split_each_layer",
    "step_traffic",
    "tasks_on_slots",
    "tile_within",
    "uneven_copies",
    "until_layerwise_moves_more",
]

_RUNNING = {
    "layer_too_large": "planning.layer_too_large",
    "cheapest_choreography": "products.choreography",
    "repaired_kernel": "products.kernel_repair",
    "four_products": "products.levels",
    "levels_at_fault": "products.levels",
    "run_blocks": "products.levels",
    "fewest_bytes": "products.placements",
    "cannon_by_shifts": "products.shifts",
    "skip_connection": "skip_connection",
    "tasks_on_slots": "slots",
    "balanced_heads": "split_layers.attention_heads",
    "borrowed_rows": "split_layers.convolutions",
    "f_and_g": "split_layers.f_and_g",
    "smoothed_loss": "split_layers.smoothed_loss",
    "split_each_layer": "split_layers.convolutions",
    "until_layerwise_moves_more": "split_layers.convolutions",
    "hybrid_lenet": "split_layers.lenet_hybrids",
    "fewest_sums": "split_layers.partial_sums",
    "faulty_run": "training.faulty_run",
    "ranks_on_hosts": "training.ranks_on_hosts",
    "scale_rule": "training.scale_rule",
    "step_traffic": "training.step_traffic",
    "uneven_copies": "training.uneven_copies",
}
"""Exercises that run on ranks, by the module of `exercises` that each is at home in: loaded when
named, for puzzles need no Dask."""


def __getattr__(name: str) -> object:
    if name not in _RUNNING:
        raise AttributeError(f"td.tasks has no {name!r}; it has {', '.join(__all__)}")
    with needed_for(f"td.tasks.{name}"):
        value = getattr(import_module(f"tiledask.lab.exercises.{_RUNNING[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
