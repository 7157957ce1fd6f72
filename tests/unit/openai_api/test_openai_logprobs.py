import pytest

from backends.api.request import TokenLogprobs
from openai_api.logprobs import ChatLogprobs, CompletionLogprobs, TokenTexts
from tests.unit.openai_api.scripted import TOKENIZER, WORD, text_logprobs, tokens_of

TEXTS = TokenTexts(TOKENIZER, as_ids=False)


def entries(tokens, count=1):
    return [(token, text_logprobs(token, count)) for token in tokens]


def test_tokens_with_bytes_that_are_no_character_stay_apart():
    first, second = tokens_of("é")
    found = CompletionLogprobs(TEXTS, 2).render(
        [(first, TokenLogprobs(first, -1.0, 1, [(first, -1.0), (second, -2.0)]))]
    )
    assert found["top_logprobs"] == [{"bytes:\\xc3": -1.0, "bytes:\\xa9": -2.0}]


def test_the_sampled_token_is_among_the_best_even_if_it_is_not():
    rare = TokenLogprobs(WORD[" stop"], -9.5, 77, [(tokens_of("a")[0], -0.1)])
    assert CompletionLogprobs(TEXTS, 1).render([(WORD[" stop"], rare)])["top_logprobs"] == [{"a": -0.1, " stop": -9.5}]


def test_offsets_count_characters_across_calls():
    form = CompletionLogprobs(TEXTS, 0)
    first, second = form.render(entries([WORD[" hello"], *tokens_of("é")])), form.render(entries(tokens_of("!")))
    assert first["text_offset"] == [0, 6, 6]
    assert second["text_offset"] == [7]


START = TOKENIZER.token_id("<|im_start|>")


@pytest.mark.parametrize(("shows_special", "offsets"), [(False, [0, 1, 1, 2]), (True, [0, 1, 13, 14])])
def test_offsets_count_the_special_tokens_that_the_text_shows(shows_special, offsets):
    form = CompletionLogprobs(TEXTS, 0, shows_special)
    assert form.render(entries([*tokens_of("a"), START, *tokens_of("bc")]))["text_offset"] == offsets


@pytest.mark.parametrize(
    ("echo", "prompt", "offsets"),
    [
        ("ab", [START, *tokens_of("ab")], [0, 0, 1, 2]),
        ("a<|im_start|>b", [START, *tokens_of("a"), START, *tokens_of("b")], [0, 0, 1, 13, 14]),
        ("hello b", [WORD[" hello"], *tokens_of(" b")], [0, 5, 6, 7]),
        (" hello b", [WORD[" hello"], *tokens_of(" b")], [0, 6, 7, 8]),
    ],
)
def test_offsets_into_an_echoed_prompt_are_into_its_text_as_it_was_written(echo, prompt, offsets):
    form = CompletionLogprobs(TEXTS, 0, echo=echo)
    assert form.render(entries([*prompt, *tokens_of("!")]))["text_offset"] == offsets


def test_chat_entries_carry_true_bytes():
    first, second = tokens_of("é")
    found = ChatLogprobs(TEXTS, 1).render(entries([first, second]))["content"]
    assert [entry["bytes"] for entry in found] == [[0xC3], [0xA9]]
    assert found[0]["token"] == "\ufffd"
    assert found[0]["top_logprobs"] == [{"token": "\ufffd", "logprob": -0.25, "bytes": [0xC3]}]
