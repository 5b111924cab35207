"""Exercises on split convolutions: rows, ways and devices are run, and the best is the best."""

from itertools import combinations, product

import pytest
from oracles.judged import targets

from tiledask.errors import PlacementError
from tiledask.lab import plots
from tiledask.lab.tasks import borrowed_rows, until_layerwise_moves_more
from tiledask.plan.program.making.convolution.of_lenet import need

pytestmark = pytest.mark.usefixtures("one_thread")

LOANS = {0: (3, 4), 1: (2, 6), 2: (4, 5, 9, 10), 3: (8,)}
"""Of 11 rows on 4 ranks, windows of 5 rows, stride 2, two rows of zeros at both ends."""


@pytest.fixture(scope="module")
def rows():
    return borrowed_rows((3, 3, 3, 2), 5, 2, (2, 2))


@pytest.fixture(scope="module")
def devices():
    return until_layerwise_moves_more(each=10)


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


# -- devices -------------------------------------------------------------------------------------


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


def test_too_few_images_are_refused():
    with pytest.raises(PlacementError, match="with 0 images a device"):
        until_layerwise_moves_more(each=0)
