"""Fixtures of everything that has workers."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def slow_nannies():
    """On a busy machine a nanny takes longer than 20 s to start another worker."""
    from tiledask.distributed.connecting import slots

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "EMPTY", 200.0)
        yield
