"""Checksums beside a .npy file: of every part and bit, gone once it is written, never believed.

Holds `tiledask.distributed.out_of_core.checksums`.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tiledask.distributed.out_of_core import checksums
from tiledask.distributed.out_of_core.stored import create_array, open_array
from tiledask.errors import ConfigError
from tiledask.lab.faults.damage import KINDS_OF_DAMAGE, damage


@pytest.fixture(params="CF")
def stored(request, tmp_path, monkeypatch):
    monkeypatch.setattr(checksums, "_SLAB", 64)  # many parts
    x = np.asarray(np.arange(23 * 17, dtype="f4").reshape(23, 17), order=request.param)
    np.save(tmp_path / "x.npy", x)
    return open_array(tmp_path / "x.npy").write_checksums()


def test_every_damaged_element_is_seen_in_its_part(stored):
    sums = checksums.kept(stored)
    assert len(sums) > 1
    assert stored.wrong(sums) == []
    assert open_array(stored.path) == stored
    assert "crc32" in stored.checked
    file, rng = Path(stored.path), np.random.default_rng(0)
    before = file.read_bytes()
    for at in rng.integers(stored.offset, len(before), 100):
        data = bytearray(before)
        data[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(data)
        ((rows, columns),) = stored.wrong(sums)
        line, place = divmod((int(at) - stored.offset) // 4, stored.shape[stored.order == "C"])
        row, column = (line, place) if stored.order == "C" else (place, line)
        assert rows[0] <= row < rows[1]
        assert columns[0] <= column < columns[1]


def test_what_is_written_has_no_checksums_of_before(stored):
    stored.write(((0, 1), (0, 1)), np.ones((1, 1), "f4"))
    again = open_array(stored.path)
    assert checksums.kept(again) == ()
    assert "no checksum" in again.checked
    again.write_checksums()
    assert "no checksum" in create_array(stored.path, (3, 3), "f4", overwrite=True).checked
    assert not Path(f"{stored.path}.crc").exists()
    chunked = create_array(f"{stored.path}.zarr", (3, 3), "f4")
    with pytest.raises(ConfigError, match="whose chunks have checksums of their own"):
        chunked.write_checksums()


def test_a_damaged_file_of_checksums_is_refused(stored):
    file = Path(f"{stored.path}.crc")
    before, said = file.read_bytes(), json.loads(file.read_bytes())
    rng, wrong = np.random.default_rng(1), 0
    for i in range(200):
        file.write_bytes(before)
        damage(file, KINDS_OF_DAMAGE[i % len(KINDS_OF_DAMAGE)], rng)
        try:
            sums = checksums.kept(open_array(stored.path))
        except ConfigError:
            continue
        # another checksum is still one, and then the file is not what it says
        wrong += bool(sums and stored.wrong(sums))
    assert wrong
    for change in (
        {"shape": [23, 18]},
        {"dtype": "float64"},
        {"tiles": said["tiles"][1:]},
        {"tiles": [*said["tiles"][:-1], [0, 10**9, 0, 17, 5]]},
        {"tiles": [[True, 23, 0, 17, 5]]},
        {"tiles": [[0, 23, 0, 17]]},
        {"tiles": 5},
    ):
        file.write_text(json.dumps(said | change))
        with pytest.raises(ConfigError, match="has no checksums of"):
            open_array(stored.path)
    file.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="has no checksums of"):
        open_array(stored.path)
