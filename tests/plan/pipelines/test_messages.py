"""Files of schedules as PyTorch writes and loads them, with messages between devices and without.

Holds `tiledask.plan.pipelines.generators.messages`. torch_csv/ has what PyTorch 2.13.0 and 2.15.0
wrote; make.py there, in an environment with PyTorch, writes it anew and loads ours.
"""

import re
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from test_schedule import of_any_name

from tiledask.errors import ScheduleError
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.pipelines.generators.sharding import shard_weights
from tiledask.plan.pipelines.needs import validate
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import BOTH_WAYS, is_looped, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate

FILES = sorted((Path(__file__).parent / "torch_csv").glob("*/*.csv"))
NAME = re.compile(r"(\w+)-(\d+)s(\d+)r(\d+)m-compute_(only|comms)")
WAYS = {"2.13.0": "sends", "2.15.0": "waits"}
ONE_PIPELINE = [name for name in schedules if name not in BOTH_WAYS]
MESSAGE = re.compile(r"(\d+)(SEND|RECV)_([FB])(\d+)")


# -- PyTorch's files -------------------------------------------------------------------------------


def test_there_are_files_of_each_kind():
    assert len(FILES) == 28
    assert {NAME.fullmatch(file.stem)[5] for file in FILES} == {"only", "comms"}
    assert "0WAIT_SEND_F0" in FILES[-2].read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_what_pytorch_wrote_is_read_can_run_and_is_written_to_the_letter(file):
    name, stages, ranks, microbatches, kind = NAME.fullmatch(file.stem).groups()
    text = file.read_text()
    read = validate(Schedule.from_text(text, name))
    assert (read.stages, read.devices, read.microbatches) == (
        int(stages), int(ranks), int(microbatches)
    )  # fmt: skip
    rows = [",".join(filter(None, row.split(","))) for row in text.splitlines()]
    written = read.to_text(WAYS[file.parent.name] if kind == "comms" else "")
    assert written.splitlines() == rows

    options = {"devices": int(ranks)} if "Inter" in name or "Loop" in name else {}
    ours = schedule(name, int(stages), int(microbatches), **options)
    assert simulate(ours).makespan == simulate(read).makespan
    if name != "LoopedBFS":  # whose backwards PyTorch does from the last to the first
        assert read == (shard_weights(ours, 3) if kind == "comms" else ours)


def test_pytorchs_names_in_any_case():
    names = {
        "GPipe": "gpipe",
        "1F1B": "1f1b",
        "Interleaved1F1B": "interleaved",
        "LoopedBFS": "looped-bfs",
        "InterleavedZeroBubble": "interleaved-zb",
        "ZBVZeroBubble": "zb-v",
        "DualPipeV": "dualpipev",
    }
    for theirs, ours in names.items():
        options = {"devices": 2} if is_looped(ours) else {}
        for name in (theirs, theirs.lower(), theirs.upper()):
            assert schedule(name, 4, 4, **options) == schedule(ours, 4, 4, **options)
        assert Layout(pp=2, microbatches=4, schedule=theirs).schedule == ours
    with pytest.raises(
        ScheduleError, match=r"no schedule 'PipelineScheduleMulti'.*Interleaved1F1B"
    ):
        schedule("PipelineScheduleMulti", 4, 4)


# -- ours ------------------------------------------------------------------------------------------


def test_two_stages_as_they_are_drawn():
    order = shard_weights(Schedule.from_text("0F0 0F1 0B0 0B1; 1F0 1B0 1F1 1B1"))
    assert order.to_text("sends").splitlines() == [
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD",
        "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD",
    ]
    assert order.to_text("waits").splitlines() == [
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0RECV_B1,0B1,0WAIT_SEND_F1,"
        "0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD",
        "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,"
        "1WAIT_REDUCE_GRAD,1RESHARD,1WAIT_SEND_B0,1WAIT_SEND_B1",
    ]


def messages(row, place):
    """[(sender, receiver, F or B, receiving stage, micro-batch)] of a device, in its order."""
    found = []
    for stage, what, way, number in MESSAGE.findall(re.sub(r"\d+WAIT_\w+", "", row)):
        step = 1 if way == "F" else -1
        to = int(stage) + step * (what == "SEND")
        found.append((place[to - step], place[to], way, to, int(number)))
    return found


@pytest.mark.parametrize("microbatches", [1, 3, 8])
@pytest.mark.parametrize("name", ONE_PIPELINE)
def test_two_devices_have_their_messages_in_the_same_order_and_all_of_them(name, microbatches):
    order = shard_weights(of_any_name(name, 3, microbatches, 2), 3)
    place, text = order.place, order.to_text("sends")
    assert Schedule.from_text(text) == order
    rows = [messages(row, place) for row in text.splitlines()]
    for one, other in combinations(range(order.devices), 2):
        between = [[m for m in rows[d] if {one, other} == {*m[:2]}] for d in (one, other)]
        assert between[0] == between[1]
    crossing = sum(a != b for a, b in pairwise(place))
    assert sum(map(len, rows)) == 2 * 2 * crossing * order.microbatches


@pytest.mark.parametrize("name", ONE_PIPELINE)
def test_what_is_received_is_used_later_and_what_is_sent_was_made_before(name):
    order = of_any_name(name, 3, 5, 2)
    for row in shard_weights(order, 3).to_text("sends").splitlines():
        words = re.findall(r"\d+[A-Z_]+\d*", row.replace("OVERLAP_F_B", ""))
        for stage, what, way, number in MESSAGE.findall(row):
            message = words.index(f"{stage}{what}_{way}{number}")
            kinds = "F" if way == "F" else "BI"
            (done,) = (
                n for n, w in enumerate(words) if w in [f"{stage}{k}{number}" for k in kinds]
            )
            assert (message < done) == (what == "RECV")


@pytest.mark.parametrize("name", ONE_PIPELINE)
def test_each_send_and_each_sum_is_waited_for_once_behind_it(name):
    order = shard_weights(of_any_name(name, 3, 5, 2), 3)
    text = order.to_text("waits")
    assert Schedule.from_text(text) == order
    begun = 0
    for row in text.splitlines():
        words = row.split(",")
        for word in filter(re.compile(r"\d+(SEND_|REDUCE)").match, words):
            begun += 1
            waits = re.sub("SEND|REDUCE", r"WAIT_\g<0>", word)
            assert words.count(waits) == 1
            assert words.index(waits) > words.index(word)
    assert begun == text.count("WAIT_") > 0
    without = [w for w in text.replace("\n", ",").split(",") if "WAIT_" not in w]
    assert sorted(without) == sorted(order.to_text("sends").replace("\n", ",").split(","))


def test_without_backwards_nothing_is_summed_and_sends_are_waited_for_at_the_end():
    order = schedule("gpipe", 2, 2, forward_only=True)
    assert order.to_text("waits").splitlines() == [
        "0F0,0SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F0,0WAIT_SEND_F1",
        "1RECV_F0,1F0,1RECV_F1,1F1",
    ]


@pytest.mark.parametrize(
    ("order", "word", "message"),
    [
        (schedule("1f1b", 2, 2), "sends", r"stage 0 has none; write td\.shard_weights"),
        (shard_weights(schedule("1f1b", 2, 2), 1, "action"), "sends", "stage 0 has none"),
        (shard_weights(schedule("dualpipe", 4, 4)), "waits", "have one pipeline.* has 2;"),
        (schedule("1f1b", 2, 2), "all", "its 'sends' .*, or with 'waits' .* got 'all'"),
        (
            shard_weights(Schedule.from_text("0B0 0F0; 1F0 1B0")),
            "sends",
            "0B0, 1F0 wait for what comes after them",
        ),
    ],
)
def test_refuses(order, word, message):
    with pytest.raises(ScheduleError, match=message):
        order.to_text(word)
