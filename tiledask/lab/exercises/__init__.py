"""The walkthroughs' exercises: each draws an answer, runs it or works it out, and judges it.

    exercise = tasks_on_slots(cluster)
    answer = None
    exercise.draw(answer)
    exercise.check(answer)             # a Result, as of the puzzles: quiet if not attempted
    exercise.check(answer).require()   # raises unless every target is met

No answer is stored. What the answer reaches is measured on the cluster or computed by the planner;
the best possible is found by trying everything.
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

__all__ = [
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
