"""Published numbers on partitions and schedules: each is reproduced, or named as not covered.

The cases are in data/published/schedule.json with their sources and tolerances.
"""

import re

import numpy as np
import pytest
from oracles.closed_pipelines import gpipe_makespan, interleaved_makespan
from oracles.published_cases import assert_nothing_in_silence, check_of, load_cases, matching

from tiledask import Schedule, judge, memory_over_time, partition, schedule, simulate, validate
from tiledask.errors import PartitionError, ScheduleError
from tiledask.plan import formulas as cf
from tiledask.plan.pipelines.schedules import LOOPED, called
from tiledask.plan.pipelines.validate import most_kept

CASES = load_cases("schedule.json")

NOT_COVERED = {
    r"sail_readme_.*": "an asymptotic table of zero-bubble orders",
    r"gpipe_t[23]_.*|torchgpipe_amoeba_.*": "speeds on hardware, whose ideal is m / (m + p - 1)",
    r"llm_puzzle(0|6_gpipe)": "its steps count updates, and blocks as work of their ends",
    r"hops_.*": "crossings of a cut, which the tests of the judge count",
    r"llm_puzzle2_ddp": "data parallelism: no schedule in it",
    r"partition_optimality_rate": "how often two other programs miss the optimum",
    r"pipedream_.*": "data and pipeline parallelism chosen together; unverified",
}
"""What this part of tiledask does not have yet, by the ids of the cases."""


def close(case, value, expected) -> None:
    assert value == pytest.approx(expected, abs=case["tolerance"] or 1e-12)


# -- a schedule, its times, and what is read off its run -------------------------------------------

OURS = {"ZB-1p": "zb-auto", "ZB-2p": "zb-auto", "ZB1P": "zb-h1", "naive layer-wise": "naive"}
"""Names of theirs that `schedule` does not take."""
TIMES = {
    "T_F F chunk_F": "forward",
    "T_B_full B": "backward",
    "T_B I": "backward_input",
    "T_W W": "backward_weight",
    "T_comm": "latency",
    "FB overlap_FB": "overlapped",
}
TIMES = {name: ours for names, ours in TIMES.items() for name in names.split()}
SEEN = {
    "bubble_rate": lambda t: t.span_bubble,
    "makespan attained total_steps": lambda t: t.makespan,
    "ideal": lambda t: t.busy / t.devices,
    "lower_bound": lambda t: t.lower_bound,
    "max_span": lambda t: t.busy / t.devices / (1 - t.span_bubble),
    "bubble": lambda t: t.makespan - t.busy / t.devices,
    "idle_per_device": lambda t: t.idle_per_device,
    "utilisation": lambda t: t.utilisation,
    "bubble_ratio bubble_fraction bubble_fraction_of_total": lambda t: t.bubble_fraction,
    "bubble_over_ideal": lambda t: t.bubble_overhead,
    "peak_inflight_chunks": lambda t: t.peak_in_flight,
    "max_peak_inflight_chunks activation": lambda t: max(t.peak_in_flight),
    "peak_chunk_activations_freed_at_W": lambda t: max(t.peak_in_flight),
    # a choice of double buffering, which an order does not show
    "num_pipe_buffers": lambda t: [max(2, kept) for kept in t.peak_in_flight],
    "devices": lambda t: t.devices,
    "params weights_per_device": lambda t: sum(row.count(0) for row in t.schedule.places),
}
"""What is published of a run, and what we see of it; formulas in words are not read."""
SEEN = {name: see for names, see in SEEN.items() for name in names.split()}


def runs(case):
    """The run of each schedule that a case names, and its latency."""
    i, options = case["inputs"], {}
    p = next(i[key] for key in ("p", "PP", "D", "workers", "stages") if key in i)
    m = next((i[key] for key in ("m", "N", "micro_batches") if key in i), 3 * p)
    stages = i.get("stages", p * i.get("v", i.get("chunks", 1)))
    times = {TIMES[key]: seconds for key, seconds in i.items() if key in TIMES}
    if "total_steps" in case["expected"]:  # slots of equal length for F and B
        times, options["forward_only"] = {"forward": 1, "backward": 1}, "infer" in case["id"]
    for name in i.get("schedule", "1F1B").split("|"):
        ours = called(OURS.get(name, name))
        if ours == "zb-auto":
            memory = {"activation": i["M_B"], "weight_part": i["M_W"]}
            memory["memory_limit"] = i["M_limit_over_M_B"] * i["M_B"]
            built = validate(schedule(ours, stages, m, **times, **memory))
        else:
            looped = {"devices": p} if ours in LOOPED else {}
            built = schedule(ours, stages, m, **looped, **options)
        t = simulate(built, **times)
        assert t.peak_in_flight == most_kept(built)[0]
        yield t, simulate(built, **times | {"latency": 0}).makespan


def of_a_run(case):
    expected = {k: v for k, v in case["expected"].items() if not isinstance(v, str)}
    for t, without in runs(case):
        hops = expected.pop("extra_over_comm", None)
        if hops is not None:  # how often the latency is paid
            close(case, (t.makespan - without) / case["inputs"]["T_comm"], hops)
        for key, value in expected.items():
            seen = SEEN[key](t)  # one number stands for every device
            close(case, seen, np.broadcast_to(value, np.shape(seen)))


# -- what is more than a run -----------------------------------------------------------------------


def zero_bubble_interleaved(case):
    """Table 5, 1F1B-I: the paper's count; the simulation pays p more hops back to device 0."""
    i, p, v = case["inputs"], case["inputs"]["p"], case["inputs"]["v"]
    total = i["T_F"] + i["T_B"] + i["T_W"]
    cost = interleaved_makespan(p, i["m"], v, total, i["T_comm"])
    close(case, 1 - i["m"] * total / cost, case["expected"]["bubble_rate"])
    F, I, W = (i[name] / v for name in ("T_F", "T_B", "T_W"))
    t = simulate(schedule("interleaved", p * v, i["m"], devices=p), F, None, i["T_comm"], I, W)
    assert t.makespan == pytest.approx(cost + p * i["T_comm"])


def zero_bubble_memory(case):
    i = case["inputs"]
    t = simulate(schedule(i["schedule"], i["p"], 3 * i["p"]))
    close(case, memory_over_time(t, i["M_B"], i["M_W"]).peaks, case["expected"]["activation"])


def zero_bubble_plateau(case):
    """The least memory with which the automatic order has no bubble but the paper's bound."""
    i = case["inputs"]
    limit = case["expected"]["M_limit_plateau_over_M_B"]
    spans = []
    for room in (limit - 1, limit, limit + 1):
        built = schedule("zb-auto", i["p"], 4 * i["p"], memory_limit=room, weight_part=0.5)
        spans.append(simulate(built).span_bubble)
    assert spans[0] > spans[1] == spans[2]


def torch_shifted_last_rank(case):
    i, e = case["inputs"], case["expected"]
    rows = schedule("1f1b", i["p"], i["m"]).to_text().splitlines()
    assert rows[-1].split(",")[:3] == e["correct_first"]
    shifted = [f"3{kind}{n + (kind == 'F')}" for n in range(i["m"]) for kind in "FB"]
    assert shifted[:3] == e["last_rank_first_actions"]
    assert shifted[-2:] == e["last_actions"]
    with pytest.raises(ScheduleError, match="micro-batch 8 rank 0 does nothing"):
        validate(Schedule.from_text("\n".join([*rows[:-1], ",".join(shifted)])))


def partition_case(case):
    i, e = case["inputs"], case["expected"]
    if len(i["weights"]) < i["parts"]:  # DeepSpeed leaves a part empty; a stage is never empty
        with pytest.raises(PartitionError, match="fewer than"):
            partition(i["weights"], i["parts"])
        return
    cut = partition(i["weights"], i["parts"], i.get("speeds"))
    blocks = [sum(i["weights"][n] for n in layers) for layers in cut.layers]
    seen = {
        "bottleneck": cut.bottleneck,
        "optimal_bottleneck": cut.bottleneck,
        "sizes": list(cut.sizes),
        "optimal_sizes": list(cut.sizes),
        "boundaries": list(cut.bounds),
        "blocks": [[i["weights"][n] for n in layers] for layers in cut.layers],
        "max_minus_min": max(blocks) - min(blocks),
    }
    checked = {name: value for name, value in e.items() if not name.startswith("anchor")}
    assert checked
    assert {name: seen[name] for name in checked} == checked
    if "anchor_bottleneck" in e:  # another program's answer, which is refused and slower
        assert e["anchor_bottleneck"] > cut.bottleneck
        assert judge("1-3 | | 4", costs=i["weights"]).rule == "idle device"


def uneven(case):
    i, e = case["inputs"], case["expected"]
    F, B, m, c = i["F"], i["B_full"], i["m"], i["T_comm"]
    one, gpipe = (simulate(schedule(n, len(F), m), F, B, c) for n in ("1f1b", "gpipe"))
    close(case, one.makespan, e["makespan_1F1B"])
    close(case, gpipe.makespan, e["makespan_GPipe"])
    close(case, gpipe_makespan(F, B, m, c), e["makespan_GPipe"])
    close(case, cf.lower_bound(F, B, m, c), e["lower_bound"])


CHECKS = {
    r"zb_t5_.*_1F1B-I": zero_bubble_interleaved,
    r"zb_t5_.*_(1F1B|ZB-(H1|H2|1p|2p))|zb_t2_ZB-H1|zb_makespan_lower_bound": of_a_run,
    r"zb_H._per_worker_mem": zero_bubble_memory,
    r"zb_mem_plateau": zero_bubble_plateau,
    r"(zbvgreedy|comm|dualpipe|chimera|naive_util|textbook|interleaved)_.*": of_a_run,
    r"torch_(?!bug).*|deepspeed_(train|infer)_steps.*": of_a_run,
    r"torch_bug_1F1B_last_rank": torch_shifted_last_rank,
    r"deepspeed_(partition|balanced)_.*|torchgpipe_zeros": partition_case,
    r"partition_(?!optimality).*": partition_case,
    r"uneven_.*": uneven,
}


def marked(case):
    """The automatic orders of 16 and 32 devices take long; those of 8 are like them."""
    large = re.fullmatch(r"zb_t5_(14.6|28.3)B_.*_ZB-[12]p", case["id"])
    return pytest.param(case, id=case["id"], marks=[pytest.mark.slow] if large else [])


@pytest.mark.parametrize("case", [marked(c) for c in CASES if not matching(c, NOT_COVERED)])
def test_reproduces(case):
    check_of(case, CHECKS)(case)


def test_nothing_is_skipped_in_silence():
    assert_nothing_in_silence(CASES, CHECKS, NOT_COVERED, total=150, uncovered=29)
