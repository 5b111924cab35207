"""Shipped models: published counts, to the last parameter; and names for them."""

import pytest

from tiledask.errors import ConfigError
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import count


def cut(number, digits):
    return int(number * 10**digits) / 10**digits


def counts(text):
    return {name: int(number) for name, number in texts(text).items()}


def texts(text):
    """name -> number as it is written, from names and numbers by turns."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


# elements of the published checkpoint, all of them trainable
CHECKPOINTS = counts("""
    bloom-176b 176_247_271_424  deepseek-v2 235_741_434_880  deepseek-v2-lite 15_706_484_224
    llama-3.1-405b 405_853_388_800  llama-3.1-8b 8_030_261_248  llama-3.2-3b 3_212_749_824
    mistral-7b-v0.3 7_248_023_552  mistral-nemo-12b 12_247_782_400  mixtral-8x22b 140_620_634_112
    mixtral-8x7b 46_702_792_704  olmo-2-13b 13_716_198_400  olmo-2-32b 32_234_279_936
    qwen1.5-moe-a2.7b 14_315_784_192  qwen2.5-0.5b 494_032_768  qwen2.5-72b 72_706_203_648
    qwen3-235b-a22b 235_093_634_560  qwen3-30b-a3b 30_532_122_624  qwen3-4b 4_022_468_096
    smollm3-3b 3_075_098_624
""")
# printed in the model card or the paper
CARDS = counts("bloom-560m 559_214_592  pythia-70m 70_426_624  pythia-12b 11_846_072_320")
GPT2 = counts("gpt2-medium 354_823_168  gpt2-large 774_030_080  gpt2-xl 1_557_611_200")
# billions that the cards and papers print, with or without the input embedding
ACTIVE = texts("""
    deepseek-v2 21  deepseek-v2-lite 2.4  deepseek-v3 37  mixtral-8x7b 12.9  mixtral-8x22b 39
    qwen1.5-moe-a2.7b 2.7  qwen3-30b-a3b 3.3  qwen3-235b-a22b 22
""")

PUBLISHED = CHECKPOINTS | CARDS | GPT2 | {"deepseek-v3": 671_026_419_200}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shipped_models_have_the_published_count(name):
    assert load_model(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_agree_with_what_is_printed(name):
    model = load_model(name)
    digits = len(ACTIVE[name].partition(".")[2])
    looked_up = model.active_parameters, model.active_parameters - count(model.embedding)
    assert float(ACTIVE[name]) in {
        value for n in looked_up for value in (round(n / 1e9, digits), cut(n / 1e9, digits))
    }


def test_shipped_models_are_found_by_their_name_on_the_hub():
    for hub, name in texts("""
        meta-llama/Llama-3.1-8B llama-3.1-8b  meta-llama/Llama-2-7b-hf llama-2-7b
        bigscience/bloom bloom-176b  openai-community/gpt2 gpt2
    """).items():
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
