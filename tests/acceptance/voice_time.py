"""The table of one voice: idle time, ends of schedules, and cuts."""

from math import comb

ONE_BATCH = "naive 4 1 --forward 0.3,0.1,0.4,0.2 --backward 0.5,0.2,0.6,0.3 --latency 0.05,0.1,0.05"
RIGHT, ROUND_ROBIN = "1-4 | 5-8 | 9-12", "1,4,7,10 | 2,5,8,11 | 3,6,9,12"

IDLE = [
    (
        "idle share of 1F1B, 4 stages, 8 micro-batches: 3 / 11",
        3 / 11,
        "td.formulas.bubble_fraction(4, 8)",
        "simulated('1f1b', 4, 8, forward=1, backward=2).bubble_fraction",
        "typed('idle 1f1b 4 8')['bubble_fraction']",
        "typed('list schedules 1f1b')['1f1b']['idle']",
        "ask(24)['idle']['8']",
        "1 - ask(12)['utilisation']",
        "1 - ask(17)['planned']",
        "1 - ask(25)['busy']",
        "td.program(td.schedule('1f1b', 4, 8)).timeline({'F': 1.0, 'B': 2.0}).bubble_fraction",
        # idle over busy time: (p - 1) / m
        (3 / 8, "td.formulas.bubble_overhead(4, 8)"),
        (3 / 8, "typed('idle 1f1b 4 8')['bubble_overhead']"),
        (3 / 8, "ask(12)['bubble']"),
    ),
    (
        "end of it, a forward 1 s, a backward 2: (8 + 3) x 3",
        33.0,
        "td.formulas.lower_bound([1.0] * 4, [2.0] * 4, 8)",
        "simulated('1f1b', 4, 8).makespan",
        "td.optimal_schedule(4, 8, 1.0, 2.0, memory_limit=4).makespan",
        "typed('idle 1f1b 4 8')['makespan']",
        "shown(8, 'end of 8 micro-batches on 4 stages')",
        # 0.03 and 0.06 s an action: 11 x 0.09
        (0.99, "ask(12, overhead=0.0)['makespan']"),
    ),
    (
        "micro-batches that 1F1B keeps on each of 4 devices",
        [4, 3, 2, 1],
        "list(simulated('1f1b', 4, 8).peak_in_flight)",
        "typed('idle 1f1b 4 8')['peak_in_flight']",
        "list(td.memory_over_time(simulated('1f1b', 4, 8)).peaks)",
        "[*td.program(td.schedule('1f1b', 4, 8)).memory.per_place.values()]",
        (4, "ask(12)['kept']"),  # on the first
        (4, "shown(8, 'in flight on device 0 in 1F1B, m = 8')"),
    ),
    (
        "micro-batches that GPipe keeps on each of 4 devices: all 8",
        [8] * 4,
        "list(simulated('gpipe', 4, 8).peak_in_flight)",
        "typed('idle gpipe 4 8')['peak_in_flight']",
    ),
    (
        "idle share of interleaved 1F1B, 2 chunks on each of 4 devices: 3 / (2 x 8 + 3)",
        3 / 19,
        "td.formulas.bubble_fraction(4, 8, 2)",
        "td.simulate(td.schedule('interleaved', 8, 8, devices=4)).bubble_fraction",
        "typed('list schedules interleaved')['interleaved']['idle']",
        "typed('idle interleaved 4 8 --chunks 2')['bubble_fraction']",
    ),
    (
        # 36: 3 devices of 4 chunks, 3 micro-batches: 2 / (4 x 3 + 2)
        "idle share of round robin, 12 layers on 3 devices, 3 micro-batches",
        1 / 7,
        "td.formulas.bubble_fraction(3, 3, 4)",
        "td.simulate(td.schedule('interleaved', 12, 3, devices=3)).bubble_fraction",
        (1 / 6, "ask(36)['bubble interleaved']"),  # idle over busy time: 2 / 12
    ),
    (
        # (p - 1)(F + B - W) a device of 8 (F + B + W): 3 / (24 + 3)
        "idle share of ZB-H1, 4 stages, 8 micro-batches, F = I = W",
        1 / 9,
        "simulated('zb-h1', 4, 8, 1, backward_input=1, backward_weight=1).bubble_fraction",
        "typed('idle zb-h1 4 8')['bubble_fraction']",
        "typed('list schedules zb-h1')['zb-h1']['idle']",
        (27.0, "shown(9, 'end of ZB-H1')"),
    ),
    (
        "idle share of layer-wise execution on 4: one works at a time",
        3 / 4,
        "td.formulas.bubble_fraction(4, 1)",
        "simulated('naive', 4, 1).bubble_fraction",
        "typed('idle naive 4 1')['bubble_fraction']",
        "typed('idle layer-wise 4')['bubble_fraction']",
        "typed('list schedules naive')['naive']['idle']",
        *(f"1 - ask({n})['utilisation']" for n in (29, 31, 32, 37)),
        "1 - ask(33)['efficiency']",
        "1 - ask(38)['4 workers']['utilisation']",
    ),
    (
        # 4 x (0.1 + 0.2) = 1.2 s, each works 0.3
        "idle device-time of layer-wise execution, 4 workers of 0.1 and 0.2 s: 4 x 0.9",
        3.6,
        "ask(33)['total idle']",
        "simulated('naive', 4, 1, forward=0.1, backward=0.2).idle",
        "typed('idle naive 4 1 --forward 0.1 --backward 0.2')['idle']",
    ),
    (
        # 1.0 forward + 1.6 backward + 2 x 0.2 of transfers
        "end of one batch, layer-wise, F 0.3 0.1 0.4 0.2, B 0.5 0.2 0.6 0.3, sends 0.05 0.1 0.05",
        3.0,
        "ask(39)['makespan']",
        "simulated('naive', 4, 1, forward=[0.3, 0.1, 0.4, 0.2],"
        " backward=[0.5, 0.2, 0.6, 0.3], latency=[0.05, 0.1, 0.05]).makespan",
        f"typed('idle {ONE_BATCH}')['makespan']",
    ),
]

CUTS = [
    (
        "24 layers on 4 devices",
        [6, 6, 6, 6],
        "list(td.partition(24, 4).sizes)",
        "typed('partition 24 4')['sizes']",
        "ask(34)['sizes']",
    ),
    (
        "ways to cut 24 layers into 4 parts: C(23, 3)",
        comb(23, 3),
        "len([*td.contiguous_splits(24, 4)])",
        "ask(34)['splits']",
        "shown(6, 'cuts of 24 layers into 4 stages')",
    ),
    (
        "changes of device under round robin, 24 layers",
        23,
        "ask(34)['crossings round robin']",
        "12 + ask(36)['crossings round robin']",  # of 12 layers
        "shown(6, 'crossings under round robin')",
    ),
    (
        # at most 8, 8, 8 and 3 layers: 21 on three devices
        "the slowest of four devices, 24 layers of 1 GB on 8, 8, 8 and 3 GB",
        7,
        "td.partition(24, 4, memory=[1] * 24, capacity=[8, 8, 8, 3]).bottleneck",
    ),
    (
        "24 layers on devices of speed 1, 1, 2, 2: 24 / 6 each",
        [4, 4, 8, 8],
        "list(td.partition(24, 4, speeds=[1, 1, 2, 2]).sizes)",
        "typed('partition 24 4 --speeds 1,1,2,2')['sizes']",
    ),
    (
        "12 layers, 4 on each of 3 devices, are layer-wise",
        True,
        f"td.judge('{RIGHT}', layers=12, devices=3).ok",
        f"typed('partition 12 3 --judge \"{RIGHT}\"')['ok']",
        # and 1,4,7,10 on the first are not
        (False, f"td.judge('{ROUND_ROBIN}', layers=12, devices=3).ok"),
        (False, f"typed('partition 12 3 --judge \"{ROUND_ROBIN}\"')['ok']"),
        (False, "ask(36)['layer-wise']"),
    ),
]
