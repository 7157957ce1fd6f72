from hypothesis import given
from hypothesis import strategies as st

from backends.api.request import FinishReason, TokenEvent, TokenLogprobs
from backends.text.stream import TextDelta, TextOptions, TextStream, fold
from backends.text.tokenizer import Tokenizer


def entry(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -1.0, 1, [])


def events_of(tokens: list[int], sizes: list[int], finish: FinishReason = FinishReason.LENGTH) -> list[TokenEvent]:
    """`tokens` in steps of `sizes` (the rest in one), the last of them with `finish`."""
    events, start = [], 0
    for size in [*sizes, len(tokens)]:
        part = tokens[start : start + size]
        events.append(TokenEvent(part, [entry(token) for token in part]))
        start += size
    events[-1].finish = finish
    return events


def run(
    tokenizer: Tokenizer, events: list[TokenEvent], options: TextOptions | None = None
) -> tuple[list[TextDelta], TextStream]:
    stream = TextStream(tokenizer, options or TextOptions())
    return [stream.push(event) for event in events], stream


SIZES = st.lists(st.integers(0, 5), max_size=8)
TEXTS = st.text(st.sampled_from("abé😀 the"), max_size=20)
STOPS = st.lists(st.text(st.sampled_from("ab the😀"), min_size=1, max_size=4), max_size=3)


@given(text=TEXTS, sizes=SIZES, stops=STOPS)
def test_the_answer_is_the_same_however_steps_cut_it(
    byte_level: Tokenizer, text: str, sizes: list[int], stops: list[str]
) -> None:
    options = TextOptions(stop=tuple(stops))
    tokens = byte_level.encode(text)
    deltas, stream = run(byte_level, events_of(tokens, sizes), options)
    (whole,), _ = run(byte_level, events_of(tokens, []), options)
    assert fold(deltas) == whole
    assert stream.num_tokens == len(whole.tokens)
    assert [delta.finish_reason is not None for delta in deltas].count(True) == 1


@given(text=TEXTS, sizes=SIZES, stops=STOPS)
def test_tokens_and_logprobs_stay_in_step_and_end_with_the_match(
    byte_level: Tokenizer, text: str, sizes: list[int], stops: list[str]
) -> None:
    tokens = byte_level.encode(text)
    deltas, _ = run(byte_level, events_of(tokens, sizes), TextOptions(stop=tuple(stops)))
    whole = fold(deltas)
    assert [found.token for found in whole.logprobs or []] == whole.tokens == tokens[: len(whole.tokens)]
    covered = b"".join(byte_level.token_bytes(token) for token in whole.tokens).decode("utf-8", "replace")
    assert covered.startswith(whole.text)
    if isinstance(whole.stop_reason, str):
        before = b"".join(byte_level.token_bytes(token) for token in whole.tokens[:-1]).decode("utf-8", "replace")
        assert whole.stop_reason in covered
        assert whole.stop_reason not in before


def test_tokens_behind_a_match_in_one_step_are_dropped_from_everything(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("aXbcd")
    (delta,), stream = run(byte_level, [TokenEvent(tokens, [entry(token) for token in tokens])], TextOptions(("X",)))
    assert (delta.text, delta.tokens, len(delta.logprobs or [])) == ("a", tokens[:2], 2)
    assert (delta.finish_reason, delta.stop_reason, stream.num_tokens) == (FinishReason.STOP, "X", 2)


def test_a_stop_string_beats_the_length_limit_of_the_same_step(byte_level: Tokenizer) -> None:
    event = TokenEvent(byte_level.encode("aX"), finish=FinishReason.LENGTH)
    (delta,), _ = run(byte_level, [event], TextOptions(("X",)))
    assert (delta.finish_reason, delta.stop_reason) == (FinishReason.STOP, "X")


def test_the_end_of_sequence_shows_only_where_special_tokens_do(byte_level: Tokenizer) -> None:
    tokens = [*byte_level.encode("a"), byte_level.eos_id or 0]
    event = TokenEvent(tokens, finish=FinishReason.STOP)
    (delta,), stream = run(byte_level, [event])
    assert (delta.text, delta.tokens, delta.stop_reason, stream.num_tokens) == ("a", tokens, None, 2)
    (shown,), _ = run(byte_level, [event], TextOptions(skip_special_tokens=False))
    assert shown.text == "a</s>"


def test_a_stop_token_has_no_text_unless_stops_are_included(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("ab")
    event = TokenEvent(tokens, finish=FinishReason.STOP, stop_token=tokens[1])
    (delta,), _ = run(byte_level, [event])
    assert (delta.text, delta.tokens, delta.stop_reason) == ("a", tokens, tokens[1])
    (shown,), _ = run(byte_level, [event], TextOptions(include_stop_str_in_output=True))
    assert shown.text == "ab"


def test_min_tokens_holds_for_stop_strings(byte_level: Tokenizer) -> None:
    events = [TokenEvent([token]) for token in byte_level.encode("XaXb")]
    deltas, stream = run(byte_level, events, TextOptions(("X",), min_tokens=1))
    assert fold(deltas).text == "Xa"
    assert stream.num_tokens == 3


def test_a_character_cut_by_the_length_limit_is_one_replacement_character(byte_level: Tokenizer) -> None:
    event = TokenEvent(byte_level.encode("a😀")[:3], finish=FinishReason.LENGTH)
    (delta,), _ = run(byte_level, [event])
    assert delta.text == "a\ufffd"


def test_held_text_leaves_when_the_engine_ends(byte_level: Tokenizer) -> None:
    deltas, _ = run(byte_level, events_of(byte_level.encode("the E"), [4]), TextOptions(("END",)))
    assert fold(deltas).text == "the E"
    assert all("E" not in delta.text for delta in deltas[:-1])


def test_events_after_the_end_bring_nothing(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level, TextOptions(("X",)))
    stream.push(TokenEvent(byte_level.encode("X")))
    assert stream.push(TokenEvent([1], finish=FinishReason.LENGTH)) == TextDelta()
    assert stream.num_tokens == 1


def test_an_end_without_a_token_still_ends_the_choice(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level, TextOptions())
    assert stream.push(TokenEvent([], finish=FinishReason.LENGTH)).finish_reason is FinishReason.LENGTH
    assert stream.finished
