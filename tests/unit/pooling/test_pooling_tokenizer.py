"""Texts to the tokens an encoder was trained on, cut as the tokenizers library cuts them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.errors import ServingError
from backends.pooling.tokenizer import Truncation, load_pooling_tokenizer, longest_first
from tests.fakes.pooling_runner import CLS, SEP, toy_tokenizer

TOKENIZER = toy_tokenizer()
BYTES = [TOKENIZER.encode([character], add_special_tokens=False)[0].tokens[0] for character in "abcdefgh"]
A, B, C, D, E, F, G, H = BYTES


def test_special_tokens_stand_around_a_text_unless_they_are_not_wanted():
    assert TOKENIZER.encode(["ab", ""]) == [([CLS, A, B, SEP], 4), ([CLS, SEP], 2)]
    assert TOKENIZER.encode(["ab"], add_special_tokens=False) == [([A, B], 2)]


def test_the_second_text_of_a_pair_is_marked():
    assert TOKENIZER.encode_pairs([("a", "bc")]) == [([CLS, A, SEP, B, C, SEP], 3)]


@pytest.mark.parametrize(
    ("keep", "from_left", "wanted"),
    [
        (9, False, [CLS, A, B, C, D, SEP]),
        (4, False, [CLS, A, B, SEP]),
        (4, True, [CLS, C, D, SEP]),
        (2, False, [CLS, SEP]),
        (1, False, [CLS, SEP]),
    ],
)
def test_a_cut_text_keeps_its_special_tokens(keep, from_left, wanted):
    assert TOKENIZER.encode(["abcd"], Truncation(keep, from_left))[0].tokens == wanted


def test_the_longer_text_of_a_pair_is_cut_first():
    (row,) = TOKENIZER.encode_pairs([("a", "bcdefgh")], Truncation(7))
    assert row == ([CLS, A, SEP, B, C, D, SEP], 3)
    (row,) = TOKENIZER.encode_pairs([("abcd", "efgh")], Truncation(7))
    assert row == ([CLS, A, B, SEP, E, F, SEP], 4)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 90))
def test_pairs_are_cut_as_the_library_cuts_them(first, second, keep):
    lengths = longest_first(first, second, keep)
    assert sum(lengths) == min(keep, first + second)
    backend = toy_tokenizer()._backend
    backend.enable_truncation(keep + 3, strategy="longest_first")
    types = backend.encode("a" * first, "a" * second).type_ids
    assert lengths == (types.count(0) - 2, types.count(1) - 1)


def test_a_vocabulary_of_a_line_a_word_is_read_as_transformers_reads_it(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "high", "tide", "##s", "is", "?"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    tokenizer = load_pooling_tokenizer(tmp_path)
    assert tokenizer.encode(["High tides?"])[0].tokens == [2, 5, 6, 7, 9, 3]
    assert tokenizer.encode_pairs([("high", "tide is")])[0] == ([2, 5, 3, 6, 8, 3], 3)


def test_text_that_is_no_unicode_is_refused():
    with pytest.raises(ServingError, match="surrogate"):
        TOKENIZER.encode(["\ud83d"])
