"""Grammars that answers are held to, in the form llguidance compiles, and checked before a request is accepted.

Needs no model: a grammar's own faults show with a vocabulary of single bytes too.
"""

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from backends.api.errors import Code, ServingError
from backends.api.request import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_TEXT = 64 * 1024  # bytes of a grammar's source
# Space between the parts of a JSON text: enough to indent, and no endless white space from a model that found nothing to say
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,24}"
_MAX_MESSAGE = 300
_TRIED_BYTES = 32
_DEAD_END = "NoExtensionBias"  # llguidance's word for a place from which nothing leads on


def check_grammar(grammar: Grammar, param: str) -> None:
    """Raises ServingError(INVALID, invalid_json_schema) with what llguidance does not take, such as a keyword.

    Takes milliseconds, at worst some tens: the work is bounded by `parser_limits`.
    """
    problem = _problem(grammar)
    if problem:
        raise invalid_grammar(f"'{param}': {problem}", param)


def invalid_grammar(message: str, param: str | None = None) -> ServingError:
    return ServingError(Code.INVALID, message, param=param, reason="invalid_json_schema")


def guidance_source(grammar: Grammar) -> str:
    """The grammar as llguidance takes it. Raises whatever its readers do for a source they cannot read."""
    from llguidance import LLMatcher

    match grammar.kind:
        case "json_schema":
            # what a schema says of itself under x-guidance comes between the two: it may choose its white space
            source = LLMatcher.grammar_from_json_schema(
                grammar.text, {"whitespace_pattern": WHITESPACE}, {"lenient": False, "coerce_one_of": False}
            )
        case "regex":
            source = LLMatcher.grammar_from_regex(grammar.text)
        case "lark":
            source = LLMatcher.grammar_from_lark(_lark(grammar.text))
        case _:
            raise ValueError(f"unknown kind of grammar '{grammar.kind}'")
    return source


def parser_limits() -> "LLParserLimits":
    """Bounds on compiling (some tens of milliseconds), on one mask (about 15, where lexer fuel tells), and on memory."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=50_000, max_grammar_size=20_000, verbose_errors=False)


def compile_grammar(grammar: Grammar, vocabulary: "LLTokenizer") -> "LLMatcher":
    """A matcher at its start. Raises ServingError(INVALID); releases the GIL."""
    from llguidance import LLMatcher

    try:
        matcher = LLMatcher(vocabulary, guidance_source(grammar), log_level=0, limits=parser_limits())
    except Exception as error:  # a recursion too deep among others: the source is the client's
        raise invalid_grammar(f"the grammar cannot be read: {tidy(str(error))}") from error
    if matcher.is_error():
        raise invalid_grammar(f"the grammar cannot be compiled: {tidy(matcher.get_error())}")
    return matcher


def tidy(message: str) -> str:
    """What llguidance says, on one line and of bounded length."""
    return re.sub(r"\s+", " ", message.replace("<non-verbose/>", "")).strip()[:_MAX_MESSAGE]


def _lark(text: str) -> str:
    """llguidance's own dialect, or translated to it: GBNF, which llama.cpp and vLLM take, says ::= in every rule."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    return gbnf_to_lark(text) if "::=" in text else text


@lru_cache(maxsize=128)
def _problem(grammar: Grammar) -> str:
    size = len(grammar.text.encode())
    if size > MAX_TEXT:
        return f"expected at most {MAX_TEXT} bytes, got {size}"
    try:
        matcher = compile_grammar(grammar, bytes_vocabulary())
    except ServingError as error:
        return error.message
    _try(matcher)
    if not matcher.is_error():
        return ""
    why = tidy(matcher.get_error())
    return "it has a part that no text can satisfy" if why == _DEAD_END else f"the grammar is too complex: {why}"


def _try(matcher: "LLMatcher") -> None:
    """Say a few bytes: what only shows once a string or a list is begun shows here, and not in somebody's answer."""
    for _ in range(_TRIED_BYTES):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        # the first that is no control character, space aside: a string, an object or a list where it may be
        visible = mask >> 33 & (1 << 223) - 1
        if matcher.is_stopped() or not visible:
            return
        matcher.consume_token(33 + (visible & -visible).bit_length() - 1)


@lru_cache(maxsize=1)
def bytes_vocabulary() -> "LLTokenizer":
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])


class _Bytes:
    """A token a byte, and one for the end."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [*(bytes([byte]) for byte in range(256)), b"<eos>"]
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)
