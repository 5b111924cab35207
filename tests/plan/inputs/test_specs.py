"""Shipped models: published counts, to the last parameter; and names for them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tiledask.errors import ConfigError
from tiledask.plan.inputs.load import load_model

COUNTS = json.loads((Path(__file__).parents[2] / "oracles" / "shipped_counts.json").read_text())
PUBLISHED, ACTIVE = COUNTS["parameters"], COUNTS["active"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_shipped_models_have_the_published_count(name):
    assert load_model(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_agree_with_what_is_printed(name):
    model = load_model(name)
    digits = len(ACTIVE[name].partition(".")[2])
    looked_up = model.active_parameters, model.active_parameters - model.item_parameters[0]
    rounded = {round(n / 1e9, digits) for n in looked_up}
    assert float(ACTIVE[name]) in rounded | {
        int(n / 1e9 * 10**digits) / 10**digits for n in looked_up
    }


def test_a_layer_that_predicts_a_further_token_is_that_of_the_checkpoint():
    """DeepSeek-V3's has 684,531,386,000 elements, with copies of both tables and scales of fp8."""
    more = replace(load_model("deepseek-v3"), mtp_layers=1).parameters + 2 * 129_280 * 7168
    assert 0 < 684_531_386_000 - more < 671e9 / 128**2 * 1.02


def test_shipped_models_are_found_by_their_name_on_the_hub():
    for hub, name in COUNTS["hub"].items():
        assert load_model(hub) == load_model(name)


SIZES = "100M 350M 1.3B 7e9 13B 65b 175B 540B 1T 7000000000 1e14"


@pytest.mark.parametrize("typed", SIZES.split())
def test_a_number_of_parameters_is_a_decoder_of_about_as_many(typed):
    model = load_model(typed)
    units = {"m": 6, "b": 9, "t": 12}
    wanted = float(typed.rstrip("mbtMBT")) * 10 ** units.get(typed[-1].lower(), 0)
    assert model.parameters == pytest.approx(wanted, rel=0.02)
    assert model.head_dim == 128
    assert 1.5 * model.hidden <= model.ffn <= 4 * model.hidden
    assert 60 <= model.hidden / model.layers <= 180
    assert wanted < 5e9 or (model.heads % 8, model.layers % 4) == (0, 0)
    assert f"{model.layers} layers of width {model.hidden:,}" in model.source


def test_a_number_that_no_model_has_is_refused():
    for typed in ("7", "99M", "200T", "0b"):
        with pytest.raises(ConfigError, match=r"from 100,000,000 to .* write '7B'"):
            load_model(typed)
