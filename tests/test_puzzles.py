"""Every optimal answer is accepted, every kind of wrong one refused in its own words."""

import json
import subprocess
import sys

import pytest

from tiledask.errors import ConfigError
from tiledask.lab import puzzles
from tiledask.lab.puzzles import UnsolvedError, load_puzzle, puzzle_names
from tiledask.plan.closed_form import lower_bound
from tiledask.plan.partition import Partition, contiguous_splits, partition
from tiledask.plan.schedule import Schedule
from tiledask.plan.schedules import schedule

PARTITIONS = ["12-on-3", "24-memory-cap", "24-on-4", "24-uneven", "24-unequal-devices"]
ONE_F_ONE_B = schedule("1f1b", 2, 4).to_text()
GPIPE = schedule("gpipe", 2, 4).to_text()
HIDING = "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n1F0,1F1,1B0,1B1,1F2,1B2,1F3,1B3"


def test_these_are_the_puzzles():
    others = {"fewest-microbatches", "order-on-2", "order-with-latency"}
    assert set(puzzle_names()) == {*PARTITIONS, *others}


@pytest.mark.parametrize("name", puzzle_names())
def test_the_task_says_every_target_as_a_number(name):
    puzzle = load_puzzle(name)
    for target in puzzle.targets.values():
        assert f" {target:g}" in puzzle.task
    assert puzzle.title in puzzle._repr_html_()


@pytest.mark.parametrize("name", puzzle_names())
def test_not_attempted_is_false_and_quiet(name):
    result = load_puzzle(name).check(None)
    assert not result
    assert not result.attempted
    assert result.reason == "Not attempted yet."
    with pytest.raises(UnsolvedError, match=f"{name}: Not attempted"):
        result.require()


def all_splits(puzzle):
    speeds = puzzle.inputs.get("speeds", [1.0] * puzzle.inputs["devices"])
    costs = puzzle.inputs["costs"]
    for bounds in contiguous_splits(len(costs), puzzle.inputs["devices"]):
        yield Partition(bounds, tuple(costs), tuple(speeds))


@pytest.mark.parametrize("name", PARTITIONS)
def test_over_all_splits_exactly_the_optimal_ones_are_accepted(name):
    """The targets are the optimum: all that reach it pass, and nothing else does."""
    puzzle = load_puzzle(name)
    best = partition(
        puzzle.inputs["costs"],
        puzzle.inputs["devices"],
        **{k: puzzle.inputs[k] for k in ("speeds", "memory", "capacity") if k in puzzle.inputs},
    )
    assert puzzle.targets["bottleneck"] == best.bottleneck
    assert puzzle.targets["crossings"] == puzzle.inputs["devices"] - 1
    accepted = refused = 0
    for split in [*list(all_splits(puzzle))[:: 1 if name == "12-on-3" else 7], best]:
        result = puzzle.check(split)
        fits = "memory" not in puzzle.inputs or all(
            sum(puzzle.inputs["memory"][n] for n in layers) <= puzzle.inputs["capacity"]
            for layers in split.layers
        )
        assert result.legal == fits
        assert bool(result) == (fits and split.bottleneck == best.bottleneck)
        assert result.best == bool(result)
        accepted, refused = accepted + bool(result), refused + (not result)
    assert accepted
    assert refused
    assert puzzle.check(str(best)).require().best


@pytest.mark.parametrize("name", PARTITIONS)
def test_wrong_partitions_are_refused_each_in_its_own_words(name):
    puzzle = load_puzzle(name)
    layers, devices = len(puzzle.inputs["costs"]), puzzle.inputs["devices"]
    slow = "|".join([*map(str, range(1, devices)), f"{devices}-{layers}"])
    wrong = {
        "not contiguous": [n % devices for n in range(layers)],
        "layer missing": [[n] for n in range(1, devices + 1)],
        "layer twice": [range(1, layers + 1), [1], *[[n] for n in range(2, devices)]],
        "cannot read": 3.5,
        "write layers as": "a | b",
        "idle device": [0] * layers,
        "unknown device": list(range(layers)),
        "over memory" if "memory" in puzzle.inputs else "too much": slow,
    }
    reasons = {}
    for words, answer in wrong.items():
        result = puzzle.check(answer)
        assert not result
        assert result.attempted
        assert words in result.reason
        with pytest.raises(UnsolvedError, match=words):
            result.require()
        reasons[words] = result.reason
    assert len(set(reasons.values())) == len(wrong)


def test_legal_but_slow_says_by_how_much():
    result = load_puzzle("24-uneven").check("1-6 | 7-12 | 13-18 | 19-24")
    assert result.legal
    assert not result
    assert result.reason == "Legal, but time of the slowest device 9, target at most 7: 2 too much."
    assert [t.met for t in result.targets] == [True, False]
    html = result._repr_html_()
    assert html.count("missed") == 1
    assert html.count("best possible") == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (20, "idle share of device-time 0.259259, target at most 0.25"),
        (22, "micro-batches 22, target at most 21: 1 too much"),
        (0, "at least 1, got 0"),
        (2.5, "got 2.5"),
        ("many", "got 'many'"),
        ([21], r"got [21]"),
        (10**9, "more than 1000"),
    ],
)
def test_fewest_microbatches_refuses(answer, words):
    result = load_puzzle("fewest-microbatches").check(answer)
    assert not result
    assert words in result.reason


def test_fewest_microbatches_accepts_only_the_fewest():
    puzzle = load_puzzle("fewest-microbatches")
    accepted = [m for m in range(1, 40) if puzzle.check(m)]
    assert accepted == [21]
    assert puzzle.check(21).require().best
    # a looser target accepts more, and knows that fewer would do
    loose = puzzles._read("loose", {**as_file(puzzle), "targets": {"idle": 0.25}})
    assert [bool(loose.check(m)) for m in (20, 21, 30)] == [False, True, True]


def as_file(puzzle) -> dict:
    plain = {name: getattr(puzzle, name) for name in ("title", "kind", "task")}
    return {**plain, "inputs": dict(puzzle.inputs), "targets": dict(puzzle.targets)}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("order-on-2", ONE_F_ONE_B),
        ("order-on-2", schedule("1f1b", 2, 4)),
        ("order-with-latency", HIDING),
    ],
)
def test_orders_that_meet_the_targets_are_accepted(name, answer):
    puzzle = load_puzzle(name)
    assert puzzle.check(answer).require().best
    times = puzzle.inputs
    bound = lower_bound([times["forward"]] * 2, [times["backward"]] * 2, 4, times["latency"])
    assert puzzle.targets["makespan"] == bound


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("order-on-2", GPIPE, "kept on a device 4, target at most 2: 2 too much"),
        ("order-on-2", schedule("naive", 2, 4).to_text(), "seconds until the end 24"),
        ("order-with-latency", ONE_F_ONE_B, "seconds until the end 17, target at most 16"),
        ("order-with-latency", GPIPE, "kept on a device 4, target at most 3"),
        ("order-on-2", ONE_F_ONE_B.replace("0B3", "0B2"), "0B2 is repeated"),
        ("order-on-2", ONE_F_ONE_B.replace(",0B3", ""), "missing 0B3"),
        ("order-on-2", ONE_F_ONE_B.replace("1F0,1B0", "1B0,1F0"), "backward before forward"),
        ("order-on-2", "0F0,0B0,0F1,0F2,0F3,0B1,0B2,0B3\n1F1,1B1,1F0,1B0,1F2,1B2,1F3,1B3", "dead"),
        ("order-on-2", "\n".join(ONE_F_ONE_B.splitlines()[::-1]), "stage s is on device s here"),
        ("order-on-2", schedule("1f1b", 2, 5).to_text(), "unknown micro-batch 4"),
        ("order-on-2", schedule("1f1b", 3, 4).to_text(), "has 3 stages and the model 2"),
        ("order-on-2", schedule("gpipe", 2, 4, forward_only=True).to_text(), "has only F"),
        ("order-on-2", GPIPE.replace("0B0", "0I0,0W0").replace("1B0", "1I0,1W0"), "one piece"),
        ("order-on-2", "forward first", "cannot read 'forward'"),
        ("order-on-2", 7, "write the order as text"),
        ("order-on-2", "", "stage 0 has no action"),
    ],
)
def test_orders_that_are_refused_each_in_its_own_words(name, answer, words):
    result = load_puzzle(name).check(answer)
    assert not result
    assert words in result.reason


def test_a_split_backward_alone_is_not_this_puzzle_either():
    halves = Schedule.from_text(GPIPE.replace("B", "I"))
    both = [[x for a in order for x in pair(a)] for order in halves.orders]
    answer = Schedule.of(both, (0, 1))
    assert "needs a forward and a full backward" in load_puzzle("order-on-2").check(answer).reason


def pair(action):
    return [action, action._replace(kind="W")] if action.kind == "I" else [action]


@pytest.mark.parametrize("name", puzzle_names())
def test_draws_nothing_yet_right_wrong_and_nonsense(name, tmp_path):
    puzzle = load_puzzle(name)
    answers = {
        "partition": ["1-6 | 7-12 | 13-18 | 19-24", "1-3 | 99", [n % 3 for n in range(12)], 3.5],
        "microbatches": [21, 3, 0, "x"],
        "order": [ONE_F_ONE_B, "0B0,0F0 ; 1F0", "0F0 ; 0F1 ; 1F0", 3.5],
    }[puzzle.kind]
    for i, answer in enumerate([None, *answers]):
        figure = puzzle.draw(answer)
        title = figure.get_suptitle()
        assert title.startswith(puzzle.title)
        assert ("\n" in title) == (answer is not None)
        figure.savefig(tmp_path / f"{i}.png")
        assert (tmp_path / f"{i}.png").stat().st_size > 2000


def test_the_drawing_shows_the_answer():
    figure = load_puzzle("24-uneven").draw("1-6 | 7-13 | 14-20 | 21-24")
    (axes,) = figure.axes
    boxes = [patch for patch in axes.patches if str(patch.get_gid()).startswith("layer ")]
    assert [patch.get_gid() for patch in boxes] == [f"layer {n}" for n in range(1, 25)]
    rights = {patch.get_x() + patch.get_width() for patch in boxes}
    assert max(rights) == 7
    drawn = load_puzzle("fewest-microbatches").draw(21).axes[0]
    dot = next(line for line in drawn.lines if line.get_gid() == "answer")
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (21, pytest.approx(0.25))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "riddle"}, "of kind 'riddle'; there are partition, microbatches, order"),
        ({"hint": "none"}, r"look at \['hint'\]"),
        ({"inputs": {"costs": [1.0]}}, r"needs the inputs \['costs', 'devices'\]"),
        ({"inputs": {"costs": [1.0], "devices": 1, "colour": 1}}, "colour"),
        ({"targets": {}}, "needs targets among"),
        ({"targets": {"beauty": 1}}, "beauty"),
    ],
)
def test_refuses_files_that_are_no_puzzles(change, message):
    values = json.loads(json.dumps(as_file(load_puzzle("12-on-3"))))
    with pytest.raises(ConfigError, match=message):
        puzzles._read("odd", {**values, **change})


def test_unknown_name():
    with pytest.raises(ConfigError, match="24-on-4"):
        load_puzzle("24-on-5")


def test_loading_and_checking_brings_in_no_matplotlib():
    code = (
        "import sys; from tiledask.lab.puzzles import load_puzzle; "
        "load_puzzle('24-on-4').check('1-6 | 7-12 | 13-18 | 19-24').require(); "
        "assert not {'matplotlib', 'dask', 'bokeh', 'cupy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
