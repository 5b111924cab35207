"""What an unfinished product remembers, and who may go on with it.

Holds `tiledask.distributed.out_of_core.unfinished`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tiledask.distributed.out_of_core import unfinished as records_module
from tiledask.distributed.out_of_core.folder import Folder
from tiledask.distributed.out_of_core.unfinished import (
    StoppedError,
    StreamRecords,
    TileRecord,
    differences,
)
from tiledask.errors import ConfigError, DeadlineError

REGION = ((3, 7), (0, 5))


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "c.npy.tiledask")


def test_what_is_kept_is_found_again(folder):
    with StreamRecords(folder, "first").claimed():
        records = StreamRecords(folder, "first")
        assert not records.exist
        records.begin({"cuts": [1, 2]})
        records.strike(REGION)  # there is nothing to strike out
        assert records.tile(REGION) is None
        records.keep(REGION, TileRecord(12, 99))
    later = StreamRecords(folder, "second")
    assert later.exist
    assert later.plan() == {"cuts": [1, 2]}
    assert later.tile(REGION) == TileRecord(12, 99)
    later.strike(REGION)
    assert later.tile(REGION).summed == 0
    later.begin({"cuts": []})
    assert later.tile(REGION) is None


def test_a_folder_without_a_plan_goes(folder):
    with StreamRecords(folder, "first").claimed():
        assert os.path.exists(folder)
    assert not os.path.exists(folder)
    with suppress(ZeroDivisionError), StreamRecords(folder, "second").claimed():
        StreamRecords(folder, "second").begin({})
        raise ZeroDivisionError
    assert StreamRecords(folder, "third").exist


RECORD = '{"region": [[3, 7], [0, 5]], "summed": 4, "check": 1}'
CHANGED = (("5", "6"), ("4", "-4"), ("4,", '"all",'), (', "check": 1', ""))
DAMAGED = ["", "{", "[]", "3", "\x00\xff", *(RECORD.replace(*change) for change in CHANGED)]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_refused(folder, text):
    records = StreamRecords(folder, "first")
    with records.claimed():
        records.begin({})
        records.keep(REGION, TileRecord(4, 1))
        file = Path(folder, "tile-3-0.json")
        assert json.loads(file.read_text()) == json.loads(RECORD)
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"tile-3-0\.json is damaged"):
            records.tile(REGION)


def test_a_record_is_whole_or_not_there(folder, monkeypatch):
    records = StreamRecords(folder, "first")
    with records.claimed():
        records.begin({"n": 1})

        def killed(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            records.keep(REGION, TileRecord(4, 1))
        assert records.tile(REGION) is None
        records.forget()
        assert not [name for name in os.listdir(folder) if "partial" in name]


def test_workers_stop_when_the_run_is_over(folder):
    records = StreamRecords(folder, "first")
    with pytest.raises(StoppedError, match="stopped"), records.working(0):
        pass
    with records.claimed():
        records.begin({})
        with records.working(0):
            records.check()
    with pytest.raises(StoppedError, match="stopped"):
        records.check()
    with (
        StreamRecords(folder, "second").claimed(),
        pytest.raises(StoppedError, match="replaced by sec"),
    ):
        records.check()


def worker_that_works_until_stopped(records, log):
    with records.working(3):
        log.append("works")
        while True:
            try:
                records.check()
            except StoppedError:
                time.sleep(0.2)  # as if in the middle of a panel
                log.append("stops")
                return
            time.sleep(0.01)


@pytest.fixture
def worker(folder):
    """Starts a worker of a run; the log of what it does."""
    started = []

    def start(run):
        log = []
        thread = threading.Thread(
            target=worker_that_works_until_stopped, args=(StreamRecords(folder, run), log)
        )
        thread.start()
        started.append(thread)
        while not log:
            time.sleep(0.01)
        return log

    yield start
    for thread in started:
        thread.join()


@pytest.mark.long
@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_a_client_that_ends_waits_for_its_workers(folder, worker, error):
    records = StreamRecords(folder, "first")
    with suppress(KeyboardInterrupt), records.claimed():
        records.begin({})
        log = worker("first")
        if error:
            raise error
    assert log == ["works", "stops"]


CLIENT = """
import sys, time
from tiledask.distributed.out_of_core.unfinished import StreamRecords
with StreamRecords(sys.argv[1], "killed").claimed():
    StreamRecords(sys.argv[1], "killed").begin({})
    print("claimed", flush=True)
    time.sleep(600)
"""


@pytest.mark.long
def test_the_workers_of_a_dead_client_are_stopped_and_waited_for(folder, worker):
    client = subprocess.Popen([sys.executable, "-c", CLIENT, folder], stdout=subprocess.PIPE)
    assert client.stdout.readline() == b"claimed\n"
    log = worker("killed")
    words = r"another process is working on .*c\.npy right now"
    with pytest.raises(ConfigError, match=words), StreamRecords(folder, "next").claimed():
        pass
    client.send_signal(signal.SIGKILL)
    client.wait()
    with StreamRecords(folder, "next").claimed():
        assert log == ["works", "stops"]
        assert StreamRecords(folder, "next").exist


def test_a_worker_that_never_lets_go_is_named(folder, monkeypatch):
    monkeypatch.setattr(records_module, "_TAKEOVER", 0.1)
    os.makedirs(folder)
    with (
        Folder(folder).locked("slot-5.lock", 0),
        pytest.raises(DeadlineError, match=r"slot-5\.lock after 0\.1 s"),
        StreamRecords(folder, "x").claimed(),
    ):
        pass
    with StreamRecords(folder, "y").claimed():
        pass


def test_differences_name_what_changed():
    was = {"A": {"bytes": 1, "path": "/a"}, "kernel": "blas", "old": 1}
    now = {"A": {"bytes": 2, "path": "/a"}, "kernel": "blas", "new": None}
    assert differences(was, now) == ["A bytes was 1 and is 2", "old was 1 and is None"]
    assert differences(was, was) == []
