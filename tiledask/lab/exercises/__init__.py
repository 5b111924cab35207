"""The walkthroughs' exercises: each draws an answer, runs it or works it out, and judges it.

    exercise = tasks_on_slots(cluster)
    answer = None
    exercise.draw(answer)
    exercise.check(answer)             # a Result, as of the puzzles: quiet if not attempted
    exercise.check(answer).require()   # raises unless every target is met

No answer is stored. What the answer reaches is measured on the cluster or computed by the planner;
the best possible is found by trying everything.
"""

from tiledask.lab.exercises.choreography import cheapest_choreography
from tiledask.lab.exercises.convolutions import (
    borrowed_rows,
    split_each_layer,
    until_layerwise_moves_more,
)
from tiledask.lab.exercises.exercise import Exercise
from tiledask.lab.exercises.faulty_run import faulty_run
from tiledask.lab.exercises.gpus import copies_that_fit, fewest_gpus
from tiledask.lab.exercises.heads_dealt import evenly_dealt_heads
from tiledask.lab.exercises.kernels import repaired_kernel
from tiledask.lab.exercises.latency import gpipe_ahead
from tiledask.lab.exercises.layer_too_large import layer_too_large
from tiledask.lab.exercises.layouts import (
    fastest_within,
    fewest_devices,
    repair,
    shorten_bubble,
)
from tiledask.lab.exercises.lenet_hybrids import hybrid_lenet
from tiledask.lab.exercises.levels import four_products, levels_at_fault, run_blocks
from tiledask.lab.exercises.placements import blocks_of, fewest_bytes
from tiledask.lab.exercises.scale_rule import scale_rule
from tiledask.lab.exercises.slots import tasks_on_slots
from tiledask.lab.exercises.step_traffic import step_traffic
from tiledask.lab.exercises.sums_placed import fewest_sums
from tiledask.lab.exercises.tiles import retuned, tile_within
from tiledask.lab.exercises.uneven_copies import uneven_copies

__all__ = [
    "Exercise",
    "blocks_of",
    "borrowed_rows",
    "cheapest_choreography",
    "copies_that_fit",
    "evenly_dealt_heads",
    "fastest_within",
    "faulty_run",
    "fewest_bytes",
    "fewest_devices",
    "fewest_gpus",
    "fewest_sums",
    "four_products",
    "gpipe_ahead",
    "hybrid_lenet",
    "layer_too_large",
    "levels_at_fault",
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
