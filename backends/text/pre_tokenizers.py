"""How text is cut before byte-level BPE, by the name a GGUF file gives in `tokenizer.ggml.pre`.

The patterns are facts of the models: each is what the model's own tokenizer.json holds.
"""

from tokenizers import Regex, pre_tokenizers

from backends.api.errors import Code, ServingError

_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"

_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES}"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}"
)

# One regular expression alone
_PATTERNS = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "stablelm2": _QWEN2,
    "tekken": _TEKKEN,
    "gpt-4o": _GPT4O,
}
# GPT-2's own expression, which `tokenizers` has built in
_GPT2 = {"default", "gpt-2", "gpt2", "phi-2", "jais", "mpt", "olmo", "roberta-bpe"}
# every digit alone, then GPT-2's expression
_DIGITS_GPT2 = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
# names whose BPE takes a word that is a token as it is, before any merge
IGNORE_MERGES = {"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"}


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """The cutter named `name`. Raises ServingError(UNSUPPORTED) for a name not known here."""
    if name in _GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _DIGITS_GPT2:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    if name in _PATTERNS:
        split = pre_tokenizers.Split(Regex(_PATTERNS[name]), "isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    known = ", ".join(sorted(_GPT2 | _DIGITS_GPT2 | _PATTERNS.keys()))
    raise ServingError(
        Code.UNSUPPORTED,
        f"GGUF tokenizer: tokenizer.ggml.pre is '{name}', which is not known here; known are: {known}",
    )
