"""The members that embedding, rerank and score requests share, and the texts they carry."""

from dataclasses import dataclass

from backends.api.errors import ServingError
from openai_api.errors import invalid, unsupported
from openai_api.fields import INT64_MAX, Fields, read_integer, wrong_type

MAX_INPUTS = 2048
_INT32 = 2**31 - 1
# what would change the numbers, and is not offered
_REFUSED = ("activation", "chat_template", "max_tokens_per_doc", "normalize", "softmax", "task", "use_activation")
_ONLY = {"embed_dtype": ("float32",), "endianness": ("native", "little")}

Input = str | list[int]


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How texts become rows of which model. `truncate` None: a text that is too long is an error; -1: it is cut to the model's length."""

    model: str
    truncate: int | None
    truncate_left: bool
    priority: int
    request_id: str


def read_options(fields: Fields) -> RowOptions:
    """Raises ServingError for a wrong member, and for one whose meaning is not offered."""
    for name in _REFUSED:
        if fields.raw(name) is not None:
            raise unsupported(fields.param(name), f"'{fields.param(name)}' is not supported by this server")
    for name, known in _ONLY.items():
        given = fields.string(name)
        if given is not None and given not in known:
            raise unsupported(name, f"'{name}': only {known[0]} is supported", "unsupported_value")
    return RowOptions(
        model=fields.string("model", 1024) or "",
        truncate=fields.truncation(),
        truncate_left=fields.choice("truncation_side", ("left", "right")) == "left",
        priority=fields.integer("priority", -_INT32, _INT32) or 0,
        request_id=fields.string("request_id", 1024) or "",
    )


def read_inputs(fields: Fields, name: str) -> tuple[list[Input], list[str]]:
    """Texts or token ids, and where each stands; one text or one array of token ids is one input."""
    value = fields.raw(name)
    if value is None:
        raise fields.missing(name)
    if not isinstance(value, list) or (value and not isinstance(value[0], str | list)):
        return [_input(value, name)], [name]
    inputs = fields.array(name, _input, MAX_INPUTS, min_length=1) or []
    return inputs, [f"{name}[{i}]" for i in range(len(inputs))]


def read_texts(fields: Fields, name: str) -> tuple[list[str], list[str]]:
    """The same for members that are texts alone, plain or as objects with a `text`."""
    value = fields.raw(name)
    if value is None:
        raise fields.missing(name)
    if not isinstance(value, list):
        return [read_text(value, name)], [name]
    texts = fields.array(name, read_text, MAX_INPUTS, min_length=1) or []
    return texts, [f"{name}[{i}]" for i in range(len(texts))]


def read_text(value: object, param: str) -> str:
    if isinstance(value, dict) and "text" in value:
        value, param = value["text"], f"{param}.text"
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    if not value:
        raise _empty(param)
    return value


def _input(value: object, param: str) -> Input:
    if not isinstance(value, str | list):
        raise wrong_type(param, "a string or an array of token ids", value)
    if not value:
        raise _empty(param)
    if isinstance(value, str):
        return value
    return [read_integer(item, f"{param}[{i}]", 0, INT64_MAX) for i, item in enumerate(value)]


def _empty(param: str) -> ServingError:
    return invalid("invalid_value", param, f"'{param}': expected a text that is not empty")
