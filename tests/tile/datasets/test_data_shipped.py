"""The shipped text and pictures: what they are, where they come from, and batches by rank."""

import gzip
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.data import data_file
from tiledask.tile.datasets import Images


def test_a_text_is_its_characters_and_is_sent_in_a_byte_each():
    text = td.load_text("tales")
    written = gzip.decompress(data_file("text", "tales.txt.gz").read_bytes()).decode()
    assert text.decode(text.ids) == written
    assert text.vocabulary == len(set(written)) == 50
    assert not text.ids.flags.writeable
    sent = pickle.dumps(text)
    assert len(text.ids) < len(sent) < 1.01 * len(text.ids)
    assert pickle.loads(sent).decode(text.ids[:40]) == written[:40]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9), st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5))
def test_ranks_draw_their_rows_of_the_same_batch(seed, step, size, ranks):
    text, digits = td.load_text("tales"), td.load_images("digits")
    whole = (*text.batch(seed, step, size, 9), *digits.batch(seed, step, size))
    parts = [np.array_split(np.arange(size), ranks)[r] for r in range(ranks)]
    mine = [
        (*text.batch(seed, step, size, 9, p), *digits.batch(seed, step, size, p)) for p in parts
    ]
    for one, *each in zip(whole, *mine, strict=True):
        np.testing.assert_array_equal(np.concatenate(each), one)


def test_targets_are_one_on_and_rows_are_from_the_text():
    text = td.load_text("tales")
    content, longest = text.decode(text.ids), len(text.ids) - 1
    ids, targets = text.batch(1, 2, 50, 20)
    assert ids.shape == targets.shape == (50, 20)
    np.testing.assert_array_equal(ids[:, 1:], targets[:, :-1])
    for row, target in zip(ids, targets, strict=True):
        assert text.decode(row) + text.decode(target[-1:]) in content
    assert not any(np.array_equal(ids, text.batch(*at, 50, 20)[0]) for at in ((1, 3), (2, 2)))
    starts = [text.batch(0, step, 100, 1)[0] for step in range(20)]
    assert len(np.unique(np.concatenate(starts))) > 40  # of all characters, from all over
    np.testing.assert_array_equal(text.batch(0, 0, 1, longest)[1][0], text.ids[1:])


def test_every_picture_comes_once_before_any_comes_again():
    numbered = np.arange(2000)
    digits = Images("numbered", np.zeros((2000, 1, 1), np.uint8), numbered, 2000)
    seen = np.concatenate([digits.batch(3, step, 300)[1] for step in range(14)])
    first, second = seen[:2000], seen[2000:4000]
    assert np.sort(first).tolist() == np.sort(second).tolist() == numbered.tolist()
    assert not np.array_equal(first, second)
    learn, test = digits.split(0.8)
    np.testing.assert_array_equal([*learn.labels, *test.labels], numbered)
    assert len(learn) == len(learn.pixels) == 1600


def test_a_file_of_ones_own(tmp_path):
    (tmp_path / "mine.txt").write_text("añb€")
    mine = td.load_text(tmp_path / "mine.txt")
    assert (mine.characters, mine.ids.tolist(), mine.floor) == ("abñ€", [0, 2, 1, 3], None)
    np.savez(tmp_path / "mine.npz", pixels=np.zeros((4, 2, 3), "u1"), labels=np.array([0, 1, 2, 1]))
    assert repr(td.load_images(tmp_path / "mine.npz")) == "Images('mine', 4 of 2x3, 3 classes)"


REFUSED = [
    (lambda _: td.load_text("tale"), "a text is one of tales, or a file in UTF-8; 'tale' is"),
    (lambda folder: td.load_text(folder / "latin.txt"), "UTF-8"),
    (lambda _: td.load_images("digit"), "pictures are one of digits, or an"),
    (lambda folder: td.load_images(folder / "odd.npz"), r"uint8 \[4, 2, 3\] and \[3\]"),
    (lambda _: td.load_images("digits").split(2), "between 0 and 1, got 2"),
    (lambda _: td.load_images("digits").batch(0, 1, 0), "a step from 0, got 0 of step 1"),
    (lambda _: td.load_text("tales").batch(0, 0, 1, 173_179), "1 to 173178 .* rows of 173179"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_refused(tmp_path, call, words):
    np.savez(tmp_path / "odd.npz", pixels=np.zeros((4, 2, 3), np.uint8), labels=np.zeros(3))
    (tmp_path / "latin.txt").write_bytes(b"\xe9\xe9")
    with pytest.raises(ConfigError, match=words):
        call(tmp_path)
