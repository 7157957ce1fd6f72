"""Where we answer otherwise than Triton 2.51 on purpose."""

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """`ours` is part of our answer; `row` part of the row in docs/triton_differences.md that tells it."""

    ours: str
    row: str


HTTP: dict[str, Difference] = {
    "extra input": Difference("missing required input(s) []", "unbalanced bracket"),
    "required left out": Difference("missing required input(s) ['A']", "required input is left out"),
    "batch of none": Difference("batch-size must be >= 1 for 'ident', got 0", "batch of 0 or a negative one"),
    "uint8 too large": Difference("a value outside 0 to 255", "does not fit its datatype"),
    "int32 too large": Difference("a value outside -2147483648 to 2147483647", "does not fit its datatype"),
    "fp64 beyond range": Difference("non-number as double", "beyond the range of FP64"),
    "header length not a number": Difference("expected a number of bytes, got 'abc'", "not a number"),
    "empty body": Difference("failed to parse the request JSON buffer", "empty body"),
    "not gzip": Difference("the body is not valid gzip", "not what its Content-Encoding says"),
    "bytes not text": Difference("ask for it as binary data", "not UTF-8"),
    "fp16 binary to json": Difference("binary data format for output OUT", "names the output"),
    "trace level unknown": Difference("'XX' is not a level", "Unknown trace level"),
    "trace unknown setting": Difference("'foo' is not a trace setting", "Unknown trace or log setting"),
    "log unknown setting": Difference("'foo' is not a log setting", "Unknown trace or log setting"),
    "log format unknown": Difference('"status": 400', "log format"),
    "generate without input": Difference("missing required input(s) ['PROMPT']", "required input is left out"),
    "generate two answers": Difference('"status": 500', "other than one answer"),
    "load of a broken model": Difference("Internal: model 'broken': ValueError: cannot start;", "traceback"),
    "load of a path": Difference("Not Found", "slash in a model's name"),
    "load with files alone": Difference("with files must give the model's config too", "cannot be understood"),
    "load with a wrong config": Difference("override config of model 'ident':1:2: not JSON", "cannot be understood"),
    "load with an unknown field": Difference("has no field 'foo'", "cannot be understood"),
    "load of a wrong config.pbtxt": Difference("config.pbtxt:1:41: a model configuration", "cannot be understood"),
    "load of a blank name": Difference("Model name cannot be empty", "load of a blank name"),
    "region of the server's own": Difference("not one that a client may register", "custom models' processes"),
    "raising": Difference('message: ValueError: a bug of the model"', "traceback"),
    "batches of two sizes": Difference("input 'B' batch size does not match", "batches of several sizes"),
    "control input sent": Difference("Got input(s) ['IN','START']", "unbalanced bracket"),
    "a fraction": Difference("[0.8, 1e-08, 16777216.0, 3.5]", "shortest digits"),
}
GRPC: dict[str, Difference] = {
    "raw left over": Difference("expected 1 entries in raw_input_contents", "more entries in `raw_input_contents`"),
    "datatype unknown": Difference("data-type is 'XX'", "instead of `<invalid>`"),
    "shape negative": Difference("batch-size must be >= 1", "batch of 0 or a negative one"),
    "uint8 too large": Difference("a value outside 0 to 255", "does not fit its datatype"),
    "stream decoupled error": Difference('"bool_param": true', "ends the request"),
    "raising": Difference('message: ValueError: a bug of the model"', "traceback"),
    "two outputs named in another order": Difference('["AAAAAgAAAAE=", "AQAAAAIAAAA="]', "order of the request"),
    "custom unsigned": Difference('"answer"', "custom parameter given as `uint64_param`"),
    "region of cuda without handle": Difference("'raw_handle' must be a valid base64", "handle checked"),
}
STARTS: dict[str, dict[str, Difference]] = {  # by the start's name and then the case's
    "a model fails, readiness is strict": {"http: server ready": Difference('"status": 503', "Server not ready")},
    "headers go on to the model": {
        "http: one of two": Difference("x-forward", "in small letters"),
        "http: of a reserved name": Difference("cannot be forwarded", "bears a reserved name"),
        "grpc: of a reserved name": Difference("cannot be forwarded", "bears a reserved name"),
    },
}
_JSON_FAULTS = (
    "Unable to parse",
    "Unable to set",
    "failed to parse the request JSON buffer",
    "failed to get request params",
    "attempt to access JSON",
)


def as_we_say(answer: Any) -> Any:
    """`answer` of either server under the one rule that holds for many cases: a fault in a JSON document is a 400.

    What a JSON parser says of its place is its own, and we name the member where Triton does not.
    """
    if isinstance(answer, list):
        return [as_we_say(each) for each in answer]
    error = answer["json"].get("error", "") if isinstance(answer.get("json"), dict) else ""
    if not re.sub(r"^'\w+': ", "", error).startswith(_JSON_FAULTS):
        return answer
    text = re.sub(r"^'\w+': ", "", re.sub(r"(JSON buffer): .*", r"\1", error))
    return {**answer, "status": 400 if answer["status"] == 500 else answer["status"], "json": {"error": text}}
