import pytest

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from openai_api.catalog import Catalog
from openai_api.errors import wire_error
from tests.unit.openai_api.face import Repository
from tests.unit.openai_api.scripted import ScriptedModel, says


class TensorModel:
    """A live model that generates no text."""

    def __init__(self, name, parameters=None):
        self.config = ModelConfig(name=name, backend="python", parameters=parameters or {})
        self.version = "1"

    def infer(self, request): ...

    async def close(self): ...


def catalog(*models):
    repository = Repository(*models)
    return Catalog(repository.find, repository.list, created=7)


def test_text_models_are_listed_with_what_clients_need():
    cards = catalog(ScriptedModel(says("")), TensorModel("resnet")).cards()
    assert cards == {
        "object": "list",
        "data": [
            {
                "id": "chat",
                "object": "model",
                "created": 7,
                "owned_by": "tidegate",
                "root": "chat",
                "parent": None,
                "max_model_len": 4096,
                "permission": [],
                "task": "generate",
            }
        ],
    }


def test_a_model_whose_engine_restarts_is_not_listed_until_it_is_back():
    model, other = ScriptedModel(says("")), ScriptedModel(says(""), name="other")
    found = catalog(model, other)
    model.is_ready = False
    assert [card["id"] for card in found.cards()["data"]] == ["other"]
    with pytest.raises(ServingError) as caught:
        found.card("chat")
    assert wire_error(caught.value)[::2] == (503, "model_not_ready")
    model.is_ready = True
    assert [card["id"] for card in found.cards()["data"]] == ["chat", "other"]
    assert found.card("chat")["id"] == "chat"


def test_the_only_model_may_be_left_out_while_it_restarts_too():
    model = ScriptedModel(says(""), is_ready=False)
    assert catalog(model).text_model("") == ("chat", model)


def test_each_of_several_versions_has_an_id():
    one, two = (ScriptedModel(says(""), version=version) for version in ("1", "10"))
    found = catalog(one, two)
    assert [card["id"] for card in found.cards()["data"]] == ["chat", "chat:1", "chat:10"]
    assert found.text_model("chat") == ("chat", two)
    assert found.text_model("chat:1") == ("chat:1", one)


def test_a_name_with_a_colon_or_slash_is_a_name():
    model = ScriptedModel(says(""), name="org/model:1b")
    assert catalog(model).text_model("org/model:1b") == ("org/model:1b", model)
    assert catalog(model).text_model("org/model:1b:1") == ("org/model:1b:1", model)


def test_the_model_may_be_left_out_where_there_is_only_one():
    one, other = ScriptedModel(says("")), ScriptedModel(says(""), name="other")
    talker = TensorModel("talker", {"openai": "chat"})
    assert catalog(one, TensorModel("resnet"), talker).text_model("") == ("chat", one)
    assert catalog(TensorModel("resnet"), talker).tensor_model("") == ("talker", talker)
    with pytest.raises(ServingError) as caught:
        catalog(one, other).text_model("")
    with pytest.raises(ServingError, match="several models"):
        catalog(one, talker).tensor_model("")
    assert (caught.value.reason, caught.value.param) == ("missing_required_parameter", "model")


@pytest.mark.parametrize("name", ["nope", "chat:2", "chat:x", ":", "chat:"])
def test_an_unknown_id_is_not_found(name):
    with pytest.raises(ServingError) as caught:
        catalog(ScriptedModel(says(""))).text_model(name)
    assert (caught.value.code, caught.value.reason, caught.value.param) == (Code.NOT_FOUND, "model_not_found", "model")


def test_a_tensor_model_cannot_chat():
    with pytest.raises(ServingError) as caught:
        catalog(TensorModel("resnet")).text_model("resnet")
    assert caught.value.reason == "unsupported_endpoint"


@pytest.mark.parametrize(
    ("reason", "said"), [("loading", "model_loading"), (None, "model_not_ready"), ("stopping", "shutting_down")]
)
def test_a_model_that_is_not_ready_is_worth_another_try(reason, said):
    def find(name, version):
        raise ServingError(Code.UNAVAILABLE, "not at ready state", reason=reason, retry_after=3)

    with pytest.raises(ServingError) as caught:
        Catalog(find, list, 0).text_model("chat")
    assert (wire_error(caught.value).code, caught.value.param, caught.value.retry_after) == (said, "model", 3)
