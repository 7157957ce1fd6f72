"""Bytes of a request body -> a JSON object, strictly: what two parsers could read differently is refused."""

import json

import msgspec

from backends.api.errors import ServingError
from openai_api.errors import invalid


def parse_object(body: bytes) -> dict[str, object]:
    """The JSON object in `body`.

    Raises ServingError(INVALID) for anything but one object, and for NaN and infinities, numbers out of range,
    bytes that are no UTF-8, lone surrogates, duplicate members and nesting beyond the parser's bound.
    """
    if not body:
        raise invalid("invalid_json", None, "the request body is empty: expected a JSON object")
    try:
        value = msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_refuse_duplicates)
    except RecursionError:
        raise invalid("invalid_json", None, "the request body is nested too deeply") from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise invalid("invalid_json", None, f"the request body is not valid JSON: {_why(body, error)}") from None
    if not isinstance(value, dict):
        raise invalid("invalid_json", None, "the request body must be a JSON object")
    return value


def check_content_type(content_type: str, content_encoding: str) -> None:
    """Only plain JSON: this also keeps web pages of other sites from posting without a preflight."""
    media, _, parameters = content_type.partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if media.strip().lower() != "application/json" or charset not in ("", "charset=utf-8", "charset=utf8"):
        raise _wrong_header("content-type", "application/json in UTF-8", content_type)
    if content_encoding.lower() not in ("", "identity"):
        raise _wrong_header("content-encoding", "identity", content_encoding)


def _wrong_header(name: str, want: str, got: str) -> ServingError:
    return invalid("invalid_value", None, f"header '{name}': expected {want}, got '{got[:80]}'")


def _why(body: bytes, error: Exception) -> str:
    """The parser's word, but where it takes a lone surrogate near the end for an end that comes too early."""
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "a string has a lone surrogate (\\ud800 to \\udfff), which is no character"
    except (ValueError, RecursionError):
        pass
    return str(error)


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("an object has two members of the same name")
