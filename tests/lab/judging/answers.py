"""Answers to all tasks, near, wrong and malformed: what the judge has to say of each, and where.

Right answers are not here: `oracles.tasks` finds one for each task.
"""

from functools import partial

import numpy as np
from oracles.tasks import (
    BACK,
    FORTH,
    S0,
    S1,
    R,
    cannon,
    cheapest_ways,
    counted,
    ends,
    every,
    hurried,
    rows_read,
    skipping,
    split_loss,
    survivors,
    text,
    tile_loop,
)

import tiledask as td
from tiledask.lab.exercises.split_layers.lenet_splits import NAMES as LENET
from tiledask.lab.puzzles import load_puzzle

ANSWERS: dict[str, list[tuple]] = {
    "24-on-4": [
        ((6, 6, 6, 6), "solved", ""),
        ((0, 6, 12, 18, 24), "solved", ""),
        (
            "1-7 | 8-12 | 13-18 | 19-24",
            "not yet",
            "device 1, with layers 1 to 7, is the slowest, device 2",
        ),
        (
            "1-9 | 10-12 | 13-18 | 19-24",
            "not yet",
            "device 1, with layers 1 to 9, is the slowest, device 2",
        ),
        (
            (6, 6, 6, 7),
            "not an answer",
            "is 4 numbers: neither the device of each of 24 layers, nor",
        ),
        ("1-5 | 7-12 | 13-18 | 19-24", "not legal", "layer missing. 23 of 24 layers have a place"),
    ],
    "12-on-3": [
        ("1-5 | 6-8 | 9-12", "not yet", "device 1, with layers 1 to 5, is the slowest, device 2"),
        (
            "1,4,7,10 | 2,5,8,11 | 3,6,9,12",
            "not legal",
            "not contiguous. Device 1 holds layers 1, 4, 7, 10; in layer-wise",
        ),
        ((4, 4, 4), "solved", ""),
        ({}, "not an answer", "cannot read {} as an assignment"),
    ],
    "30-on-4": [
        (
            "1-9 | 10-16 | 17-23 | 24-30",
            "not yet",
            "device 1, with layers 1 to 9, is the slowest, device 2",
        ),
        ((8, 8, 7, 7), "solved", ""),
        (
            (7, 7, 7, 7),
            "not an answer",
            "is 4 numbers: neither the device of each of 30 layers, nor",
        ),
        ("1-15 | 16-30", "not legal", "idle device. Device 3 has 0 of 30 layers"),
    ],
    "an-empty-device": [
        ("1-3 | | 4", "not legal", "idle device. Device 2 has 0 of 4 layers"),
        ("1 | 2 | 3-4", "not yet", "device 3, with layers 3 to 4, is the slowest, device 1"),
        ((2, 1, 1), "solved", ""),
        ("1-2 | 3", "not legal", "layer missing. 3 of 4 layers have a place"),
    ],
    "24-uneven": [
        (
            "1-6 | 7-12 | 13-18 | 19-24",
            "not yet",
            "device 4, with layers 19 to 24, is the slowest, device 2",
        ),
        (
            "1-6 | 7-13 | 14-21 | 22-24",
            "not yet",
            "device 3, with layers 14 to 21, is the slowest, device 4",
        ),
        ((6, 7, 7, 4), "solved", ""),
        ("24-1", "not legal", "idle device. Device 2 has 0 of 24 layers"),
    ],
    "24-unequal-devices": [
        (
            "1-6 | 7-12 | 13-18 | 19-24",
            "not yet",
            "device 1, with layers 1 to 6, is the slowest, device 3",
        ),
        (
            "1-4 | 5-9 | 10-16 | 17-24",
            "not yet",
            "device 2, with layers 5 to 9, is the slowest, device 3",
        ),
        (
            "1-8 | 9-16 | 17-20 | 21-24",
            "not yet",
            "device 1, with layers 1 to 8, is the slowest, device 3",
        ),
        ("4+4+8+8", "not an answer", "cannot read '4+4+8+8' in '4+4+8+8'"),
    ],
    "24-memory-cap": [
        (
            "1-6 | 7-12 | 13-18 | 19-24",
            "not legal",
            "over memory. Device 1 would hold 9 GB and has room for 8 GB",
        ),
        (
            "1-4 | 5-12 | 13-20 | 21-24",
            "not yet",
            "device 2, with layers 5 to 12, is the slowest, device 1",
        ),
        ((5, 7, 7, 5), "solved", ""),
        ("1-5 | 6-12 | 13-19", "not legal", "layer missing. 19 of 24 layers have a place"),
    ],
    "embedding-and-head": [
        (
            "1-6 | 7-12 | 13-18 | 19-24",
            "not legal",
            "over memory. Device 2 would hold 9 GB and has room for 8 GB",
        ),
        (
            "1-8 | 9-13 | 14-20 | 21-24",
            "not legal",
            "over memory. Device 1 would hold 16.5 GB and has room for",
        ),
        (
            "1-7 | 8-12 | 13-18 | 19-24",
            "not yet",
            "device 4, with layers 19 to 24, is the slowest, device 2",
        ),
        ("x", "not an answer", "cannot read 'x' in 'x'"),
    ],
    "costly-cuts": [
        (
            "1-4 | 5-8 | 9-12 | 13-16",
            "not yet",
            "device 1, with layers 1 to 4, is the slowest, device 2",
        ),
        ("1-3 | 4-8 | 9-12 | 13-16", "solved", ""),
        ("1-2 | 3-8 | 9-13 | 14-16", "solved", ""),
        ("1,2 | 3", "not legal", "layer missing. 3 of 16 layers have a place"),
    ],
    "round-robin": [
        ("1-4 | 5-8 | 9-12", "not legal", "idle chunk. Device 1, chunk 2 has 0 of 12 layers"),
        ("1,4,7,10 | 2,5,8,11 | 3,6,9,12", "solved", ""),
        ((1,) * 12, "not an answer", "can be the device of each layer or how many layers"),
        ((3, 3, 3, 3), "not legal", "wrong chunks. The answer has 4 groups of layers"),
    ],
    "two-chunks-each": [
        (
            "1-3 | 4-6 | 7-9 | 10-12 | 13-15 | 16-18 | 19-21 | 22-24",
            "not legal",
            "over memory. Device 1 would hold 9 GB and has room for 8 GB",
        ),
        (
            "1-6 | 7-12 | 13-18 | 19-24 | 1 | 2",
            "not legal",
            "wrong chunks. The answer has 6 groups of layers",
        ),
        ((3,) * 8, "not legal", "over memory. Device 1 would hold 9 GB and has room for 8 GB"),
        ("1-24", "not legal", "idle chunk. Device 2, chunk 1 has 0 of 24 layers"),
    ],
    "fewest-microbatches": [
        (20, "not yet", "before the first actions of devices, 50 % between actions, 33 % after"),
        (22, "not yet", "micro-batches 22: near, more than is needed"),
        (7, "not yet", "of the idle time 17 % is before the first actions of"),
        ("8.5", "not an answer", "microbatches is a whole number from 1 to 64"),
        (0, "not an answer", "microbatches is a whole number from 1 to 64"),
    ],
    "order-on-2": [
        (text("gpipe", 2, 4), "not yet", "4 kept from 0F3 on"),
        (text("naive", 2, 4), "not yet", "longest wait: 3 s before 0B0, from 1 s on"),
        (
            text("1f1b", 2, 4).replace("1F0,1B0", "1B0,1F0"),
            "not legal",
            "backward before forward: 1B0 at turn 0 on rank 1 needs",
        ),
        ("forward first", "not an answer", "cannot read 'forward' as an action"),
        (7, "not an answer", "write the order as text, a line per device"),
    ],
    "1f1b-by-hand": [
        (
            text("gpipe", 3, 5),
            "not legal",
            "over memory: rank 0 keeps 5 activations at 0F4, turn 4",
        ),
        (text("naive", 3, 5), "not yet", "longest wait: 6 s before 0B0, from 1 s on"),
        (text("1f1b", 3, 4), "not legal", "missing 0F4 on rank 0: all of 5 micro-batches pass"),
        ("forward, backward", "not an answer", "cannot read 'forward'"),
    ],
    "shifted-by-one": [
        (
            load_puzzle("shifted-by-one").inputs["shown"],
            "not legal",
            "3F8 on rank 3: unknown micro-batch 8",
        ),
        (
            text("gpipe", 4, 8),
            "not legal",
            "over memory: rank 0 keeps 8 activations at 0F7, turn 7",
        ),
        (text("naive", 4, 8), "not yet", "longest wait: 9 s before 0B0, from 1 s on"),
        ("3F0", "not an answer", "every stage from 0 to the last must be on some device"),
    ],
    "order-with-latency": [
        (
            text("1f1b", 2, 4),
            "not yet",
            "longest wait: 3 s before 0B0, from 2 s on, 500 ms",
        ),
        (
            text("naive", 2, 4),
            "not yet",
            "longest wait: 4 s before 0B0, from 1 s on, 500 ms",
        ),
        (text("gpipe", 2, 4), "not yet", "4 kept from 0F3 on"),
        ("0F0;", "not legal", "the schedule has 1 stages and the model 2"),
    ],
    "when-gpipe-wins": [
        (10, "not yet", "of the idle time 18 % is before the first actions of"),
        (12, "not yet", "of the idle time 18 % is before the first actions of"),
        (40, "not yet", "micro-batches 40: far, more than is needed"),
        ("GPipe", "not an answer", "microbatches is a whole number from 1 to 40"),
    ],
    "chunks-against-latency": [
        (6, "not yet", "of the idle time 7 % is before the first actions of devices"),
        (1, "not yet", "of the idle time 17 % is before the first actions of"),
        (2, "not yet", "of the idle time 15 % is before the first actions of"),
        (5, "not an answer", "chunks is one of 1, 2, 3, 4, 6"),
    ],
    "uneven-stages": [
        (text("1f1b", 3, 4), "not yet", "longest wait: 7 s before 0B0, from 3 s on"),
        (text("gpipe", 3, 4), "not yet", "longest wait: 12 s before 0B0, from 4 s on"),
        (text("naive", 3, 4), "not yet", "longest wait: 9 s before 0B0, from 1 s on"),
        ("", "not an answer", "every stage from 0 to the last must be on some device"),
    ],
    "split-on-2": [
        (text("1f1b", 2, 4), "not yet", "longest wait: 2 s before 0B0, from 2 s on"),
        (text("gpipe", 2, 4), "not yet", "longest wait: 3 s before 0B0, from 4 s on"),
        (text("zb-h2", 2, 4), "not yet", "3 kept from 0F2 on"),
        ("0F0,0I0,0W0", "not legal", "the schedule has 1 stages and the model 2"),
    ],
    "zero-bubble-by-hand": [
        (text("1f1b", 3, 4), "not yet", "longest wait: 4 s before 0B0, from 3 s on"),
        (text("zb-h2", 3, 4), "not yet", "4 kept from 0F3 on"),
        (text("gpipe", 3, 4), "not yet", "longest wait: 6 s before 0B0, from 4 s on"),
        ("0X0", "not an answer", "cannot read '0X0' as an action"),
    ],
    "half-the-memory": [
        ("zb-v", "not yet", "by device 4, 4, 4, 4"),
        ("1f1b", "not yet", "of the idle time 17 % is before the first actions of"),
        ("v-half", "not yet", "by device 3, 3, 3, 3"),
        ("chimaera", "not an answer", "schedule is one of naive, gpipe, 1f1b, eager-1f1b"),
    ],
    "five-percent-idle": [
        ("zb-v, 8", "not yet", "of the idle time 50 % is before the first actions of"),
        ("1f1b, 24", "not yet", "of the idle time 17 % is before the first actions of"),
        ("zb-v, 16", "not yet", "micro-batches 16: more than is needed"),
        ("zb-v", "not an answer", "choose schedule and microbatches, 2 in all and in this"),
        ("zb-v, 30", "not an answer", "microbatches is a whole number from 4 to 24"),
    ],
    "v-by-hand": [
        (text("zb-v", 4, 4), "not yet", "4 kept from 3F0 on"),
        (text("v-min", 4, 4), "not yet", "4 kept from 3F0 on"),
        (text("1f1b", 4, 4), "not legal", "2 devices need 2 lines"),
        ([1, 2], "not an answer", "write the order as text, a line per device"),
    ],
    "where-the-stages-go": [
        (
            text("interleaved-zb", 4, 4, devices=2),
            "not yet",
            "longest wait: 3 s before 2I0, from 6 s on, 1 s of",
        ),
        (
            text("v-half", 4, 4),
            "not yet",
            "longest wait: 2 s before 3F0, from 3 s on, 1 s of",
        ),
        (text("1f1b", 4, 4), "not legal", "2 devices need 2 lines"),
        ("device 1: all", "not an answer", "cannot read 'all' as an action"),
    ],
    "partition-and-schedule": [
        (
            "1-6 | 7-12 | 13-18 | 19-24 ; 1f1b",
            "not yet",
            "device 4 works longest, 216 s, device 2 144 s",
        ),
        (
            "1-6 | 7-12 | 13-18 | 19-24 ; gpipe",
            "not legal",
            "over memory: device 1 holds 19 GB at its fullest, weights",
        ),
        ("6,7,7,4 ; 1f1b", "not yet", "every device works 168 s"),
        ("1-6 | 7-12 ; 1f1b", "not legal", "layer missing. 12 of 24, the first: 13"),
        (
            "1-6 | 7-12 | 13-18 | 19-24",
            "not an answer",
            "write the layers of each stage, a semicolon, and a",
        ),
        ("1-6 | 7-12 | 13-18 | 19-24 ; zb-h9", "not an answer", "no schedule 'zb-h9'"),
    ],
    "everything-at-once": [
        (
            "1-6 | 7-12 | 13-18 | 19-24 ; 1f1b",
            "not yet",
            "device 1 works longest, 168 s, device 3 72 s",
        ),
        (
            "(4,5,8,7) ; gpipe",
            "not legal",
            "over memory: device 2 holds 15 GB at its fullest, weights",
        ),
        ("1-4|5-9|10-17|18-24 ; 1f1b", "not yet", "device 1 works longest, 120 s, device 3 96 s"),
        ("1-4|5-9|10-17|18-23 ; zb-h1", "not legal", "layer missing. 1 of 24, the first: 24"),
        ("zb-h1", "not an answer", "write the layers of each stage, a semicolon, and a"),
    ],
    "fewest_gpus": [
        (td.Layout(tp=4, pp=4), "not yet", "on the fullest the master weights take most, 3.336 GB"),
        (td.Layout(dp=8), "not legal", 'the verdict is "no": the fullest device (loss) needs'),
        (td.Layout(tp=8, pp=2), "not legal", "tp=8 would leave the node of 4 GPUs"),
        (
            td.Layout(dp=14, zero=3, recompute="full"),
            "not yet",
            "on the fullest the master weights take most, 3.719 GB",
        ),
        (
            12,
            "not an answer",
            "example td.Layout(tp=2, pp=4); got 12",
        ),
    ],
    "copies_that_fit": [
        (
            (None, None, 47, 7),
            "not yet",
            "ZeRO-2 on 47 GPUs does not fit, but nearly: 32.55 GB, with",
        ),
        ((None, None, 64, 16), "not yet", "ZeRO-2 on 64 GPUs fits, and so it does on fewer"),
        ((8, 64, 48, 7), "not yet", "ZeRO-0 on 8 GPUs does not fit: 210.3 GB, with overhead"),
        ((None,) * 4, "not yet", "ZeRO-2: None, and there is a number of GPUs with which it"),
        ((1, 2, 3), "not an answer", "an answer is a tuple of four, for ZeRO 0, 1, 2 and 3"),
    ],
    "layer_too_large": [
        (
            survivors(None) | {"columns": "adam"},
            "not yet",
            "'columns' with 'adam' is refused: 4 x 6.5 GB on a device of",
        ),
        (
            survivors(None) | {"copies": "forward", "rows": "sgd"},
            "not yet",
            "'copies' with 'forward' is refused: 1 x 26 GB on a device",
        ),
        (
            survivors(None) | {"ranks for adam": 4},
            "not yet",
            "on 4 devices Adam by columns is refused: too few",
        ),
        (
            survivors(None) | {"ranks for adam": 16},
            "not yet",
            "ranks for adam 16: far, more than is needed",
        ),
        (
            {"copies": None},
            "not an answer",
            "an answer is a dict of the heaviest that works, for",
        ),
        (
            survivors(None) | {"rows": "adamw"},
            "not an answer",
            "'rows' works with one of 'forward', 'sgd', 'momentum'",
        ),
    ],
    "fastest_within": [
        (
            td.Layout(tp=4, microbatches=32),
            "not yet",
            "stage 1 is the fullest, at loss, and its activations take",
        ),
        (
            td.Layout(tp=4, pp=2, microbatches=32, recompute="full"),
            "not yet",
            "most is lost to tp: waiting for tensor parallelism, 1.08 s",
        ),
        (
            td.Layout(tp=4, dp=2, microbatches=32),
            "not legal",
            "dp 2 x microbatch 1 x microbatches 32 = 64 sequences a",
        ),
        (
            td.Layout(microbatches=32),
            "not legal",
            'the verdict is "no": the fullest device (loss) needs 29.01',
        ),
        ("tp=4", "not an answer", "an answer is a td.Layout, for example td.Layout(tp="),
    ],
    "fewest_devices": [
        (
            td.Layout(tp=4, pp=2, microbatches=32, recompute="full"),
            "not yet",
            "devices 8: far, more than is needed",
        ),
        (
            td.Layout(pp=2, microbatches=32),
            "not legal",
            'the verdict is "tight": the fullest device (stage 0 of 2',
        ),
        (
            td.Layout(tp=4, pp=4, microbatches=32),
            "not legal",
            'the verdict is "no": the layout needs 16 devices (dp 1 x tp',
        ),
        (2, "not an answer", "an answer is a td.Layout, for example td.Layout(tp="),
    ],
    "repaired_kernel": [
        (hurried, "not yet", "column 8 of C is wrong: the last tile, which has 1 of 4"),
        (
            partial(tile_loop, last_columns=False),
            "not yet",
            "column 10 of C is wrong: the last tile, which has 1 of 2",
        ),
        (
            partial(tile_loop, adds=False),
            "not yet",
            "all of C is wrong: it has the last of 2 steps along k",
        ),
        (np.matmul, "not legal", "raised TypeError for (4, 8) @ (8, 6)"),
        (lambda a, b: a @ b, "not legal", "<lambda>(a, b) raised TypeError for (4, 8) @ (8, 6) in"),
        (
            lambda a, b, tile: a @ b,
            "not yet",
            "(4, 8) @ (8, 6) is larger than a tile for (4, 8) @ (8, 6)",
        ),
        (
            lambda a, b, tile: a,
            "not legal",
            "(4, 8) @ (8, 6) is (4, 6), and the kernel returned (4, 8)",
        ),
        ("a @ b", "not an answer", "an answer is a function such as def mine(a, b, tile)"),
    ],
    "smoothed_loss": [
        (
            partial(split_loss, largest=False),
            "not yet",
            "rank 0 of 1 has inf where one device has",
        ),
        (partial(split_loss, smooth=False), "not yet", "rank 0 of 3 has"),
        (lambda group, z: 0.0, "not legal", "raised TypeError on 1 ranks"),
        (lambda group, z, mine, targets, eps: z, "not legal", "<lambda> raised TypeError"),
        ("z", "not an answer", "an answer is a function such as def mine(group, z, mine"),
    ],
    "levels_at_fault": [
        (
            {"I": "blocking", "II": "blocking"},
            "not yet",
            "I: 0 s are lost at the level blocking, 2 s at the other",
        ),
        (
            {"I": "tile", "II": "tile"},
            "not yet",
            "II: 250 ms are lost at the level tile, 1.75 s at the other",
        ),
        ({"I": "tile"}, "not an answer", "a level, 'blocking' or 'tile', for each of I, II"),
        ({"I": "low", "II": "tile"}, "not an answer", "a level is 'blocking' or 'tile', got 'low'"),
    ],
    "tile_within": [
        (
            ((128, 256, 64), 4),
            "not yet",
            "a stage of (128 + 256) x 64 numbers takes 49.15, 4 of them",
        ),
        (((128, 256, 16), 6), "not yet", "4096 / 16 steps"),
        (((128, 128, 32), 4), "not yet", "a byte brings 64 FLOP in 128 x 128, 80 are asked"),
        (((128, 256, 32), 3), "not legal", "3 stages keep copies 2 steps ahead"),
        (
            ((256, 256, 16), 4),
            "not legal",
            "mma_multistage 256x256x16, 4 stages, group 8 cannot run on",
        ),
        (
            ((100, 64, 32), 4),
            "not an answer",
            "an answer is ((tm, tn, tk), stages), for instance ((64",
        ),
    ],
    "block_and_tile": [
        (((2, 4), (56, 63, 1)), "not yet", "X moves 3 times and A 1 times"),
        (((4, 2), (32, 32, 32)), "not yet", "500 x 500 of Y are 16 x 16 tiles"),
        (((4, 2), (63, 63, 1)), "not yet", "the tile of Y takes 15,876, those of X and A 504"),
        (((4, 4), (32, 32, 32)), "not an answer", "4 x 4 are 16 workers; there are 8"),
        (((4, 2), (32, 32)), "not an answer", "((p, q), (rows, columns, steps)), for example"),
    ],
    "balanced_heads": [
        (
            [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]],
            "not yet",
            "rank 1 has 3 query heads and 2 kv heads, rank 2 has 2 query",
        ),
        (
            [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [], []],
            "not yet",
            "rank 0 has 5 query heads and 1 kv head, rank 2 has 0 query",
        ),
        ([[0, 1, 2], [3, 4], [5, 6], [7, 8]], "not legal", "query head 9 is on no rank"),
        (
            [[0, 1, 2], [2, 3, 4], [5, 6, 7], [8, 9]],
            "not legal",
            "query head 2 is on ranks 0 and 1",
        ),
        (
            [[0, 1, 2, 3], [4, 5], [6, 7], [8, 9]],
            "not yet",
            "rank 0 has 4 query heads and 1 kv head, rank 2 has 2 query",
        ),
        (10, "not an answer", "query heads for each of 4 ranks, every head of 0..9 once"),
    ],
    "borrowed_rows": [
        (
            rows_read(None) | {1: (2,)},
            "not yet",
            "rank 1 lacks row 6, so that its output row 2 is not a",
        ),
        ({}, "not yet", "rank 0 lacks row 3, so that its output row 1 is not a"),
        (rows_read(None) | {1: (1, 2, 6, 7)}, "not yet", "no window of rank 1 reads row 1"),
        (
            rows_read(None) | {1: (4, 6)},
            "not legal",
            "a rank borrows what it does not have: rank 1 has rows 3 to",
        ),
        ([3, 4], "not an answer", "an answer is a dict, rank (0..3) -> rows of the image"),
    ],
    "split_each_layer": [
        (dict.fromkeys(LENET, "images"), "not yet", "too much is the gradients of fc1, 2.461 MB"),
        (
            dict.fromkeys(LENET, "out"),
            "not yet",
            "too much is what passes from conv1, 'out', to conv2, 'out'",
        ),
        (
            cheapest_ways(None) | {"fc2": "out"},
            "not yet",
            "too much is what passes from fc1, 'in', to fc2, 'out'",
        ),
        (
            {"conv1": "out"},
            "not an answer",
            "an answer is a dict with the way of each layer, for",
        ),
        (
            cheapest_ways(None) | {"fc1": "rows"},
            "not an answer",
            "fc1 is split by one of images, out, in, got 'rows'",
        ),
    ],
    "until_layerwise_moves_more": [
        (2, "not yet", "20 images, by output units 0.6901 MB and data"),
        (4, "not yet", "devices 4: more than is needed"),
        (64, "not yet", "devices 64: far, more than is needed"),
        (1, "not an answer", "an answer is a whole number from 2 to 64; got 1"),
        ("three", "not an answer", "an answer is a whole number from 2 to 64; got 'three'"),
    ],
    "hybrid_lenet": [
        ({"data parallel": 2}, "not yet", "1.033 MB of it between copies, 0 within them"),
        ({"network": 2}, "not yet", "rank 1 holds so much, in 2 x 1 parts of the model"),
        ({"space": 2}, "not yet", "0 MB of it between copies, 1.111 within them"),
        ({"layerwise": 3}, "not legal", "ways multiply, to 2 devices"),
        (
            {"rows": 2},
            "not an answer",
            "LeNet is split by 'data parallel', 'network', 'by output units'",
        ),
        (2, "not an answer", "an answer is a dict of ranks, 'data parallel'"),
    ],
    "fewest_sums": [
        (
            ["y", "from_gate", "from_up"],
            "not yet",
            "from_gate and from_up are summed one by one, and one sum",
        ),
        (["y", "from_gate"], "not yet", "from_gate is summed and from_up is not, and the two are"),
        (
            ["y"],
            "not yet",
            "dnormed is a partial sum, so dx_norm and dw_norm are partial sums, too",
        ),
        (["y", "dx_norm"], "not yet", "dw_norm is a partial sum, and the norm's weight, which"),
        (["y", "dx_norm", "dw_norm"], "not yet", "dx_norm and dw_norm are summed one by one"),
        (["dnormed"], "not yet", "y is a partial sum, and out, which adds x to it once, needs"),
        (
            ["y", "dout", "dnormed"],
            "not yet",
            "dout is no partial sum: each rank has all of it: summed, 4",
        ),
        (
            ["y", "dnormed", "dx_norm"],
            "not yet",
            "dx_norm is no partial sum: each rank has all of it: summed",
        ),
        (["gate", "up"], "not yet", "gate is no partial sum: each rank has its own columns of it"),
        (["y", "y"], "not an answer", "an answer is a list of places, each once, for example"),
        ("y", "not an answer", "an answer is a list of places, each once, for example"),
    ],
    "f_and_g": [
        (ends(), "not yet", "y is a partial sum on 3 ranks"),
        (ends(y=True), "not yet", "dx is a partial sum on 3 ranks"),
        (ends(dx=True), "not yet", "y is a partial sum on 3 ranks"),
        (ends(y=True, dy=True, dx=True), "not yet", "dx is 3 x right on 3 ranks"),
        (ends(y=True, dy=True), "not yet", "dx is no multiple of it on 3 ranks"),
        (lambda group, x: x, "not legal", "<lambda>(group, x, dy, w1, w2) raised TypeError"),
        (
            lambda group, x, dy, w1, w2: (x, x),
            "not legal",
            "a layer returns y, dx, dW1 and dW2; got 2 back",
        ),
        (
            lambda group, x, dy, w1, w2: (x @ w1, x, w1, w2),
            "not legal",
            "y has [2, 12, 32] numbers, got [2, 12, 127] back",
        ),
        ("y", "not an answer", "an answer is a function such as def layer(group, x, dy, w1, w2)"),
    ],
    "cannon_by_shifts": [
        (cannon(skewed=False), "not yet", "rank (0, 1) of 2 x 2 has another block than C's"),
        (lambda row, column, a, b: a @ b, "not yet", "rank (0, 0) of 2 x 2 has another block"),
        (
            lambda row, column, a, b: b,
            "not legal",
            "a block of C has [4, 2] numbers, got [3, 2] back",
        ),
        (lambda row: row, "not legal", "<lambda>(row, column, a, b) raised TypeError on 1 x 1"),
        ("cannon", "not an answer", "a function such as def cannon(row, column, a, b)"),
    ],
    "skip_connection": [
        (text("1f1b", 3, 4), "not legal", "line 1 cannot be read: '0F0,0F1"),
        (
            skipping(("program 1f1b", "program one")),
            "not yet",
            "2F.0 reads nothing that 0F.0 made",
        ),
        (skipping(*FORTH), "not yet", "0B.0 reads nothing that 2B.0 made"),
        (skipping(*BACK), "not yet", "2F.0 reads nothing that 0F.0 made"),
        (
            skipping(*FORTH[:1]),
            "not legal",
            "rank 2",
        ),
        (skipping(*FORTH, *BACK[1:]), "not legal", "ds has no size"),
        (skipping(*FORTH, *BACK[:3]), "not legal", "rank 2"),
        (skipping().replace("x1 1024 B", "x1 1 B"), "not legal", "x1 of rank 0 has 1 B"),
        (3, "not an answer", "an answer is a program, or its text"),
    ],
    "faulty_run": [
        ("A", "not yet", "A is sound: run again in float64 it lies no further from"),
        ("E", "not yet", "E is sound: run again in float64 it lies no further from"),
        ("G", "not an answer", "an answer is the letter of a run, 'A' to 'F'"),
    ],
    "save_intervals": [
        ((54, 3220, 69), "not yet", "C: time lost beyond the least, % 1.9164, target at most 1"),
        ((54, 1073, 57), "not yet", "B: time lost beyond the least, %"),
        ((1, 3220, 57), "not yet", "far, "),
        ((50, 2800, 55), "solved", "every target is met"),
        ((54, 3220, 10_000), "not yet", "every 10,000 steps"),
        ((54, 54), "not an answer", "3 whole numbers from 1 to 100,000"),
        ((54, 54.5, 57), "not an answer", "one a row, for example (9, 9, 9)"),
        ((0, 54, 57), "not an answer", "3 whole numbers from 1 to 100,000"),
    ],
    "ranks_on_hosts": [
        ("AAABBBBB", "not yet", "along dp alone 285,824 bytes"),
        ("ABBABBAB", "not yet", "along tp alone"),
        ("AAABBBB", "not an answer", "a text of 8 hosts, that of rank 0 first"),
        ("ABABABAB", "not legal", "A has 3 slots, and 4 ranks are put there"),
        ("AAACBBBB", "not an answer", "for example 'AAABBBBB'; got 'AAACBBBB'"),
        (3, "not an answer", "a text of 8 hosts"),
    ],
    "scale_rule": [
        (every(1), "not yet", "26 begun at 2^44, 4 begun at 1"),
        (every(2000), "not yet", "its scale lies between 2^0 and 2^0 and ends at 2^0, too"),
        (lambda scale, good, finite: (scale, good), "not yet", "48 begun at 2^44, 0 begun at 1"),
        (
            lambda scale, good, finite: scale,
            "not legal",
            "<lambda>(scale, good, finite) returns two numbers, the next",
        ),
        (
            lambda scale, good, finite: (0, 0),
            "not legal",
            "<lambda>(scale, good, finite): a loss scale lies between",
        ),
        (0.5, "not an answer", "an answer is a function such as def after(scale, good"),
    ],
    "step_traffic": [
        (
            counted(None) | {"data": counted(None)["data"] + 8},
            "not yet",
            "data parallel, bytes: 344,328 is too high, but near",
        ),
        (counted(None) | {"tensor": 0}, "not yet", "tensor parallel, bytes: 0 is far too low"),
        (counted(None) | {"barriers": 40}, "not yet", "barriers: 40 is too high"),
        (
            {"tensor": 1},
            "not an answer",
            "an answer is a dict of four numbers of 0 or more",
        ),
        (
            counted(None) | {"data": "many"},
            "not an answer",
            "'data' is a number of 0 or more, got 'many'",
        ),
    ],
    "uneven_copies": [
        (
            lambda group, gradient, rows, total: group.all_reduce(gradient) / group.size,
            "not yet",
            "a batch of 7 rows ends elsewhere: the copies have 3, 2, 2",
        ),
        (
            lambda group, gradient, rows, total: gradient,
            "not yet",
            "a batch of 6 rows ends elsewhere: the copies have 2, 2, 2",
        ),
        (
            lambda group, gradient, rows, total: group.all_reduce(gradient * rows),
            "not yet",
            "a batch of 6 rows ends elsewhere: the copies have 2, 2, 2",
        ),
        (
            lambda group, gradient, rows, total: (
                group.all_reduce(gradient * rows) / group.all_reduce(np.float64(rows))
            ),
            "not yet",
            "32 bytes more than one all-reduce of the gradient",
        ),
        (
            lambda group, gradient, rows, total: group.all_reduce(gradient / rows),
            "not yet",
            "a batch of 6 rows ends elsewhere: the copies have 2, 2, 2",
        ),
        (
            lambda group, gradient, rows: gradient,
            "not legal",
            "<lambda>(group, gradient, rows, total) raised TypeError",
        ),
        (
            lambda group, gradient, rows, total: gradient[0],
            "not legal",
            "the gradient has [784, 10] numbers, got [10] back",
        ),
        (type(None), "not legal", "NoneType(group, gradient, rows, total) raised TypeError"),
    ],
    "tasks_on_slots": [
        ((0, 1, 2, 3, 3, 2, 1, 0, 3), "not yet", "slot 3 has tasks 3, 4, 8, slot 0 only 11 units"),
        ((0,) * 9, "not yet", "slot 0 has tasks 0, 1, 2, 3, 4, 5, 6, 7, 8, slot 1 only 0"),
        ((0, 1, 2, 3), "not an answer", "an answer is a tuple of 9 slots, each 0..3"),
        (
            (0, 1, 2, 3, 4, 0, 1, 2, 3),
            "not an answer",
            "an answer is a tuple of 9 slots, each 0..3",
        ),
    ],
    "fewest_bytes": [
        (((S0, S1), (S0, S1)), "not yet", "2 MB of X move, 8 of A and 0 of partial sums of Y"),
        (((R, R), (S1, S1)), "not yet", "worker 0 has 2 MB of X and 2 of A"),
        (((S1, S1), (S0, S0)), "not yet", "0 MB of X move, 0 of A and 12 of partial sums of Y"),
        (
            ((S0,), (S1, R)),
            "not legal",
            "a mesh of 2 axes (2, 2) needs one placement per axis, got",
        ),
        (
            ((td.Partial(), R), (R, R)),
            "not legal",
            "an array cannot be distributed as (Partial(), Replicate())",
        ),
        ((S0, S1), "not an answer", "an answer is two tuples, the placements of X and those of"),
        (
            (("rows", "columns"), ("rows", "columns")),
            "not an answer",
            "an answer is two tuples, the placements of X and those of",
        ),
    ],
    "cheapest_choreography": [
        (
            {"algorithm": "summa", "panel": 64},
            "not yet",
            "7.2 MB of A move, 10.8 of B and 0 of partial sums of C",
        ),
        (
            {"algorithm": "2.5d", "grid": (2, 1, 2)},
            "not yet",
            "rank 0 holds A 1.8, B 1.8, fetched panels 2.7, C 0.72 MB",
        ),
        (
            {"algorithm": "row_parallel", "panel": 16},
            "not yet",
            "rank 0 holds A 1.8, B 1.8, partial sum of C 1.44, C 0.36",
        ),
        (
            {"algorithm": "local"},
            "not legal",
            "mesh axis 0: Shard(0) @ Shard(0) cannot be multiplied where",
        ),
        ({"algorithm": "cannon", "panel": 64}, "not legal", "cannon has no option panel"),
        ({"algorithm": "sumo"}, "not an answer", "no algorithm 'sumo'"),
        ("summa", "not an answer", "an answer is a dict of td.matmul's arguments: algorithm"),
        (
            {"panel": 64},
            "not an answer",
            "an answer is a dict of td.matmul's arguments: algorithm",
        ),
    ],
}
"""Task -> (an answer, the verdict, words of the reason) each."""
