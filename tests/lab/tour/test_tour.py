"""The tour itself, on CPU workers: every claim holds, the report is complete.

Holds `tiledask.lab.tour.idle`, `tiledask.lab.tour.layers`, `tiledask.lab.tour.product` and
`tiledask.lab.tour.story`.
"""

import io

import pytest
from rich.console import Console

from tiledask.errors import ConfigError
from tiledask.lab.tour import idle, tour
from tiledask.lab.tour.idle import POINTS

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder, out = tmp_path_factory.mktemp("tour"), io.StringIO()
    report = tour(folder, device="cpu", console=Console(file=out, width=100))
    return report, folder, out.getvalue()


def rows(report):
    return [row for s in report.sections for table in s.comparisons for row in table.rows]


def test_every_claim_holds(told):
    report, _, _ = told
    timed = [row for row in rows(report) if row.rule == ("within", POINTS)]
    failures = [r for s in report.sections for table in s.comparisons for r in table.failures]
    assert [row.quantity for row in failures if row not in timed] == []
    assert len(timed) == 4
    for row in timed:  # what a clock says of a machine that has other work is shown
        print(row.quantity, row.predicted, row.measured)
        assert row.predicted == pytest.approx(row.simulated, abs=1e-9)
        assert 0 < row.measured < 1
        assert row.load.cores >= 1  # by which it may be judged later


def test_the_numbers_of_the_story(told):
    said = {row.quantity: row for row in rows(told[0])}
    assert said["GPUs for fp16 weights alone, 200e9 x 2 B"].predicted == 10
    assert said["GPUs for training, 200e9 x 16 B"].predicted == 80
    assert said["full copy: verdict"].predicted == "no"
    assert said["split: verdict"].predicted == "fits"
    assert said["full copy: MemoryError at layer"].measured == 3
    assert said["bytes between workers"].measured == 2 * 4096 * 4096 * 4
    assert said["contiguous splits into 4 non-empty parts"].simulated == 1771
    assert said["crossings, contiguous"].measured == 3
    assert said["crossings, round robin"].measured == 23
    idle = [row.predicted for name, row in said.items() if name.endswith(": idle")]
    assert idle == [0.5, 0.75, 3 / 11, 3 / 11]


def test_the_report_and_its_pictures_are_left(told):
    report, folder, printed = told
    page = (folder / "report.html").read_text("utf-8")
    assert len(report.sections) == 4
    assert all(section.title in page.replace("&#39;", "'") for section in report.sections)
    assert len(list(folder.glob("*.png"))) == sum(len(s.pictures) for s in report.sections) >= 9
    assert report.summary in printed
    assert "predicted  simulated" in printed


def test_a_part_that_breaks_off_is_a_claim_that_fails_and_the_others_go_on(monkeypatch, tmp_path):
    from tiledask.lab.tour import story

    def breaks(section, *_):
        section.text("begun")
        raise RuntimeError("half way")

    for part in ("on_paper", "two_levels", "layers_on_devices"):
        monkeypatch.setattr(story, part, breaks)
    monkeypatch.setattr(story, "idle_time", lambda section, *_: section.text("fine"))
    monkeypatch.setattr(story, "WORKERS", 1)
    report = tour(tmp_path, device="cpu", console=Console(file=io.StringIO(), width=100))
    assert (report.ok, report.held, report.checked) == (False, 0, 3)
    assert "RuntimeError: half way" in (tmp_path / "report.html").read_text()


def test_a_device_that_is_not_there_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="device is 'auto', 'cuda' or 'cpu', got 'tpu'"):
        tour(tmp_path / "never", device="tpu")
    assert not (tmp_path / "never").exists()


def test_a_disturbed_run_is_repeated_and_the_least_idle_one_counts():
    class Ran:
        def __init__(self, idle):
            self.timeline = type("T", (), {"bubble_fraction": idle})

    def least(*shares):
        left = [Ran(idle) for idle in shares]
        found = idle.least_disturbed(lambda: left.pop(0), 0.3)
        return found.timeline.bubble_fraction, len(shares) - len(left)

    assert least(0.28, 0.1, 0.1) == (0.28, 1)
    assert least(0.4, 0.3, 0.1) == (0.3, 2)
    assert least(0.6, 0.4, 0.5) == (0.4, 3)
