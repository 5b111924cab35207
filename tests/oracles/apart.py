"""Workers of one machine that take each other for workers of two hosts."""

from contextlib import contextmanager


@contextmanager
def apart(cluster, way="mixed"):
    """Inside the block the workers of ``cluster`` are on two hosts, and so read blocks by ``way``:
    slots of even numbers on one, the others on the other."""

    def look(two, dask_worker):
        from tiledask.distributed.cluster import spool
        from tiledask.distributed.cluster.tasks import slot_on
        from tiledask.distributed.transport import blocks, messages

        host = str(slot_on(dask_worker) % 2)
        for module in (blocks, messages):
            module.this_host = (lambda: host) if two else spool.this_host

    known, cluster.transport = cluster.transport, way
    cluster.run(look, True)
    try:
        yield
    finally:
        cluster.run(look, False)
        cluster.transport = known
