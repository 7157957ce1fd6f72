"""A `tokenizers.Tokenizer` made from the `tokenizer.ggml.*` keys of a GGUF file."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from backends.api.errors import Code, ServingError
from backends.text.pre_tokenizers import IGNORE_MERGES, pre_tokenizer

_PREFIX = "tokenizer.ggml."
# Values of tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
# Byte-level models whose files may leave add_bos_token out and yet want it
_ADD_BOS = {"llama-bpe", "llama3", "llama-v3", "tekken"}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `metadata` describes: byte-level BPE ("gpt2") or SentencePiece BPE ("llama").

    Raises ServingError: INVALID for keys that are missing or contradict each other, UNSUPPORTED for other kinds.
    """
    kind = _required(metadata, "model")
    if kind == "gpt2":
        tokenizer = _byte_level(metadata)
    elif kind == "llama":
        tokenizer = _sentence_piece(metadata)
    else:
        raise ServingError(
            Code.UNSUPPORTED,
            f"GGUF tokenizer: tokenizer.ggml.model is '{kind}', known here are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece)",
        )
    _add_added_tokens(tokenizer, metadata)
    return tokenizer


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether a raw prompt starts with the beginning-of-sequence token."""
    default = metadata.get(_PREFIX + "model") == "llama" or metadata.get(_PREFIX + "pre") in _ADD_BOS
    return bool(metadata.get(_PREFIX + "add_bos_token", default))


def special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Role (`bos`, `eos`, `eot`, `eom`, `unknown`, `padding`) -> token id, where the file gives one in the vocabulary."""
    size = len(metadata.get(_PREFIX + "tokens", ()))
    found = {}
    for role in ("bos", "eos", "eot", "eom", "unknown", "padding"):
        token = metadata.get(f"{_PREFIX}{role}_token_id")
        if isinstance(token, int) and 0 <= token < size:
            found[role] = token
    return found


def _byte_level(metadata: Mapping[str, Any]) -> Tokenizer:
    tokens = _required(metadata, "tokens")
    merges = [_pair(merge) for merge in _required(metadata, "merges")]
    name = metadata.get(_PREFIX + "pre", "default")
    cutter = pre_tokenizer(name)
    tokenizer = Tokenizer(_bpe(tokens, merges, ignore_merges=name in IGNORE_MERGES))
    tokenizer.pre_tokenizer = cutter
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(metadata: Mapping[str, Any]) -> Tokenizer:
    tokens, scores = _required(metadata, "tokens"), _required(metadata, "scores")
    if len(scores) != len(tokens):
        raise _invalid(f"{len(tokens)} tokens and {len(scores)} scores, expected as many")
    unknown = tokens[special_ids(metadata).get("unknown", 0)]
    tokenizer = Tokenizer(
        _bpe(tokens, _merges_by_score(tokens, scores), byte_fallback=True, fuse_unk=True, unk_token=unknown)
    )
    add_prefix = bool(metadata.get(_PREFIX + "add_space_prefix", True))
    replace = normalizers.Replace(" ", "▁")
    prepend = normalizers.Prepend("▁")
    tokenizer.normalizer = normalizers.Sequence([prepend, replace]) if add_prefix else replace
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if add_prefix else steps)
    return tokenizer


def _merges_by_score(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the best-scored token first: SentencePiece's order of merging."""
    ids = {token: index for index, token in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                merges.append((-score, ids[token], ids[left], ids[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


def _bpe(tokens: Sequence[str], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise _invalid(f"{len(tokens) - len(vocabulary)} of {len(tokens)} tokens occur twice")
    try:
        return models.BPE(vocab=vocabulary, merges=merges, **options)
    except Exception as error:  # the library raises plain Exception for a merge that names no token
        raise _invalid(str(error)) from error


def _add_added_tokens(tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> None:
    tokens = _required(metadata, "tokens")
    types = metadata.get(_PREFIX + "token_type", ())
    special, plain = [], []
    for token, kind in zip(tokens, types, strict=False):
        if kind in (_CONTROL, _UNKNOWN):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == _USER_DEFINED:
            plain.append(AddedToken(token, special=False, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    # a token may itself start with a space character only in SentencePiece files, which have no merges
    return left, right


def _required(metadata: Mapping[str, Any], key: str) -> Any:
    value = metadata.get(_PREFIX + key)
    if value is None or len(value) == 0:
        raise _invalid(f"the key {_PREFIX}{key} is missing or empty")
    return value


def _invalid(what: str) -> ServingError:
    return ServingError(Code.INVALID, f"GGUF tokenizer: {what}")
