"""Why a JSON inference body was refused, in the words Triton's clients and tests know (triton spec 1.2, 1.3).

Runs on refused bodies alone, so it reads the document a second time without types and walks it in Triton's order.
"""

from typing import Any

import msgspec

from backends.api.errors import Code, ServingError
from gateway.kserve_numbers import wrong_type

MALFORMED = "malformed_json"
"""The `reason` of bodies that are no JSON document at all."""


def explain(text: bytes, error: Exception) -> ServingError:
    """The ServingError(INVALID) for a body that the strict decoder refused with `error`."""
    try:
        document = parse_document(text)
    except ServingError as malformed:
        return malformed
    if isinstance(error, RecursionError):  # nested less deep than the strict decoder counts
        return _malformed("nested too deeply")
    return _first_fault(document) or ServingError(Code.INVALID, f"failed to parse the request: {error}")


def parse_document(text: bytes) -> Any:
    """Any JSON document. Raises ServingError(INVALID) for text that is none."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise _malformed("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(str(error)) from None


def _malformed(why: str) -> ServingError:
    return ServingError(Code.INVALID, f"failed to parse the request JSON buffer: {why}", reason=MALFORMED)


def _first_fault(document: Any) -> ServingError | None:
    if not isinstance(document, dict):
        return _missing("inputs")
    if "id" in document and not isinstance(document["id"], str):
        return wrong_type("id", "non-string as string")
    if not isinstance(document.get("parameters", {}), dict):
        return ServingError(Code.INVALID, "failed to get request params.: attempt to get members for non-object")
    if "inputs" not in document:
        return _missing("inputs")
    for field, fault in (("inputs", _input_fault), ("outputs", _output_fault)):
        items = document.get(field, [])
        if not isinstance(items, list):
            return wrong_type(field, "non-array as array")
        found = next((found for found in map(fault, items) if found), None)
        if found:
            return found
    return None


def _input_fault(item: Any) -> ServingError | None:
    if not isinstance(item, dict):
        return wrong_type("inputs", "non-object as object")
    return (
        _string_fault(item, "name")
        or _shape_fault(item)
        or _string_fault(item, "datatype")
        or _parameters_fault(item)
        or (_missing("data") if "data" in item and item["data"] is None else None)
    )


def _output_fault(item: Any) -> ServingError | None:
    if not isinstance(item, dict):
        return wrong_type("outputs", "non-object as object")
    return _string_fault(item, "name") or _parameters_fault(item)


def _string_fault(item: dict[str, Any], field: str) -> ServingError | None:
    if field not in item:
        return _missing(field)
    return None if isinstance(item[field], str) else wrong_type(field, "non-string as string")


def _shape_fault(item: dict[str, Any]) -> ServingError | None:
    if "shape" not in item:
        return _missing("shape")
    if not isinstance(item["shape"], list):
        return wrong_type("shape", "non-array as array")
    if all(type(dim) is int and 0 <= dim < 1 << 63 for dim in item["shape"]):
        return None
    return wrong_type("shape", "non-unsigned-integer as unsigned-integer")


def _parameters_fault(item: dict[str, Any]) -> ServingError | None:
    if isinstance(item.get("parameters", {}), dict):
        return None
    return wrong_type("parameters", "non-object as object")


def _missing(field: str) -> ServingError:
    return ServingError(
        Code.INVALID, f"Unable to parse '{field}': attempt to access non-existing object member '{field}'", param=field
    )
