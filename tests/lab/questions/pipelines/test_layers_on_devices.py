"""24 layers on 4 devices, asked by number."""

import tiledask as td


def test_24_layers_on_4_devices():
    answer = td.ask(34, run=False)
    assert dict(answer.values) == {
        "sizes": [6, 6, 6, 6],
        "fullest": 6.0,
        "splits": 1771,
        "crossings": 3,
        "crossings round robin": 23,
    }
    assert "1-6 | 7-12 | 13-18 | 19-24" in answer.worked.answer


def test_a_heavy_last_layer_takes_layers_from_the_last_device():
    assert td.ask(34, last_cost=4, run=False).values["sizes"] == [7, 7, 7, 3]
