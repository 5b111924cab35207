"""Exercises on split convolutions: rows, ways and devices are run, and the best is the best.

Holds `tiledask.lab.exercises.split_layers.convolutions`,
`tiledask.lab.exercises.split_layers.lenet_splits` and `tiledask.lab.plots.training.rows_on_ranks`.
"""

from itertools import combinations, product

import pytest
from oracles.calls import assert_close
from oracles.judged import assert_illegal, assert_quiet, assert_still_drawn, targets

from tiledask.distributed.convolution.lenet import gradients, initial_weights, samples
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError
from tiledask.lab import plots
from tiledask.lab.exercises.split_layers import lenet_splits as S
from tiledask.lab.tasks import borrowed_rows, split_each_layer, until_layerwise_moves_more
from tiledask.plan.program.making.convolution.of_lenet import need

pytestmark = pytest.mark.usefixtures("one_thread")

LOANS = {0: (3, 4), 1: (2, 6), 2: (4, 5, 9, 10), 3: (8,)}
"""Of 11 rows on 4 ranks, windows of 5 rows, stride 2, two rows of zeros at both ends."""


@pytest.fixture(scope="module")
def rows():
    return borrowed_rows((3, 3, 3, 2), 5, 2, (2, 2))


@pytest.fixture(scope="module")
def ways():
    return split_each_layer(images=8)


@pytest.fixture(scope="module")
def devices():
    return until_layerwise_moves_more(each=10)


@pytest.mark.long
def test_what_is_not_attempted_is_quiet_and_drawn(rows, ways, devices):
    assert_quiet(rows, ways, devices)


def refused(rows, ways, devices):
    """(exercise, answer, words) of answers that are none."""
    out = dict.fromkeys(S.NAMES, "out")
    return (
        (
            rows,
            [3, 4],
            "an answer is a dict, rank (0..3) -> rows of the image (0..10), for example",
        ),
        (rows, {4: (1,)}, "a dict, rank (0..3) -> rows"),
        (rows, {0: 3}, "rows of rank 0 are a tuple"),
        (rows, {0: (11,)}, "rows are numbers from 0 to 10"),
        (rows, {0: (3, 3)}, "each once: got"),
        (rows, {1: (4,)}, "rank 1 has rows 3 to 5, got row 4"),
        (ways, {"conv1": "out"}, f"the way of each layer, for example {out}; got {{'conv1'"),
        (ways, out | {"fc1": "rows"}, "fc1 is split by one of images, out, in, got 'rows'"),
        (devices, 1, "a whole number from 2 to 64; got 1"),
        (devices, 3.0, "a whole number from 2 to 64; got 3.0"),
    )


def test_an_illegal_answer_says_why(rows, ways, devices):
    for exercise, answer, words in refused(rows, ways, devices):
        assert_illegal(exercise, answer, words)


@pytest.mark.slow
def test_an_illegal_answer_is_still_drawn(rows, ways, devices):
    assert_still_drawn(refused(rows, ways, devices))


# -- rows ----------------------------------------------------------------------------------------


def test_the_loans_suffice_and_each_of_them_is_needed(rows):
    assert rows.check(LOANS).best
    for rank, mine in LOANS.items():
        for row in mine:
            fewer = LOANS | {rank: tuple(r for r in mine if r != row)}
            lost = targets(rows.check(fewer))["output rows that lack an input row"]
            assert lost[0] > lost[1] == 0
    wide = {0: (3, 4), 1: (1, 2, 6, 7), 2: (4, 5, 9, 10), 3: (7, 8)}  # halos of two rows
    assert "rows borrowed 12, target at most 9: 3 too much" in rows.check(wide).reason


def test_the_fewest_loans_are_those_of_every_set_tried():
    exercise = borrowed_rows((3, 2), 3, padding=(1, 1))
    found = [
        (len(zero) + len(one), zero, one)
        for n in range(3)
        for zero in combinations((3, 4), n)
        for m in range(4)
        for one in combinations((0, 1, 2), m)
        if exercise.check({0: zero, 1: one}).targets[0].met
    ]
    assert min(found) == (2, (3,), (2,))
    assert exercise.check({0: (3,), 1: (2,)}).targets[1].wanted == 2


def test_the_picture_says_what_is_borrowed_from_whom():
    figure = plots.rows_on_ranks((3, 3, 3, 2), 5, 2, (2, 2))
    words = [text.get_text() for text in figure.axes[0].texts]
    assert words.count("zero") == 4
    assert sorted(int(w) for w in words if w != "zero") == sorted(
        [*range(11), *(row for mine in LOANS.values() for row in mine)]
    )
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["rank 0: 2 out", "rank 1: 1 out", "rank 2: 2 out", "rank 3: 1 out"]
    assert len(figure.axes[0].lines) == 2 * 6  # a window and its middle
    untouched = borrowed_rows((3, 3, 3, 2), 5, 2, (2, 2)).draw(None)
    assert len(untouched.axes[0].lines) == 6
    with pytest.raises(PlacementError, match="must fit"):
        plots.rows_on_ranks((1, 1), 5)


# -- layers --------------------------------------------------------------------------------------


def check_ways(ways, images, ranks):
    weights, (x, classes) = initial_weights(1), samples(images)
    loss, grads = gradients(weights, x, classes)
    done = run_threads(S.split_step, ranks, ways, weights, x, classes)
    found, ours = S.whole_gradients(ways, done.results)
    assert abs(found - loss) <= 1e-13 * loss
    for layer, each in grads.items():
        for kind, g in each.items():
            assert_close(ours[layer][kind], g, 1e-13)
    assert sum(r.sent for r in done.records) == S.bytes_of(ways, images, ranks, 8)
    assert len(done.records.mismatches) == 0


@pytest.mark.long
@pytest.mark.parametrize("ways", S.every()[::4], ids=lambda ways: "-".join(ways.values()))
def test_any_ways_give_the_gradients_of_one_device_and_the_bytes_of_the_arithmetic(ways):
    check_ways(ways, images=5, ranks=3)


@pytest.mark.slow
@pytest.mark.parametrize("ways", S.every(), ids=lambda ways: "-".join(ways.values()))
def test_all_ways_on_four(ways):
    check_ways(ways, images=7, ranks=4)


def test_one_rank_sends_nothing():
    for ways in (dict.fromkeys(S.NAMES, way) for way in S.WAYS):
        check_ways(ways, images=2, ranks=1)


def test_two_of_the_answers_are_two_of_d2ls_splits():
    for way, name in (("images", "data parallel"), ("out", "layerwise")):
        ways = dict.fromkeys(S.NAMES, way)
        assert S.bytes_of(ways, 256, 4, 4) == sum(need(name, 256, 4, 4).sent)


def test_the_best_at_256_images_is_convolutions_by_images_and_the_large_matrix_by_rows():
    """Krizhevsky 2014, arXiv:1404.5997."""
    sizes = sorted((S.bytes_of(w, 256, 4, 4), *w.values()) for w in S.every())
    assert sizes[0] == (2_652_192, "images", "images", "in", "images")
    assert sizes[1][0] == 2_682_672


def test_a_choice_is_judged_by_its_run(ways, monkeypatch):
    best = min(S.every(), key=lambda w: S.bytes_of(w, 8, 4, 4))
    assert ways.check(best).best
    result = ways.check(dict.fromkeys(S.NAMES, "images"))
    assert result.legal
    assert "MB that all devices send 3.09763, target at most" in result.reason
    # planted: what is left of a sum of addends is the own addend
    monkeypatch.setattr(Group, "all_reduce", lambda self, x: x.copy())
    assert not ways.check(best).targets[1].met


# -- devices -------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_number_of_devices_is_where_30_images_are_reached(devices):
    """Both grow with n - 1, so that only the batch counts: 8,626 activations of each image, there
    and back, against 2 x 129,068 gradients."""
    assert -(-2 * 129_068 // 8_626) == 30
    for n, images in product((2, 4, 8, 16), (29, 30)):
        layerwise, data = (sum(need(w, images, n, 4).sent) for w in ("layerwise", "data parallel"))
        assert (layerwise > data) is (images == 30)
    assert devices.check(3).best
    few, many = devices.check(2), devices.check(4)
    assert "in % of those by output units 149.63" in few.reason
    assert "devices 4: more than is needed" in many.reason
    assert "3" not in many.reason  # which is what is asked


@pytest.mark.long
def test_too_few_images_are_refused():
    with pytest.raises(PlacementError, match="with 0 images a device"):
        until_layerwise_moves_more(each=0)
