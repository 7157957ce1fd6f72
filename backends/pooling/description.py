"""What a folder's files say about a pooling model: config.json, and sentence-transformers' own files. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.api.errors import Code, ServingError
from backends.lm.config_hf import read_any_json, read_json
from backends.lm.fields import Fields
from backends.lm.location import find_model
from backends.pooling.options import PoolingOptions

# sentence-transformers' name -> ours
_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_OTHER_POOLINGS = ("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens")
_NEWER_POOLINGS = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "identity"}
# families that count positions from the padding token's number on
_PADDED_POSITIONS = frozenset({"roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl", "data2vec-text"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A pooling model. `task` is "embed" or "score".

    `pooling` is cls, mean, max or last; `dimension` the length of its vectors, 1 for scores. `matryoshka`: the lengths
    they may be cut to, None for none, empty for any. `activation` (sigmoid or identity) makes a score of a logit.
    `dense` are folders of layers that a text's vector goes through before it is normalized. `prompt` stands before every
    text that is embedded.
    """

    folder: Path
    task: str
    pooling: str
    normalize: bool
    max_model_len: int
    dimension: int
    vocab_size: int
    matryoshka: tuple[int, ...] | None = None
    dense: tuple[Path, ...] = ()
    activation: str = "sigmoid"
    prompt: str = ""


def find_described(base: Path, options: PoolingOptions) -> Description:
    """The model that `options.model` names, relative to `base`. Raises ServingError as `find_model` and `describe`."""
    path = find_model(options.model, base)
    if path.is_file():
        raise ServingError(
            Code.UNSUPPORTED, f"{path}: expected a folder with config.json and safetensors, got a GGUF file"
        )
    return describe(path, options)


def describe(folder: Path, options: PoolingOptions) -> Description:
    """`options` go before what the files say.

    Raises ServingError: INVALID for files that make no sense, UNSUPPORTED for what is not computed here.
    """
    config = Fields(read_json(folder / "config.json"), str(folder / "config.json"))
    is_score = _is_score(config, options.task)
    modules = _modules(folder)
    prompt = "" if is_score else _prompt(folder)
    pooling, hidden = _pooling(folder, modules, prompt), _text_fields(config).integer(_hidden_name(config))
    dense = () if is_score else tuple(folder / path for kind, path in modules if kind == "Dense")
    dimension = _dense_width(dense[-1]) if dense else hidden
    if not is_score and pooling is None:
        pooling = "last" if _architecture(config).endswith("ForCausalLM") else "mean"
    return Description(
        folder=folder,
        task="score" if is_score else "embed",
        pooling=options.pooling or pooling or "cls",
        normalize=options.normalize if options.normalize is not None else not modules or "Normalize" in dict(modules),
        max_model_len=_length(folder, config, options.max_model_len),
        dimension=1 if is_score else dimension,
        vocab_size=_text_fields(config).integer("vocab_size"),
        matryoshka=_matryoshka(config, options.matryoshka_dimensions, dimension),
        dense=dense,
        activation=_activation(config),
        prompt=prompt,
    )


def _is_score(config: Fields, task: str) -> bool:
    is_classifier = _architecture(config).endswith("ForSequenceClassification")
    if task == "score" and not is_classifier:
        raise config.error("architectures", "a ...ForSequenceClassification for task 'score'")
    if not is_classifier or task == "embed":
        return False
    labels = len(config.section("id2label").values) or config.integer("num_labels", 2)
    if labels != 1:
        name = "id2label" if "id2label" in config else "num_labels"
        raise config.error(name, f"one label, which is the score (found {labels})", Code.UNSUPPORTED)
    return True


def _architecture(config: Fields) -> str:
    names = config.values.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _text_fields(config: Fields) -> Fields:
    """Where a model of several kinds of input keeps what concerns text."""
    return config.section("text_config") if "text_config" in config else config


def _hidden_name(config: Fields) -> str:
    fields = _text_fields(config)
    return next((name for name in ("hidden_size", "dim", "d_model", "n_embd") if name in fields), "hidden_size")


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each step, as sentence-transformers lists them; [] without a list."""
    path = folder / "modules.json"
    if not path.exists():
        return []
    found = []
    entries = read_any_json(path)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ServingError(Code.INVALID, f"{path}: expected a list of modules")
    for entry in entries:
        kind = str(entry.get("type", "")).rpartition(".")[2]
        if kind not in _MODULES:
            raise ServingError(Code.UNSUPPORTED, f"{path}: expected modules {', '.join(_MODULES)}, got {kind!r}")
        found.append((kind, str(entry.get("path", ""))))
    return found


def _dense_width(folder: Path) -> int:
    return Fields(read_json(folder / "config.json"), str(folder / "config.json")).integer("out_features")


def _pooling(folder: Path, modules: Sequence[tuple[str, str]], prompt: str) -> str | None:
    place = dict(modules).get("Pooling")
    if place is None:
        return None
    path = folder / place / "config.json"
    fields = Fields(read_json(path), str(path))
    if prompt and not fields.flag("include_prompt", default=True):
        raise fields.error("include_prompt", "true beside a default prompt", Code.UNSUPPORTED)
    if "pooling_mode" in fields:
        mode = _NEWER_POOLINGS.get(fields.text("pooling_mode"))
        if mode is None:
            raise fields.error("pooling_mode", f"one of {', '.join(_NEWER_POOLINGS)}", Code.UNSUPPORTED)
        return mode
    chosen = [name for name in (*_POOLINGS, *_OTHER_POOLINGS) if fields.flag(name, default=False)]
    if len(chosen) != 1 or chosen[0] not in _POOLINGS:
        known = ", ".join(_POOLINGS)
        raise ServingError(Code.UNSUPPORTED, f"{path}: expected one of {known} to be true, got {chosen or 'none'}")
    return _POOLINGS[chosen[0]]


def _length(folder: Path, config: Fields, asked: int) -> int:
    """What sentence-transformers cuts texts to, within the positions that the model has."""
    fields = _text_fields(config)
    positions = fields.integer("max_position_embeddings", fields.integer("n_positions", 1 << 20))
    if fields.values.get("model_type") in _PADDED_POSITIONS:
        positions -= fields.integer("pad_token_id", 1, minimum=0) + 1
    if asked > positions:
        raise ServingError(
            Code.INVALID,
            f"parameter 'max_model_len': expected at most the model's {positions} positions, got {asked}",
            param="max_model_len",
        )
    sentence = _read_optional(folder / "sentence_bert_config.json")
    return asked or min(positions, Fields(sentence, "sentence_bert_config.json").integer("max_seq_length", positions))


def _matryoshka(config: Fields, asked: str, hidden: int) -> tuple[int, ...] | None:
    if asked == "any":
        return ()
    if asked:
        try:
            lengths: Any = [int(part) for part in asked.split(",")]
        except ValueError:
            lengths = None
    else:
        lengths = config.values.get("matryoshka_dimensions")
        if lengths is None:
            return () if config.flag("is_matryoshka", default=False) else None
    if not isinstance(lengths, list) or not all(isinstance(n, int) and 0 < n <= hidden for n in lengths):
        raise ServingError(
            Code.INVALID,
            f"'matryoshka_dimensions': expected lengths from 1 to {hidden}, got {asked or lengths!r}",
            param="matryoshka_dimensions",
        )
    return tuple(sorted({*lengths, hidden}))


def _activation(config: Fields) -> str:
    newer = config.section("sentence_transformers").values.get("activation_fn")
    name = newer or config.values.get("sbert_ce_default_activation_function") or "Sigmoid"
    activation = _ACTIVATIONS.get(str(name).rpartition(".")[2])
    if activation is None:
        raise ServingError(
            Code.UNSUPPORTED, f"{config.where}: expected a score's activation Sigmoid or Identity, got {name!r}"
        )
    return activation


def _prompt(folder: Path) -> str:
    """The one that sentence-transformers puts before every text."""
    path = folder / "config_sentence_transformers.json"
    sentence = _read_optional(path)
    name = sentence.get("default_prompt_name")
    prompts = sentence.get("prompts")
    if name is None or not isinstance(prompts, dict):
        return ""
    if not isinstance(prompts.get(name), str):
        raise ServingError(
            Code.INVALID, f"{path}: field 'default_prompt_name': expected one of the prompts, got {name!r}"
        )
    return str(prompts[name])


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
