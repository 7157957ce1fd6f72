from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.api.errors import Code, ServingError
from backends.api.request import FinishReason, GenerateRequest, SamplingParams, TokenEvent
from backends.text.stream import TextOptions, TextStream
from openai_api.choice import Choice, Delta, Echo, fold
from tests.unit.openai_api.scripted import EOS, TOKENIZER, text_logprobs, tokens_of

PROMPT = [1, 2, 3]


def choice(events, stop=(), echo=None):
    request = GenerateRequest("r", PROMPT, SamplingParams(max_tokens=1000))
    for event in events:
        request.stream.put(event)
    if events and events[-1].finish is not None:
        request.stream.finish()
    return Choice(0, request, TextStream(TOKENIZER, TextOptions(stop), PROMPT), echo)


def events_of(tokens, cuts=()):
    """The tokens in events cut at `cuts`, with log-probabilities, then end-of-sequence."""
    borders = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    pieces = [tokens[start:end] for start, end in pairwise(borders)]
    events = [TokenEvent(piece, [text_logprobs(token, 1) for token in piece]) for piece in pieces]
    return [*events, TokenEvent([EOS], [text_logprobs(EOS, 1)], FinishReason.STOP)]


async def deltas_of(chosen):
    deltas = []
    while not chosen.finished:
        deltas += await chosen.take()
    return deltas


TEXTS = st.text(st.sampled_from("ab🎉é STOP\n"), max_size=30)


@given(
    TEXTS,
    st.lists(st.integers(0, 200), max_size=40),
    st.lists(st.sampled_from(["STOP", "ab", "é ", "🎉a"]), max_size=3),
)
async def test_the_folded_stream_is_the_plain_answer(text, cuts, stops):
    tokens = tokens_of(text)
    single = range(len(tokens))
    plain = fold(await choice(events_of(tokens, single), tuple(stops)).rest())
    folded = Delta()
    for delta in await deltas_of(choice(events_of(tokens, cuts), tuple(stops))):
        folded.extend(delta)
    assert (folded.text, folded.finish_reason, folded.stop_reason) == (
        plain.text,
        plain.finish_reason,
        plain.stop_reason,
    )
    assert [token for token, _ in folded.entries] == folded.tokens == plain.tokens
    if plain.stop_reason is None:
        assert plain.text == text


@given(TEXTS, st.lists(st.integers(0, 200), max_size=40))
async def test_no_delta_is_empty_or_holds_half_a_character(text, cuts):
    for delta in await deltas_of(choice(events_of(tokens_of(text), cuts))):
        assert delta.text or delta.finish_reason
        assert "\ufffd" not in delta.text


async def test_a_stop_string_tells_the_engine_to_stop():
    chosen = choice([TokenEvent(tokens_of("one STOP two"))], stop=("STOP",))
    whole = fold(await chosen.rest())
    assert (whole.text, whole.finish_reason, whole.stop_reason) == ("one ", "stop", "STOP")
    assert len(whole.tokens) == len("one STOP")
    assert chosen.request.stream.cancelled


async def test_tokens_without_text_wait_for_those_that_complete_it():
    first, *rest = tokens_of("é")
    chosen = choice([TokenEvent([first]), TokenEvent(rest), TokenEvent([EOS], finish=FinishReason.STOP)])
    deltas = await deltas_of(chosen)
    assert deltas[0].text == "é"
    assert deltas[0].tokens == [first, *rest]


async def test_a_cut_character_becomes_one_replacement_at_the_end():
    tokens = tokens_of("a🎉")[:-1]
    whole = fold(await choice([TokenEvent(tokens, finish=FinishReason.LENGTH)]).rest())
    assert (whole.text, whole.finish_reason) == ("a\ufffd", "length")


async def test_an_echo_comes_first_with_its_logprobs_and_counts_no_tokens():
    found = [None, text_logprobs(2, 1), text_logprobs(3, 1)]
    event = TokenEvent(tokens_of("x"), [text_logprobs(0, 1)], FinishReason.LENGTH, prompt_logprobs=found)
    whole = fold(await choice([event], echo=Echo("echo ", with_entries=True)).rest())
    assert whole.text == "echo x"
    assert whole.tokens == tokens_of("x")
    assert [entry for _, entry in whole.entries[:3]] == found
    assert [token for token, _ in whole.entries[:3]] == PROMPT


async def test_an_echo_alone_drops_what_the_engine_had_to_make():
    event = TokenEvent(tokens_of("x"), finish=FinishReason.LENGTH)
    whole = fold(await choice([event], echo=Echo("echo", alone=True)).rest())
    assert (whole.text, whole.tokens, whole.finish_reason) == ("echo", [], "length")


async def test_a_stream_that_ends_without_a_reason_is_an_error():
    chosen = choice([TokenEvent(tokens_of("x"))])
    chosen.request.stream.finish()
    with pytest.raises(ServingError) as caught:
        await chosen.rest()
    assert caught.value.code is Code.INTERNAL
