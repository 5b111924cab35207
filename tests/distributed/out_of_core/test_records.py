"""What an unfinished product remembers, and who may go on with it.

Holds `tiledask.distributed.out_of_core.unfinished`.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tiledask.distributed.out_of_core.unfinished import StreamRecords, differences
from tiledask.errors import ConfigError

REGION = ((3, 7), (0, 5))


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "c.npy.tiledask")


def test_what_is_kept_is_found_again(folder):
    records = StreamRecords(folder)
    with records.claimed():
        assert not records.exist
        records.begin({"cuts": [1, 2]})
        records.strike(REGION)  # there is nothing to strike out
        assert records.tile(REGION) is None
        records.keep(REGION, 99)
    assert records.exist
    assert records.plan() == {"cuts": [1, 2]}
    assert records.tile(REGION) == 99
    records.strike(REGION)
    assert records.tile(REGION) is None
    records.keep(REGION, 99)
    records.begin({"cuts": []})
    assert records.tile(REGION) is None


def test_a_folder_without_a_plan_goes(folder):
    with StreamRecords(folder).claimed():
        assert os.path.exists(folder)
    assert not os.path.exists(folder)
    with suppress(ZeroDivisionError), StreamRecords(folder).claimed():
        StreamRecords(folder).begin({})
        raise ZeroDivisionError
    assert StreamRecords(folder).exist


RECORD = '{"region": [[3, 7], [0, 5]], "check": 1}'
CHANGED = (("5", "6"), ("1", "-1"), ("1}", '"all"}'), (', "check": 1', ""))
DAMAGED = ["", "{", "[]", "3", "\x00\xff", *(RECORD.replace(*change) for change in CHANGED)]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_refused(folder, text):
    records = StreamRecords(folder)
    with records.claimed():
        records.begin({})
        records.keep(REGION, 1)
        file = Path(folder, "tile-3-0.json")
        assert json.loads(file.read_text()) == json.loads(RECORD)
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"tile-3-0\.json is damaged"):
            records.tile(REGION)


def test_a_record_is_whole_or_not_there(folder, monkeypatch):
    records = StreamRecords(folder)
    with records.claimed():
        records.begin({"n": 1})

        def killed(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            records.keep(REGION, 1)
        assert records.tile(REGION) is None
        records.forget()
        assert not [name for name in os.listdir(folder) if "partial" in name]


CLIENT = """
import sys, time
from tiledask.distributed.out_of_core.unfinished import StreamRecords
with StreamRecords(sys.argv[1]).claimed():
    StreamRecords(sys.argv[1]).begin({})
    print("claimed", flush=True)
    time.sleep(600)
"""


def test_one_process_works_on_it_as_long_as_it_lives(folder):
    client = subprocess.Popen([sys.executable, "-c", CLIENT, folder], stdout=subprocess.PIPE)
    assert client.stdout.readline() == b"claimed\n"
    words = r"another process is working on .*c\.npy right now"
    with pytest.raises(ConfigError, match=words), StreamRecords(folder).claimed():
        pass
    client.send_signal(signal.SIGKILL)
    client.wait()
    with StreamRecords(folder).claimed():
        assert StreamRecords(folder).exist


def test_differences_name_what_changed():
    was = {"A": {"bytes": 1, "path": "/a"}, "kernel": "blas", "old": 1}
    now = {"A": {"bytes": 2, "path": "/a"}, "kernel": "blas", "new": None}
    assert differences(was, now) == ["A bytes was 1 and is 2", "old was 1 and is None"]
    assert differences(was, was) == []
