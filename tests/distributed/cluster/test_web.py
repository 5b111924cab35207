"""A cluster in a notebook: where its dashboard is, and what JupyterLab's panels follow."""

from unittest import mock

import pytest

import tiledask as td
from tiledask.distributed.cluster import start
from tiledask.distributed.cluster.web import SCRIPT, panel


def test_it_says_the_address_with_and_without_the_script():
    shown = panel("4 CPU workers", "asked for", "http://127.0.0.1:8787/status", 12.5)
    assert "data-dashboard='http://127.0.0.1:8787'" in shown
    assert "data-started='12.5'" in shown
    assert "href='http://127.0.0.1:8787/tiledask'" in shown
    without = shown.replace(SCRIPT, "")
    assert "<button hidden>" in without  # shown by the script where there is a panel to show
    assert "<script" not in without
    assert SCRIPT.count("</script>") == 1


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
