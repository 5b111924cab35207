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

from tiledask.lab.exercises.latency import gpipe_ahead
from tiledask.lab.exercises.planning.fewest_gpus import copies_that_fit, fewest_gpus
from tiledask.lab.exercises.planning.layer_too_large import layer_too_large
from tiledask.lab.exercises.planning.layouts import (
    fastest_within,
    fewest_devices,
    repair,
    shorten_bubble,
)
from tiledask.lab.exercises.products.choreography import cheapest_choreography
from tiledask.lab.exercises.products.kernel_repair import repaired_kernel
from tiledask.lab.exercises.products.levels import four_products, levels_at_fault, run_blocks
from tiledask.lab.exercises.products.placements import blocks_of, fewest_bytes
from tiledask.lab.exercises.products.tile_choice import retuned, tile_within
from tiledask.lab.exercises.slots import tasks_on_slots
from tiledask.lab.exercises.split_layers.attention_heads import balanced_heads
from tiledask.lab.exercises.split_layers.convolutions import (
    borrowed_rows,
    split_each_layer,
    until_layerwise_moves_more,
)
from tiledask.lab.exercises.split_layers.lenet_hybrids import hybrid_lenet
from tiledask.lab.exercises.split_layers.partial_sums import fewest_sums
from tiledask.lab.exercises.training.faulty_run import faulty_run
from tiledask.lab.exercises.training.scale_rule import scale_rule
from tiledask.lab.exercises.training.step_traffic import step_traffic
from tiledask.lab.exercises.training.uneven_copies import uneven_copies
from tiledask.lab.idle_ladder import IdleLevel, LevelWorking, idle_level
from tiledask.lab.judging import Exercise, Hint, JudgedTask, Result, Target, UnsolvedError
from tiledask.lab.puzzles import (
    Puzzle,
    load_puzzle,
    puzzle_levels,
    puzzle_names,
)

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
    "blocks_of",
    "borrowed_rows",
    "cheapest_choreography",
    "copies_that_fit",
    "fastest_within",
    "faulty_run",
    "fewest_bytes",
    "fewest_devices",
    "fewest_gpus",
    "fewest_sums",
    "four_products",
    "gpipe_ahead",
    "hybrid_lenet",
    "idle_level",
    "layer_too_large",
    "levels_at_fault",
    "load_puzzle",
    "puzzle_levels",
    "puzzle_names",
    "repair",
    "repaired_kernel",
    "retuned",
    "run_blocks",
    "scale_rule",
    "shorten_bubble",
    "split_each_layer",
    "step_traffic",
    "tasks_on_slots",
    "tile_within",
    "uneven_copies",
    "until_layerwise_moves_more",
]
