"""What a model's files say about pooling, and what parameters change of it."""

import pytest

from backends.api.errors import Code, ServingError
from backends.pooling.description import describe, find_described
from backends.pooling.options import PoolingOptions

CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 32,
    "vocab_size": 60,
    "max_position_embeddings": 64,
}
SCORES = {**CONFIG, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}


def modules(*kinds: str) -> list[dict[str, object]]:
    return [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]


WHOLE = modules("Transformer", "Pooling", "Normalize")
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def test_without_more_files_vectors_are_means_of_length_one(write):
    found = describe(write(**{"config.json": CONFIG}), PoolingOptions())
    assert (found.task, found.pooling, found.normalize) == ("embed", "mean", True)
    assert (found.dimension, found.max_model_len, found.vocab_size, found.matryoshka) == (32, 64, 60, None)


def test_a_causal_model_is_pooled_at_the_end(write):
    config = {**CONFIG, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    assert describe(write(**{"config.json": config}), PoolingOptions()).pooling == "last"


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        (MEAN, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "cls"}, "cls"),
    ],
)
def test_sentence_transformers_files_are_obeyed(write, mode, wanted):
    files = {"config.json": CONFIG, "modules.json": WHOLE, "1_Pooling/config.json": mode}
    files["sentence_bert_config.json"] = {"max_seq_length": 48}
    found = describe(write(**files), PoolingOptions())
    assert (found.pooling, found.normalize, found.max_model_len) == (wanted, True, 48)


def test_without_a_normalize_module_lengths_stay(write):
    files = {"config.json": CONFIG, "modules.json": WHOLE[:2], "1_Pooling/config.json": MEAN}
    assert not describe(write(**files), PoolingOptions()).normalize


def test_parameters_go_before_files(write):
    folder = write(**{"config.json": CONFIG, "modules.json": WHOLE, "1_Pooling/config.json": MEAN})
    options = PoolingOptions(pooling="cls", normalize=False, max_model_len=64, matryoshka_dimensions="8,16")
    found = describe(folder, options)
    assert (found.pooling, found.normalize, found.max_model_len, found.matryoshka) == ("cls", False, 64, (8, 16, 32))


def test_positions_of_roberta_begin_behind_its_padding(write):
    config = {**CONFIG, "model_type": "roberta", "max_position_embeddings": 66, "pad_token_id": 1}
    assert describe(write(**{"config.json": config}), PoolingOptions()).max_model_len == 64


@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        ({"is_matryoshka": True}, ()),
        ({"matryoshka_dimensions": [16, 8]}, (8, 16, 32)),
        ({"is_matryoshka": False}, None),
    ],
)
def test_a_model_says_whether_its_vectors_may_be_cut(write, members, wanted):
    assert describe(write(**{"config.json": CONFIG | members}), PoolingOptions()).matryoshka == wanted


def test_the_default_prompt_of_the_files_is_found(write):
    sentence = {"prompts": {"query": "query: ", "passage": "p: "}, "default_prompt_name": "query"}
    folder = write(**{"config.json": CONFIG, "config_sentence_transformers.json": sentence})
    assert describe(folder, PoolingOptions()).prompt == "query: "


@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, "sigmoid"),
    ],
)
def test_a_classifier_of_one_label_scores(write, members, wanted):
    found = describe(write(**{"config.json": SCORES | members}), PoolingOptions())
    assert (found.task, found.dimension, found.activation) == ("score", 1, wanted)


def test_the_body_of_a_classifier_may_embed(write):
    assert describe(write(**{"config.json": SCORES}), PoolingOptions(task="embed")).task == "embed"


@pytest.mark.parametrize(
    ("files", "options", "code", "text"),
    [
        ({"config.json": CONFIG}, {"task": "score"}, Code.INVALID, "ForSequenceClassification"),
        ({"config.json": {**SCORES, "id2label": {"0": "a", "1": "b"}}}, {}, Code.UNSUPPORTED, "found 2"),
        ({"config.json": CONFIG}, {"max_model_len": 65}, Code.INVALID, "at most the model's 64 positions, got 65"),
        ({"config.json": CONFIG}, {"matryoshka_dimensions": "8,64"}, Code.INVALID, "from 1 to 32, got '8,64'"),
        ({"config.json": CONFIG}, {"matryoshka_dimensions": "all"}, Code.INVALID, "got 'all'"),
        ({"config.json": CONFIG, "modules.json": modules("Transformer", "LSTM")}, {}, Code.UNSUPPORTED, "'LSTM'"),
        ({"config.json": CONFIG, "modules.json": {}}, {}, Code.INVALID, "a list of modules"),
        (
            {"config.json": CONFIG, "modules.json": WHOLE, "1_Pooling/config.json": {"pooling_mode": "sum"}},
            {},
            Code.UNSUPPORTED,
            "got 'sum'",
        ),
        (
            {
                "config.json": CONFIG,
                "modules.json": WHOLE,
                "1_Pooling/config.json": {**MEAN, "pooling_mode_cls_token": True},
            },
            {},
            Code.UNSUPPORTED,
            "expected one of",
        ),
        ({"config.json": CONFIG, "modules.json": WHOLE}, {}, Code.NOT_FOUND, "1_Pooling/config.json: no such file"),
        (
            {"config.json": {**SCORES, "sentence_transformers": {"activation_fn": "torch.nn.Softmax"}}},
            {},
            Code.UNSUPPORTED,
            "Softmax",
        ),
        (
            {"config.json": CONFIG, "config_sentence_transformers.json": {"prompts": {}, "default_prompt_name": "q"}},
            {},
            Code.INVALID,
            "one of the prompts, got 'q'",
        ),
        ({}, {"model": "absent"}, Code.NOT_FOUND, "absent"),
    ],
)
def test_what_is_wrong_is_named(write, files, options, code, text):
    with pytest.raises(ServingError) as caught:
        find_described(write(**files), PoolingOptions(**options))
    assert caught.value.code is code
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"pooling": "sum"}, "one of cls, mean, max, last"),
        ({"normalize": "maybe"}, "true or false"),
        ({"task": "rank"}, "one of auto, embed, score"),
        ({"max_model_len": "-1"}, "a whole number"),
    ],
)
def test_a_parameter_out_of_range_is_named(parameters, text):
    with pytest.raises(ServingError, match=text):
        PoolingOptions.from_parameters(parameters, "m")
