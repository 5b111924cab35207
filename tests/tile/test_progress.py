"""Bars: seen while something runs, and never on standard output.

Holds `tiledask.tile.progress` and `tiledask.distributed.cluster.progress`.
"""

import time

import pytest

from tiledask.tile.progress import showing


@pytest.mark.parametrize("after", [2.0, 0.0])
def test_a_log_keeps_the_last_word_and_standard_output_nothing(capfd, after):
    """Of what is short there is no word; the bar ends with what it shows, though that fails."""
    seen = [(3, 20, "ill")]

    def fails():
        with showing("a [4, 4] product", lambda: seen[-1], after):
            time.sleep(0 if after else 0.5)
            seen.append((20, 20, "well"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    out, err = capfd.readouterr()
    assert out == ""
    assert [word in err for word in ("a [4, 4] product", "20/20 well")] == [not after] * 2
