"""Cells of a sweep: killed, damaged, written by two, without room. What is kept is what was
measured, and is not measured again."""

import fcntl
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from tiledask.errors import ConfigError
from tiledask.lab.store import Lines, Store, alone, append

fork = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sweep.jsonl"


def measured(n):
    """A value that says of which cell it is, and is long enough to be torn."""
    return [n] * 1_000


def sweep(path, log, cells):
    """Every cell once; the log has what was measured now, and what is kept of it for sure."""
    with Store(path) as store, open(log, "a", buffering=1) as said:
        known = {cell["n"] for cell, _ in store.cells()}
        for n in range(cells):

            def measure(n=n):
                said.write(f"measured {n}\n")
                return measured(n)

            assert store.once(measure, n=n) == measured(n)
            if n not in known:
                said.write(f"kept {n}\n")


def kept(path):
    with Store(path) as store:
        return {cell["n"]: value for cell, value in store.cells()}


# -- kills ---------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("times", [15, 40, 60])
def test_a_sweep_that_is_killed_measures_nothing_twice_it_had_kept(path, tmp_path, times):
    log, draw, kills, cells = tmp_path / "log", random.Random(times), 0, 600
    log.touch()
    while kills < times:
        # the sweep has written some more, and is anywhere
        enough = log.stat().st_size + draw.randrange(1, 100)
        child = fork.Process(target=sweep, args=(path, log, cells))
        child.start()
        while child.is_alive() and log.stat().st_size < enough:
            time.sleep(0.0005)
        child.join(draw.uniform(0.0, 0.003))
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        child.join(240)
        if child.exitcode == 0:  # the end was reached: on with more
            cells += 600
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing is damaged
            found = kept(path)
        assert all(value == measured(n) for n, value in found.items())
    said = log.read_text().splitlines()
    sure: set[str] = set()
    for line in said:
        word, n = line.split()
        assert word == "kept" or n not in sure, f"cell {n} was kept and measured again"
        sure |= {n} if word == "kept" else set()
    assert sure <= set(map(str, found))
    assert len(sure) > 40


# -- damage --------------------------------------------------------------------------------------


def flipped(raw, draw):
    at = draw.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ (1 << draw.randrange(8))]) + raw[at + 1 :]


def cut(raw, draw):
    at, n = draw.randrange(len(raw)), draw.randrange(1, 60)
    return raw[:at] + raw[at + n :] if draw.random() < 0.5 else raw[:at]


def swapped(raw, draw):
    """Two stretches have changed places; of lines, or of any length."""
    a, b = sorted(draw.sample(range(len(raw) - 40), 2))
    n = draw.randrange(1, 40)
    b = max(b, a + n)
    return raw[:a] + raw[b : b + n] + raw[a + n : b] + raw[a : a + n] + raw[b + n :]


@pytest.mark.long
@pytest.mark.parametrize("damage", [flipped, cut, swapped])
def test_no_damage_is_taken_for_a_value(path, damage):
    with Store(path) as store:
        for n in range(12):
            store.once(lambda n=n: {"n": n, "square": n * n}, n=n)
    raw, draw, aside = path.read_bytes(), random.Random(1), Path(f"{path}.damaged")
    seen = 0
    for _ in range(70):
        bad = damage(raw, draw)
        path.write_bytes(bad)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            store = Store(path)
        with store:
            before = {cell["n"] for cell, _ in store.cells()}
            for n in range(12):
                again = {"n": n, "square": n * n, "again": True}
                value = store.once(lambda again=again: again, n=n)
                assert (value == again) == (n not in before)
                assert value["square"] == n * n
        if said:
            assert "lines are not what was written" in str(said[0].message)
            assert aside.exists()
            aside.unlink()
            seen += 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(kept(path)) == 12
    assert seen > 20  # what is cut off at the end is like a line that was not finished


def test_a_row_of_other_code_or_another_machine_is_measured_again(path):
    for made, expected in (({"BLAS": 1}, 1), ({"BLAS": 2}, 2), ({"BLAS": 1}, 1)):
        with Store(path, made) as store:
            assert store.once(lambda e=expected: e, n=0) == expected
    with Store(path) as store:
        assert store.cells() == []


# -- two writers, no room ------------------------------------------------------------------------


def test_a_second_writer_is_told_who_the_first_is_and_a_dead_one_keeps_nobody_out(path):
    def hold():
        store = Store(path)
        path.with_suffix(".held").touch()
        time.sleep(600)
        store.close()

    child = fork.Process(target=hold)
    child.start()
    while not path.with_suffix(".held").exists():
        time.sleep(0.01)
    with pytest.raises(ConfigError, match=f"process {child.pid} is writing it, this is"):
        Store(path)
    child.kill()
    child.join(240)
    with Store(path) as store:
        assert store.once(lambda: 1, n=1) == 1
        with pytest.raises(ConfigError, match=f"process {os.getpid()} is writing it"):
            Store(path)
    assert not Path(f"{path}.lock").exists()


def test_of_many_that_ask_at_once_one_has_it(path, tmp_path):
    def take(mine):
        for _ in range(200):
            try:
                with alone(path):
                    try:
                        os.mkdir(tmp_path / "inside")
                    except FileExistsError:
                        mine.touch()
                    os.rmdir(tmp_path / "inside")
            except ConfigError:
                pass

    children = [fork.Process(target=take, args=(tmp_path / f"two-{n}",)) for n in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(240)
    assert [child.exitcode for child in children] == [0] * 4
    assert list(tmp_path.glob("two-*")) == []


def test_a_lock_that_its_owner_has_just_removed_is_no_lock(path, monkeypatch):
    lock, flock, calls = Path(f"{path}.lock"), fcntl.flock, []

    def late(fd, how):
        if not calls:  # the owner ends, and another one begins
            lock.unlink()
            lock.touch()
        calls.append(fd)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with alone(path):
        assert len(calls) == 2
        with pytest.raises(ConfigError, match="one writer at a time"), alone(path):
            pass


def test_a_full_disk_leaves_what_was_kept_and_says_so(path):
    def fill(words):
        with Store(path) as store:
            store.once(lambda: "small", n=0)
            size = path.stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1_000, size + 1_000))
            try:
                store.once(lambda: "x" * 5_000, n=1)
            except ConfigError as error:
                words.put((str(error), path.stat().st_size == size))

    words = fork.Queue()
    child = fork.Process(target=fill, args=(words,))
    child.start()
    said, as_before = words.get(timeout=240)
    child.join(240)
    assert as_before
    assert "no room for a line of 5," in said
    assert "run again, what is there is not measured twice" in said
    assert len(said) < 600
    assert kept(path) == {0: "small"}


def test_where_nothing_can_be_written_is_said_and_nothing_is_held(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "sweep", tmp_path / "folder"):
        with pytest.raises(ConfigError, match=r"cannot be written: .+; make room"):
            Store(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]
    with Store(tmp_path / "gone" / "sweep") as store:
        shutil.rmtree(tmp_path / "gone")
        with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
            store.once(lambda: 1, n=1)


# -- lines ---------------------------------------------------------------------------------------


def test_half_a_line_waits_for_its_other_half_or_is_passed_over(tmp_path):
    lines = Lines(tmp_path / "j")
    assert lines.read() == []
    append(lines.path, {"a": 1})
    append(lines.path, {"b": 2})
    raw = lines.path.read_bytes()
    lines.path.write_bytes(raw[:-9])
    assert lines.read() == [{"a": 1}]
    lines.path.write_bytes(raw)
    assert lines.read() == [{"b": 2}]
    with open(lines.path, "ab") as file:
        file.write(b'{"c": ')
    assert lines.half() == b'{"c": '
    append(lines.path, {"d": 4})
    assert (lines.read(), lines.damaged) == ([{"d": 4}], [])


def test_numbers_of_numpy_are_kept_and_what_is_no_json_is_refused(path):
    with Store(path) as store:
        assert store.once(lambda: np.arange(3) / 2, n=np.int64(1)) == [0.0, 0.5, 1.0]
        assert store.once(lambda: 1 / 0, n=1) == [0.0, 0.5, 1.0]
        with pytest.raises(ConfigError, match="what is kept is what JSON can say"):
            store.once(object, n=2)
        assert [json.loads(json.dumps(cell)) for cell, _ in store.cells()] == [{"n": 1}]
