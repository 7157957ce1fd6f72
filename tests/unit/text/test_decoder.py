import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.text.decoder import decode, text_decoder
from backends.text.tokenizer import Tokenizer

BYTE_IDS = st.lists(st.integers(0, 259), max_size=40)


def pieces_of(tokenizer: Tokenizer, tokens: list[int], prompt: list[int] | None = None, **options: bool) -> list[str]:
    """The text of each token and, last, what the end brought."""
    decoder = text_decoder(tokenizer, prompt or [], **options)
    pieces = [decoder.push(token) for token in tokens]
    return [*pieces, decoder.flush()]


@given(tokens=BYTE_IDS)
def test_pieces_add_up_to_the_bytes_of_all_tokens(byte_level: Tokenizer, tokens: list[int]) -> None:
    data = b"".join(byte_level.token_bytes(token) for token in tokens if not byte_level.is_special(token))
    assert "".join(pieces_of(byte_level, tokens)) == data.decode("utf-8", "replace")


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_no_replacement_character_is_ever_sent_for_valid_text(byte_level: Tokenizer, text: str) -> None:
    sent = pieces_of(byte_level, byte_level.encode(text))
    assert "".join(sent) == text
    assert "".join(sent).count("\ufffd") == text.count("\ufffd")


@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), cut=st.integers(0, 80))
def test_a_cut_text_ends_in_at_most_one_replacement_character(byte_level: Tokenizer, text: str, cut: int) -> None:
    tokens = byte_level.encode(text)[:cut]
    *sent, last = pieces_of(byte_level, tokens)
    assert text.startswith("".join(sent))
    assert last in ("", "\ufffd")


@settings(max_examples=50)
@given(data=st.data())
def test_random_tokens_of_a_real_vocabulary_decode_as_the_library_does(smollm2: Tokenizer, data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, smollm2.vocab_size - 1), max_size=40))
    whole = smollm2.decode_window(tokens, skip_special_tokens=True)
    assert "".join(pieces_of(smollm2, tokens)) == whole == decode(smollm2, tokens)


def test_special_tokens_are_silent_unless_asked_for(byte_level: Tokenizer) -> None:
    tokens = [*byte_level.encode("a"), byte_level.eos_id or 0]
    assert "".join(pieces_of(byte_level, tokens)) == "a"
    assert "".join(pieces_of(byte_level, tokens, skip_special_tokens=False)) == "a</s>"


def test_ids_without_a_token_have_no_text(byte_level: Tokenizer) -> None:
    assert "".join(pieces_of(byte_level, [5000, -1])) == ""


@given(text=st.text(st.sampled_from("hi é😀 "), max_size=12))
def test_sentence_piece_text_comes_back_without_its_dummy_space(sentence_piece: Tokenizer, text: str) -> None:
    tokens = sentence_piece.encode(text)
    assert decode(sentence_piece, tokens) == text == sentence_piece.decode_window(tokens, skip_special_tokens=True)


def test_a_generated_leading_space_is_kept(sentence_piece: Tokenizer) -> None:
    prompt, generated = sentence_piece.encode("hi"), [sentence_piece.token_id("▁hi") or 0]
    assert pieces_of(sentence_piece, generated, prompt) == [" hi", ""]


def test_byte_tokens_wait_for_their_character(sentence_piece: Tokenizer) -> None:
    tokens = [sentence_piece.token_id(f"<0x{byte:02X}>") or 0 for byte in "😀".encode()]
    assert pieces_of(sentence_piece, tokens) == ["", "", "", "😀", ""]


def test_a_character_the_prompt_began_is_completed_by_the_answer(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("x😀y")
    assert "".join(pieces_of(byte_level, tokens[3:], prompt=tokens[:3])) == "😀y"


def test_a_character_the_prompt_began_is_dropped_when_the_answer_does_not_go_on_with_it(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("x😀y")
    assert "".join(pieces_of(byte_level, byte_level.encode("the"), prompt=tokens[:3])) == "the"


@given(tokens=st.lists(st.integers(0, 6), max_size=20))
def test_other_vocabularies_decode_in_pieces_as_whole(word_piece: Tokenizer, tokens: list[int]) -> None:
    decoder = text_decoder(word_piece, ())
    sent = "".join(decoder.push(token) for token in tokens) + decoder.flush()
    # the library's clean-up takes spaces away before punctuation that comes later: letters never change
    assert sent.replace(" ", "") == word_piece.decode_window(tokens, skip_special_tokens=True).replace(" ", "")


def test_the_decoder_agrees_with_pythons_own_on_truly_invalid_bytes(byte_level: Tokenizer) -> None:
    data = b"\xf0\x9f\x98ok\xff\xe2\x82"
    ids = {byte_level.token_bytes(token): token for token in range(256)}
    sent = pieces_of(byte_level, [ids[bytes([byte])] for byte in data])
    assert "".join(sent) == codecs.decode(data, "utf-8", "replace")
    assert sent[-1] == "\ufffd"


@pytest.mark.parametrize("name", ["byte_level", "sentence_piece", "word_piece"])
def test_a_flush_says_nothing_twice(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    decoder = text_decoder(tokenizer, ())
    decoder.push(3)
    decoder.flush()
    assert decoder.flush() == ""
