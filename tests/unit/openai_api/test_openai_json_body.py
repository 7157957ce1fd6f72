import pytest

from backends.api.errors import ServingError
from openai_api.json_body import check_content_type, parse_object


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"42",
        b"null",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"1" * 5000 + b"}",
        b'{"a": "\xff"}',
        b'{"a": "\\ud83d"}',
        b'{"\\ud83d": 1}',
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 2}}',
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b"{} {}",
    ],
)
def test_what_two_parsers_could_read_differently_is_refused(body):
    with pytest.raises(ServingError) as caught:
        parse_object(body)
    assert caught.value.reason == "invalid_json"
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is empty"),
        (b'{"a": 1', "truncated"),
        (b'{"a": "\\ud83d"}', "lone surrogate"),
        (b'{"a": "\\ud83d", "b": "' + b"x" * 100 + b'"}', "lone surrogate"),
        (b'{"a": "\\udc00"}', "lone surrogate"),
        (b'{"\\ud83d": 1}', "lone surrogate"),
        (b'{"a": 1, "a": 2}', "two members of the same name"),
    ],
)
def test_what_is_wrong_is_named(body, said):
    with pytest.raises(ServingError, match=said):
        parse_object(body)


def test_an_object_is_read_as_it_is():
    body = '{"a": "\\ud83d\\ude00 ü\\u0000", "b": [1, 2.5, null, true]}'.encode()
    assert parse_object(body) == {"a": "😀 ü\0", "b": [1, 2.5, None, True]}


@pytest.mark.parametrize(
    "value", ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"']
)
def test_json_in_utf8_is_taken(value):
    check_content_type(value, "")


@pytest.mark.parametrize(
    "value", ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"]
)
def test_another_content_type_is_refused(value):
    with pytest.raises(ServingError):
        check_content_type(value, "")


def test_a_compressed_body_is_refused():
    with pytest.raises(ServingError):
        check_content_type("application/json", "gzip")
