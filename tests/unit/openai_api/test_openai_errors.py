import json

import pytest

from backends.api.errors import Code, ServingError
from openai_api.errors import error_body, error_headers, wire_error


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_status_and_all_four_members(code):
    error = ServingError(code, "because")
    assert 400 <= wire_error(error).status <= 503
    assert json.loads(error_body(error))["error"].keys() == {"message", "type", "param", "code"}


def test_an_errors_own_reason_is_the_code_clients_see():
    error = ServingError(Code.INVALID, "too long", param="messages", reason="invalid_prompt")
    assert json.loads(error_body(error))["error"] == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "invalid_prompt",
    }


def test_a_rate_limit_is_429():
    assert wire_error(ServingError(Code.OVERLOADED, "slow down", reason="rate_limit_exceeded")).status == 429
    assert wire_error(ServingError(Code.OVERLOADED, "full")) == (503, "server_error", "overloaded")


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        (Code.OVERLOADED, "queue_full", "overloaded"),
        (Code.UNAVAILABLE, "loading", "model_loading"),
        (Code.UNAVAILABLE, "engine_ended", "model_not_ready"),
        (Code.UNAVAILABLE, "closing", "model_not_ready"),
        (Code.UNAVAILABLE, None, "model_not_ready"),
        (Code.UNAVAILABLE, "stopping", "shutting_down"),
        (Code.DEADLINE, "deadline", "timeout"),
        (Code.INTERNAL, "wrong_output", "internal_error"),
    ],
)
def test_where_the_caller_is_not_at_fault_the_code_is_one_of_the_documented_few(code, reason, said):
    assert wire_error(ServingError(code, "because", reason=reason)).code == said


def test_a_refusal_says_when_to_come_back_and_spreads_the_clients():
    error = ServingError(Code.OVERLOADED, "full", retry_after=4)
    early, late = dict(error_headers(error, spread=0)), dict(error_headers(error, spread=0.99))
    assert (early[b"retry-after"], early[b"retry-after-ms"]) == (b"4", b"4000")
    assert int(late[b"retry-after-ms"]) == 5980


@pytest.mark.parametrize("wait", [None, 0.0, 1e9])
def test_the_wait_is_bounded(wait):
    headers = dict(error_headers(ServingError(Code.UNAVAILABLE, "loading", retry_after=wait)))
    assert 1 <= int(headers[b"retry-after"]) <= 30


def test_a_wrong_request_is_not_to_be_retried():
    assert error_headers(ServingError(Code.INVALID, "no")) == []


def test_a_message_does_not_grow_with_its_cause():
    assert len(error_body(ServingError(Code.INVALID, "ü\n" * 100_000))) < 8192


def test_an_overflow_is_named_in_the_message_too():
    error = ServingError(Code.INVALID, "The prompt is too long.", reason="context_length_exceeded")
    assert json.loads(error_body(error))["error"]["message"] == "The prompt is too long. (context_length_exceeded)"
