"""The table of one voice: idle time, ends of schedules, and cuts."""

from math import comb
from typing import Any

from voice_ways import Row, Way, ask, said, shown, typed

import tiledask as td


def idle_of(name: str, devices: int, microbatches: int, stages: int = 0, **times: Any) -> Way:
    looped = {"devices": devices} if stages else {}
    return said(
        lambda: (
            td.simulate(
                td.schedule(name, stages or devices, microbatches, **looped), **times
            ).bubble_fraction
        )
    )


IDLE = [
    Row(
        "idle share of 1F1B, 4 stages, 8 micro-batches: 3 / 11",
        3 / 11,
        {
            "formula": said(lambda: td.formulas.bubble_fraction(4, 8)),
            "simulated": idle_of("1f1b", 4, 8, forward=1, backward=2),
            "idle": typed("idle 1f1b 4 8", "bubble_fraction"),
            "schedules": typed("list schedules 1f1b", "1f1b", "idle"),
            "ask 24": ask(24, "idle", "8"),
            "1 - used, ask 12": lambda voice: 1 - ask(12, "utilisation")(voice),
            "1 - used, ask 17": lambda voice: 1 - ask(17, "planned")(voice),
            "1 - used, ask 25": lambda voice: 1 - ask(25, "busy")(voice),
            "program": said(
                lambda: (
                    td.program(td.schedule("1f1b", 4, 8))
                    .timeline({"F": 1.0, "B": 2.0})
                    .bubble_fraction
                )
            ),
        },
        {
            "formula, overhead": (
                "idle over busy time: (p - 1) / m",
                3 / 8,
                said(lambda: td.formulas.bubble_overhead(4, 8)),
            ),
            "idle, overhead": (
                "idle over busy time",
                3 / 8,
                typed("idle 1f1b 4 8", "bubble_overhead"),
            ),
            "ask 12's bubble": (
                "idle over busy time",
                3 / 8,
                ask(12, "bubble"),
            ),
        },
    ),
    Row(
        "end of it, a forward 1 s, a backward 2: (8 + 3) x 3",
        33.0,
        {
            "bound": said(lambda: td.formulas.lower_bound([1.0] * 4, [2.0] * 4, 8)),
            "simulated": said(lambda: td.simulate(td.schedule("1f1b", 4, 8)).makespan),
            "optimum": said(lambda: td.optimal_schedule(4, 8, 1.0, 2.0, memory_limit=4).makespan),
            "idle": typed("idle 1f1b 4 8", "makespan"),
            "nb 08": shown(8, "end of 8 micro-batches on 4 stages"),
        },
        {
            "ask 12": (
                "0.03 and 0.06 s an action: 11 x 0.09",
                0.99,
                ask(12, "makespan", overhead=0.0),
            )
        },
    ),
    Row(
        "micro-batches that 1F1B keeps on each of 4 devices",
        [4, 3, 2, 1],
        {
            "simulated": said(lambda: list(td.simulate(td.schedule("1f1b", 4, 8)).peak_in_flight)),
            "idle": typed("idle 1f1b 4 8", "peak_in_flight"),
            "over time": said(
                lambda: list(td.memory_over_time(td.simulate(td.schedule("1f1b", 4, 8))).peaks)
            ),
            "program": said(
                lambda: [*td.program(td.schedule("1f1b", 4, 8)).memory.per_place.values()]
            ),
            "ask 12, first": lambda voice: [ask(12, "kept")(voice), 3, 2, 1],
            "nb 08, first": lambda voice: [
                int(voice.shown(8, "in flight on device 0 in 1F1B, m = 8")[0]),
                *(3, 2, 1),
            ],
        },
    ),
    Row(
        "micro-batches that GPipe keeps on each of 4 devices: all 8",
        [8] * 4,
        {
            "simulated": said(lambda: list(td.simulate(td.schedule("gpipe", 4, 8)).peak_in_flight)),
            "idle": typed("idle gpipe 4 8", "peak_in_flight"),
        },
    ),
    Row(
        "idle share of interleaved 1F1B, 2 chunks on each of 4 devices: 3 / (2 x 8 + 3)",
        3 / 19,
        {
            "formula": said(lambda: td.formulas.bubble_fraction(4, 8, 2)),
            "simulated": idle_of("interleaved", 4, 8, stages=8, forward=1, backward=2),
            "schedules": typed("list schedules interleaved", "interleaved", "idle"),
            "idle": typed("idle interleaved 4 8 --chunks 2", "bubble_fraction"),
        },
    ),
    Row(
        # 36: 3 devices of 4 chunks, 3 micro-batches: 2 / (4 x 3 + 2)
        "idle share of round robin, 12 layers on 3 devices, 3 micro-batches",
        1 / 7,
        {
            "formula": said(lambda: td.formulas.bubble_fraction(3, 3, 4)),
            "simulated": idle_of("interleaved", 3, 3, stages=12, forward=1, backward=2),
        },
        {"ask 36": ("idle over busy time: 2 / 12", 1 / 6, ask(36, "bubble interleaved"))},
    ),
    Row(
        # (p - 1)(F + B - W) a device of 8 (F + B + W): 3 / (24 + 3)
        "idle share of ZB-H1, 4 stages, 8 micro-batches, F = I = W",
        1 / 9,
        {
            "simulated": idle_of("zb-h1", 4, 8, forward=1, backward_input=1, backward_weight=1),
            "idle": typed("idle zb-h1 4 8", "bubble_fraction"),
            "schedules": typed("list schedules zb-h1", "zb-h1", "idle"),
            "nb 09's end, 27 s": lambda voice: 1 - 24 / voice.shown(9, "end of ZB-H1")[0],
        },
    ),
    Row(
        "idle share of layer-wise execution on 4: one works at a time",
        3 / 4,
        {
            "formula": said(lambda: td.formulas.bubble_fraction(4, 1)),
            "simulated": idle_of("naive", 4, 1),
            "idle": typed("idle naive 4 1", "bubble_fraction"),
            "idle layer-wise": typed("idle layer-wise 4", "bubble_fraction"),
            "schedules": typed("list schedules naive", "naive", "idle"),
            **{
                f"1 - used, ask {n}": lambda voice, n=n: 1 - ask(n, "utilisation")(voice)
                for n in (29, 31, 32, 37)
            },
            "ask 33": lambda voice: 1 - ask(33, "efficiency")(voice),
            "ask 38": lambda voice: 1 - ask(38, "4 workers", "utilisation")(voice),
        },
    ),
    Row(
        # 4 x (0.1 + 0.2) = 1.2 s, each works 0.3
        "idle device-time of layer-wise execution, 4 workers of 0.1 and 0.2 s: 4 x 0.9",
        3.6,
        {
            "ask 33": ask(33, "total idle"),
            "simulated": said(
                lambda: td.simulate(td.schedule("naive", 4, 1), forward=0.1, backward=0.2).idle
            ),
            "idle": typed("idle naive 4 1 --forward 0.1 --backward 0.2", "idle"),
        },
    ),
    Row(
        # 1.0 forward + 1.6 backward + 2 x 0.2 of transfers
        "end of one batch, layer-wise, F 0.3 0.1 0.4 0.2, B 0.5 0.2 0.6 0.3, sends 0.05 0.1 0.05",
        3.0,
        {
            "ask 39": ask(39, "makespan"),
            "simulated": said(
                lambda: (
                    td.simulate(
                        td.schedule("naive", 4, 1),
                        forward=[0.3, 0.1, 0.4, 0.2],
                        backward=[0.5, 0.2, 0.6, 0.3],
                        latency=[0.05, 0.1, 0.05],
                    ).makespan
                )
            ),
            "idle": typed(
                "idle naive 4 1 --forward 0.3,0.1,0.4,0.2 --backward 0.5,0.2,0.6,0.3 "
                "--latency 0.05,0.1,0.05",
                "makespan",
            ),
        },
    ),
]

# -- cuts ------------------------------------------------------------------------------------------

CUTS = [
    Row(
        "24 layers on 4 devices",
        [6, 6, 6, 6],
        {
            "td.partition": said(lambda: list(td.partition(24, 4).sizes)),
            "partition": typed("partition 24 4", "sizes"),
            "ask 34": ask(34, "sizes"),
        },
    ),
    Row(
        "ways to cut 24 layers into 4 parts: C(23, 3)",
        comb(23, 3),
        {
            "counted": said(lambda: len([*td.contiguous_splits(24, 4)])),
            "ask 34": ask(34, "splits"),
            "nb 06": shown(6, "cuts of 24 layers into 4 stages"),
        },
    ),
    Row(
        "changes of device under round robin, 24 layers",
        23,
        {
            "ask 34": ask(34, "crossings round robin"),
            "ask 36, 12 more": lambda voice: 12 + ask(36, "crossings round robin")(voice),
            "nb 06": shown(6, "crossings under round robin"),
        },
    ),
    Row(
        # at most 8, 8, 8 and 3 layers: 21 on three devices
        "the slowest of four devices, 24 layers of 1 GB on 8, 8, 8 and 3 GB",
        7,
        {
            "td.partition": said(
                lambda: td.partition(24, 4, memory=[1] * 24, capacity=[8, 8, 8, 3]).bottleneck
            ),
        },
    ),
    Row(
        "24 layers on devices of speed 1, 1, 2, 2: 24 / 6 each",
        [4, 4, 8, 8],
        {
            "td.partition": said(lambda: list(td.partition(24, 4, speeds=[1, 1, 2, 2]).sizes)),
            "partition": typed("partition 24 4 --speeds 1,1,2,2", "sizes"),
        },
    ),
    Row(
        "12 layers, 4 on each of 3 devices, is layer-wise; 1,4,7,10 on the first is not",
        [True, False],
        {
            "td.judge": said(
                lambda: [
                    td.judge(each, layers=12, devices=3).ok
                    for each in ("1-4 | 5-8 | 9-12", "1,4,7,10 | 2,5,8,11 | 3,6,9,12")
                ]
            ),
            "partition": lambda voice: [
                voice.typed(f"partition 12 3 --judge '{each}'")["ok"]
                for each in ("1-4 | 5-8 | 9-12", "1,4,7,10 | 2,5,8,11 | 3,6,9,12")
            ],
            "ask 36": lambda voice: [True, ask(36, "layer-wise")(voice)],
        },
    ),
]
