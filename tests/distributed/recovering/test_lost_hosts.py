"""A host that is lost: what ran on it goes on, to the bit, where a worker stands by for its slot;
else it ends in time, and what it saved is gone on from with the hosts that are left.

Holds `tiledask.distributed.recovering.kept_files`.
"""

import json
import shutil

import numpy as np
import pytest
from twins.by_hand import two_hosts

from tiledask.distributed.ranks.threads import run_threads
from tiledask.distributed.recovering.kept_files import KeptFile, sealed
from tiledask.distributed.recovering.kept_state import Keeper, Keeping, neighbours
from tiledask.errors import CheckpointError

# -- copies ----------------------------------------------------------------------------------------

HOSTS = "AAB"


def keeps(rank, folder, steps, found=None, holders=()):
    """A toy of a training, on three ranks of two hosts: (its array, its list) after the steps."""
    x, losses = np.arange(3.0) + rank.index, []
    step, held = found or 0, dict(holders)
    files = {r: KeptFile(r, step, 0) for r in range(3)} if found else {}
    near = neighbours(HOSTS)
    keeping = Keeping(
        str(folder / HOSTS[rank.index]),
        attempt=1 if found else 0,
        every=2,
        found=files.get(rank.index),
        holder=held.get(rank.index),
        gives=tuple((to, files[to]) for to, by in held.items() if by == rank.index),
        neighbour=near[rank.index],
        copies=tuple((r, files.get(r)) for r in range(3) if near[r] == rank.index),
        key=b"key",
    )
    keeper = Keeper(rank, keeping, [x], [losses])
    if found:
        assert keeper.take_up() == f"after {found}"
    for done in range(step + 1, steps + 1):
        x *= 3
        losses.append(float(x[0]))
        keeper.stepped(done, lambda done=done: f"after {done}")
    return x.tolist(), losses


def test_what_a_lost_host_had_kept_comes_from_its_neighbours(tmp_path):
    assert neighbours(HOSTS) == [2, 2, 0]
    for host in "AB":
        (tmp_path / host).mkdir()
    right = run_threads(keeps, 3, tmp_path, 7).results
    for host, ranks in (("A", [2]), ("B", [0, 1])):
        names = {path.name for path in (tmp_path / host / "copies").iterdir()}
        assert names == {f"{r}-{step}-0" for r in ranks for step in (4, 6)} | {
            f"{r}-0.log" for r in ranks
        }
    for lost, holders in (("B", {2: 0}), ("A", {0: 2, 1: 2})):
        run_threads(keeps, 3, tmp_path, 7)  # as they were
        shutil.rmtree(tmp_path / lost)
        (tmp_path / lost).mkdir()
        assert run_threads(keeps, 3, tmp_path, 7, 6, holders).results == right
        assert all((tmp_path / lost / f"{r}-7-1").exists() for r in holders)  # at once
        # and from then on, here and there
        assert run_threads(keeps, 3, tmp_path, 10, 6, holders).results[0][1][:7] == right[0][1]
        assert {path.name for path in (tmp_path / lost).glob("?-*-1")} >= {
            f"{r}-{step}-1" for r in holders for step in (8, 10)
        }


def test_what_another_has_written_is_refused(tmp_path):
    for host in "AB":
        (tmp_path / host).mkdir()
    run_threads(keeps, 3, tmp_path, 2)
    path = tmp_path / "A" / "copies" / "2-2-0"
    path.write_bytes(sealed(b"another key", "what runs when it is read") + bytes(24))
    with pytest.raises(CheckpointError, match="2-2-0 is not what a rank of this training kept"):
        run_threads(keeps, 3, tmp_path, 2, 2, {2: 0})


# -- hosts -----------------------------------------------------------------------------------------

CLIENT = """
import json, sys, time, warnings
from hashlib import blake2b
import numpy as np
import tiledask as td
from tiledask.errors import ClusterLostError

def told(*said):
    print(json.dumps(said), flush=True)

text = td.load_text("tales")
model = td.GPT(text.vocabulary, hidden=32, layers=2, heads=4, sequence=16)
a = np.random.default_rng(0).standard_normal((600, 600), np.float32)
order = td.schedule("1f1b", 2, 16)

def digest(*arrays):
    return blake2b(b"".join(np.ascontiguousarray(x).tobytes() for x in arrays)).hexdigest()[:16]

def training(cluster, shape, **more):
    seen = []
    def step(each):
        if each.step >= 20 and not seen:
            seen.append(each.step)
            told("begun")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that nothing was kept
        got = td.train(model, text, td.Mesh(cluster, shape), steps=200, batch=4, zero=shape[0] - 1,
                       keep_every=5, progress=step, **more)
    return digest(got.losses, *got.weights.values()), got.first, got.kept.resumed

def products(cluster, seconds):
    A = td.distribute(a, td.Mesh(cluster, (2,)), [td.Shard(0)])
    B = td.distribute(a, td.Mesh(cluster, (2,)), [td.Shard(1)])
    seen, end = set(), time.time() + seconds
    told("begun")
    while time.time() < end:
        seen.add(digest(td.to_numpy(A @ B)))
    return sorted(seen)

def schedules(cluster, seconds):
    told("begun")
    end = time.time() + seconds
    while time.time() < end:
        run = td.run_schedule(order, forward=0.01, backward=0.02, cluster=cluster, engine="loop")
    return run.traffic.predicted == run.traffic.measured

def standby(cluster):
    # how many workers stand by, once one does
    def spare(dask_scheduler):
        return len(dask_scheduler.plugins["tiledask-slots"].spare())
    told("begun")
    end = time.time() + 200
    while not (found := cluster.client.run_on_scheduler(spare)) and time.time() < end:
        time.sleep(0.2)
    return found

clusters = {}
def at(slots):
    for other in clusters.keys() - {slots}:
        clusters.pop(other).close()
    if slots not in clusters:
        clusters[slots] = td.connect(sys.argv[1], workers=slots, timeout=240)
    return clusters[slots]

for line in sys.stdin:
    name, slots, *words = json.loads(line)
    cluster = at(slots)
    more = words.pop() if words and isinstance(words[-1], dict) else {}
    try:
        found = globals()[name](cluster, *words, **more)
        told(time.time(), found, cluster.hosts, "")
    except ClusterLostError as error:
        told(time.time(), None, cluster.hosts, str(error))
"""
TRAINING = ["training", 2]
WORKS = {
    "dp, ZeRO 1": [*TRAINING, [2, 1, 1]],
    "pp": [*TRAINING, [1, 1, 2]],
    "product": ["products", 2, 15.0],
    "schedule": ["schedules", 2, 15.0],
}


@pytest.mark.slow
@pytest.mark.cluster
def test_hosts_that_are_left_go_on_or_say_why_not(tmp_path):
    """Slot 0 is on A, slot 1 on B or C; the other one of these stands by."""
    with two_hosts(tmp_path, 3) as hosts:
        hosts.on("A", "--nanny"), hosts.on("B", "--nanny")
        with hosts.client_running(CLIENT) as client:

            def hear():
                line = client.stdout.readline()
                assert line, client.stderr.read()[-3000:]
                return json.loads(line)

            def done(*words, lost=""):
                """(what came of it, hosts, words)."""
                print(json.dumps(words), file=client.stdin, flush=True)
                assert hear() == ["begun"]
                if lost:
                    hosts.link("down", lost)
                _, *said = hear()
                return said

            right = {name: done(*WORKS[name])[0][0] for name in ("dp, ZeRO 1", "pp")}
            right["product"] = done("products", 2, 1.0)[0]
            right["schedule"] = True
            away, stays = "B", "C"
            for name, words in WORKS.items():
                hosts.on(stays, "--nanny")
                assert done("standby", 2)[0] == 1
                found, there, said = done(*words, lost=away)
                assert said == ""
                if words[:2] == TRAINING:
                    found, first, (step,) = found
                    assert first == 0
                    assert step >= 15  # 5, 10, ... are kept, and the loss came after 20
                assert found == right[name]
                assert there == [hosts.addresses["A"], hosts.addresses[stays]]
                hosts.link("up", away)  # its worker hears that it was replaced, and ends
                away, stays = stays, away
            # nobody stands by: that is said in time, and gone on from what was saved
            saved = {"folder": str(tmp_path / "run"), "save_every": 10}
            found, _, said = done(*WORKS["dp, ZeRO 1"], saved, lost=away)
            assert found is None
            assert "1 of 2 slots cannot be reached: slot 1 at tcp://" in said
            assert hosts.addresses[away] in said
            assert "td.connect(client, workers=1)" in said
            (_, first, resumed), there, said = done("training", 1, [1, 1, 1], saved)
            assert (first >= 20, resumed, there, said) == (True, [], [hosts.addresses["A"]], "")
