"""A cluster in a notebook: where its dashboard is, and what JupyterLab's panels follow."""

from unittest import mock

import pytest

import tiledask as td
from tiledask.distributed.cluster import start
from tiledask.distributed.cluster.cluster import SCRIPT


@pytest.mark.cluster
def test_a_notebook_shows_what_a_terminal_prints(monkeypatch, capfd):
    monkeypatch.setattr(start, "in_notebook", lambda: True)
    monkeypatch.setattr(start, "show", show := mock.Mock())
    with td.start_cluster(1, device="cpu") as cluster:
        show.assert_called_once_with(cluster)
        with td.start_cluster(1, device="cpu", quiet=True) as newer:
            assert show.call_count == 1
            assert newer.started > cluster.started
        shown = cluster._repr_html_()
        assert "1 CPU workers" in shown
        assert repr(cluster.started) in shown
    assert "BLAS thread" not in capfd.readouterr().out
    assert SCRIPT not in cluster._repr_html_()
    assert "closed" in cluster._repr_html_()
