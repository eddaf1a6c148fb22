"""Tokenizers: every text comes back, the same texts give the same tokenizer, and whatever a policy writes can be read."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fugu.coding import builtin, tokens
from fugu.errors import ConfigError, FuguError, MissingExtra
from fugu.policy import transformer

TEXTS = ["def f(x):\n return x+12", 'count "a"; sort; add 3 each', "naïve 数"]
CHARACTERS = tokens.train_characters(TEXTS)
PAIRS = tokens.train_pairs(TEXTS * 3, 120)


def test_ids_with_a_meaning_are_those_of_the_transformer():
    assert (tokens.NOTHING, tokens.END) == (transformer.NOTHING, transformer.END)


@pytest.mark.parametrize("tokenizer", [CHARACTERS, PAIRS], ids=["characters", "pairs"])
@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(), max_size=40) | st.text('def f(x):\n12"a;,', max_size=40))
def test_every_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and all(tokens.END < k < tokenizer.size for k in ids)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokens.row(ids, len(ids) + 3, end=True)) == text


def test_lone_surrogates_come_back():
    for text in ("\ud83d", "a\udfffb", "\ud83d\ude00", "😀\ud83d"):
        assert PAIRS.decode(PAIRS.encode(text)) == text


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, PAIRS.size - 1), max_size=40))
def test_whatever_a_policy_writes_is_a_text(ids):
    text = PAIRS.decode(ids)
    assert isinstance(text, str)
    if tokens.END in ids:
        assert text == PAIRS.decode(ids[: ids.index(tokens.END)])
    PAIRS.decode(np.array(ids, np.int32))


def test_ids_beyond_the_vocabulary_are_refused():
    for token in (PAIRS.size, -1):
        with pytest.raises(ConfigError, match="not below"):
            PAIRS.decode([token])


def test_pairs_are_joined_as_by_hand():
    tokenizer = tokens.train_pairs(["abab", "abc", "cc"], 18 + 3 + 2)
    assert tokenizer.alphabet == "abc"
    assert tokenizer.pairs == (("a", "b"),)  # 3 times; all other pairs occur once, which is not worth a token
    assert [tokenizer.decode([k]) for k in tokenizer.encode("cababa")] == ["c", "ab", "ab", "a"]
    more = tokens.train_pairs(["abab", "abab"], 18 + 2 + 2)
    assert more.pairs == (("a", "b"), ("ab", "ab")) and len(more.encode("abab")) == 1


def test_pairs_are_joined_in_the_order_they_were_learned():
    tokenizer = tokens.PairTokenizer("abc", [("b", "c"), ("a", "b")])
    assert [tokenizer.decode([k]) for k in tokenizer.encode("abc")] == ["a", "bc"]


def test_the_order_of_texts_does_not_matter():
    texts = [builtin.make(seed, 2).solution for seed in range(60)]
    first = tokens.train_pairs(texts, 150)
    random.Random(1).shuffle(texts)
    assert tokens.train_pairs(texts, 150).pairs == first.pairs


def test_digits_and_literals_are_never_joined_with_what_is_beside_them():
    tokenizer = tokens.train_pairs(['add 3; count "a"; x.count("a"); 33'] * 9, 200)
    pieces = [tokenizer.decode([k]) for k in tokenizer.encode('add 3; count "a"; x.count("a"); 33')]
    assert pieces == ["add ", "3", "; count ", '"a"', "; x.count(", '"a"', ")", "; ", "3", "3"]


def test_a_saved_tokenizer_is_the_same(tmp_path):
    PAIRS.save(tmp_path / "t.json")
    back = tokens.load(tmp_path / "t.json")
    assert back.size == PAIRS.size and back.encode("def f(é)").tolist() == PAIRS.encode("def f(é)").tolist()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no tokenizer"),
        ('{"format": "fugu tokenizer", "version": 9}', "version 9"),
        ('{"format": "fugu tokenizer", "version": 1, "alphabet": "ab"}', "damaged"),
        ('{"format": "fugu tokenizer", "version": 1, "alphabet": "ab", "pairs": [["a", "z"]]}', "damaged"),
        ('{"format": "fugu tokenizer", "version": 1, "alphabet": "aa", "pairs": []}', "damaged"),
    ],
)
def test_a_file_that_is_wrong_says_how(tmp_path, text, says):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(FuguError, match=says):
        tokens.load(tmp_path / "t.json")


def test_rows_are_padded_and_too_long_ones_refused():
    assert tokens.row([5, 6], 4, end=True).tolist() == [5, 6, 1, 0]
    with pytest.raises(ConfigError, match="3 tokens do not fit into a row of 2"):
        tokens.row([5, 6], 2, end=True)


def test_a_vocabulary_too_small_for_the_characters_is_refused():
    with pytest.raises(ConfigError, match="at least"):
        tokens.train_pairs(TEXTS, 20)


def test_without_the_extra_a_hugging_face_tokenizer_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(MissingExtra, match=r"pip install .fugu-rl\[tokens\]"):
        tokens.load(tmp_path / "tokenizer.json")


@pytest.mark.extras
def test_a_hugging_face_tokenizer_is_used_as_ours(tmp_path):
    import tokenizers as library

    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS * 5, library.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    made.save(str(tmp_path / "tokenizer.json"))
    ours = tokens.load(tmp_path / "tokenizer.json")
    for text in (*TEXTS, "", "😀 \x00\n"):
        ids = ours.encode(text)
        assert ids.dtype == np.int32 and all(tokens.END < k < ours.size for k in ids)
        assert ours.decode([*ids, 1, 5]) == text and ours.decode([0, *ids, 0]) == text
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(FuguError, match="is no Hugging Face tokenizer"):
        tokens.load(tmp_path / "other.json")
    ours.encode("\ud83d")  # comes back as a question mark, but does not raise
