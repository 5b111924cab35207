"""One run of one program that simulates pipeline schedules, in a process of its own: JSON out.

    python -I schedule_peers.py torch  1f1b        32 64  512 -
    python -I schedule_peers.py vic    interleaved 32 64  512 CHECKOUT
                                ^ who  ^ schedule  ^ devices, stages, micro-batches

Needs nothing but the standard library and the program itself, so that any interpreter that has
the program can run it. All of them build an order and simulate it with the same uneven stages.
"""

import gc
import hashlib
import json
import os
import sys
import time

__all__ = ["durations", "run"]


def durations(stages):
    """(forward, backward) seconds of every stage: uneven, and exact as binary fractions."""
    forward = [1.0 + (7 * s % 16) / 16 for s in range(stages)]
    return forward, [2.0 * f for f in forward]


def run(who, name, devices, stages, microbatches, where):
    """A dict: seconds to build and simulate, by the clock and of the core; what came out; the
    process's peak bytes."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core
    start, finish = WAYS[who](name, devices, stages, microbatches, where)
    before = peak_bytes()
    gc.collect()
    begun = time.perf_counter(), time.process_time()
    result = start()
    seconds, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
    peak = peak_bytes()
    facts = {"seconds": seconds, "cpu": cpu, "peak": peak, "before": before}
    return facts | finish(result)


def peak_bytes():
    """The most memory this process has had; a child's ru_maxrss would begin with its parent's."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def digest(rows):
    """A short name of per-device orders, each an iterable of words such as 0F3."""
    return hashlib.sha256("\n".join(",".join(row) for row in rows).encode()).hexdigest()[:16]


# -- torch.distributed.pipelining ----------------------------------------------------------------


def torch(name, devices, stages, microbatches, where):
    """torch's order of the schedule, validated, with sends and receives, simulated in unit steps.

    Its own 1F1B puts the last rank one micro-batch too late, which its validator refuses; there
    the order is written out here, in its actions.
    """
    from torch.distributed.pipelining import schedules as peer

    def order_of_1f1b(rank):
        kinds = peer.FORWARD, peer.FULL_BACKWARD
        ahead = min(stages - 1 - rank, microbatches)
        order = [peer._Action(rank, kinds[0], i) for i in range(ahead)]
        for i in range(microbatches):
            if ahead + i < microbatches:
                order.append(peer._Action(rank, kinds[0], ahead + i))
            order.append(peer._Action(rank, kinds[1], i))
        return order

    def order_of_interleaved(rank):
        made = peer.ScheduleInterleaved1F1B.__new__(peer.ScheduleInterleaved1F1B)
        made.n_local_stages, made.pp_group_size = stages // devices, devices
        made._n_microbatches = microbatches
        made.microbatches_per_round = microbatches // max(1, microbatches // devices)
        return made._calculate_single_rank_operations(rank)

    def place(stage):
        return stage % devices

    def start():
        order_of = {"1f1b": order_of_1f1b, "interleaved": order_of_interleaved}[name]
        orders = {rank: order_of(rank) for rank in range(devices)}
        peer._validate_schedule(orders, devices, stages, microbatches)
        orders = {rank: [a for a in order if a is not None] for rank, order in orders.items()}
        lowered = peer._add_send_recv(orders, place, stages)
        return peer._simulate_comms_compute(lowered, place, stages)

    def finish(simulated):
        rows = [[str(a) for a in simulated[rank] if a and a.is_compute_op] for rank in simulated]
        return {"order": digest(rows), "actions": sum(map(len, rows))}

    return start, finish


# -- PP-Schedule-Visualization -------------------------------------------------------------------


def vic(name, devices, stages, microbatches, where):
    """Vic's schedule, executed: when every operation starts and ends."""
    sys.path.insert(0, where)
    from src.execution_model import ScheduleConfig
    from src.strategies import generate_1f1b_interleave_schedule, generate_1f1b_schedule

    forward, backward = durations(stages)
    made = {"1f1b": generate_1f1b_schedule, "interleaved": generate_1f1b_interleave_schedule}[name]

    def start():
        config = ScheduleConfig(
            devices,
            stages,
            microbatches,
            placement_strategy="interleave" if name == "interleaved" else "standard",
            op_times={
                "forward": dict(enumerate(forward)),
                "backward": dict(enumerate(backward)),
            },
        )
        schedule = made(config)
        schedule.execute()
        return schedule

    def finish(schedule):
        letter = {"forward": "F", "backward": "B"}
        rows = [
            [f"{op.stage_id}{letter[op.op_type]}{op.batch_id}" for op in queue.ops]
            for queue in schedule.device_queues
        ]
        return {
            "order": digest(rows),
            "actions": sum(map(len, rows)),
            "makespan": schedule.get_total_execution_time(),
            "sum of ends": sum(op.end_time for op in schedule.ops.values()),
        }

    return start, finish


# -- tiledask ------------------------------------------------------------------------------------


def ours(name, devices, stages, microbatches, where):
    """td.schedule and td.simulate; ``where``: "cold", or "warm" for a process that has simulated
    a schedule of 131,072 actions and one of this size before."""
    from tiledask.plan.pipelines.schedules import schedule
    from tiledask.plan.pipelines.simulate import simulate

    times = durations(stages)
    options = {"devices": devices} if name == "interleaved" else {}

    def start():
        built = schedule(name, stages, microbatches, **options)
        return built, simulate(built, *times)

    if where == "warm":
        simulate(schedule("1f1b", 64, 1024))
        start()

    def finish(result):
        built, timeline = result
        facts = {"actions": len(built), "makespan": timeline.makespan}
        if len(built) <= 1_000_000:
            rows = (line.split(",") for line in built.to_text().splitlines())
            facts |= {"order": digest(rows), "sum of ends": float(timeline.end.sum())}
        return facts

    return start, finish


WAYS = {"torch": torch, "vic": vic, "ours": ours}

if __name__ == "__main__":
    who, name, *counts, where = sys.argv[1:]
    print(json.dumps(run(who, name, *map(int, counts), where)))
