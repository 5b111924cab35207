"""Workers of one machine that take each other for workers of several hosts."""

from contextlib import contextmanager


@contextmanager
def apart(cluster, hosts=2):
    """Inside the block the workers of ``cluster`` are on so many ``hosts``, slot after slot."""

    def look(several, dask_worker):
        from tiledask.distributed.cluster import spool
        from tiledask.distributed.cluster.tasks import slot_on
        from tiledask.distributed.transport import blocks, messages

        host = str(slot_on(dask_worker) % hosts)
        for module in (blocks, messages):
            module.this_host = (lambda: host) if several else spool.this_host

    known, cluster.hosts = cluster.hosts, tuple(str(n % hosts) for n in range(cluster.slots))
    cluster.run(look, True)
    try:
        yield
    finally:
        cluster.run(look, False)
        cluster.hosts = known
