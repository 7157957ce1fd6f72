"""Which models this face serves, under which ids: `name`, or `name:version` for one version of several."""

from collections.abc import Callable, Sequence

from backends.api.base import LiveModel, is_ready
from backends.api.errors import Code, ServingError
from openai_api.errors import invalid, unsupported
from openai_api.model import PoolingTextModel, TextModel, is_pooling_model, is_text_model, speaks_in_tensors

Find = Callable[[str, str], LiveModel]
"""(name, version or "") -> the model that serves it now. Raises ServingError."""
ListModels = Callable[[], Sequence[LiveModel]]
"""The models that are live, among them those that take no requests for the moment."""


class Catalog:
    """Answers by the repository's state of the moment; keeps none of its own but `created`, in Unix seconds."""

    def __init__(self, find: Find, list_models: ListModels, created: int) -> None:
        self._find = find
        self._list = list_models
        self._created = created

    def text_model(self, model_id: str) -> tuple[str, TextModel]:
        """The id to answer under and the model; "" is the only text model there is.

        Raises ServingError: model_not_found, or UNAVAILABLE while it loads.
        """
        if not model_id:
            model_id = self._only_one(is_text_model)
        model = self._live(model_id)
        if not is_text_model(model):
            raise unsupported("model", f"the model '{model_id}' does not generate text", "unsupported_endpoint")
        return model_id, model

    def tensor_model(self, model_id: str) -> tuple[str, LiveModel] | None:
        """The same for a model that chats in tensors; None for any other. "" is the only model of both kinds.

        Raises ServingError as `text_model`.
        """
        model_id = model_id or self._only_one(_chats)
        model = self._live(model_id)
        return (model_id, model) if speaks_in_tensors(model) else None

    def pooling_model(self, model_id: str, task: str = "") -> tuple[str, PoolingTextModel]:
        """The same for a model that makes vectors or scores of texts; `task` is what it must do, "" for any."""
        model_id = model_id or self._only_one(is_pooling_model)
        model = self._live(model_id)
        if not is_pooling_model(model):
            raise unsupported("model", f"the model '{model_id}' makes no embeddings", "unsupported_endpoint")
        if task not in ("", model.description.task):
            text = f"the model '{model_id}' scores pairs of texts and makes no embeddings: ask /v1/rerank or /v1/score"
            raise unsupported("model", text, "unsupported_endpoint")
        return model_id, model

    def text_models(self) -> list[TextModel]:
        """Every version that is ready."""
        return [model for model in self._list() if is_text_model(model)]

    def cards(self) -> dict[str, object]:
        """The list of what takes requests now: an engine that restarts is left out until it is back."""
        ready = {model_id: model for model_id, model in self._ids().items() if is_ready(model)}
        return {"object": "list", "data": [self._card(model_id, model) for model_id, model in ready.items()]}

    def card(self, model_id: str) -> dict[str, object]:
        """The model object of one id. Raises ServingError as `text_model`."""
        model = self._live(model_id)
        if not (_chats(model) or is_pooling_model(model)):
            raise unsupported("model", f"the model '{model_id}' speaks no text", "unsupported_endpoint")
        if not is_ready(model):
            raise ServingError(
                Code.UNAVAILABLE, f"the model '{model_id}' is not ready for the moment", param="model", retry_after=1.0
            )
        return self._card(model_id, model)

    def _only_one(self, is_wanted: Callable[[LiveModel], bool]) -> str:
        names = {model.config.name for model in self._ids().values() if is_wanted(model)}
        if not names:
            raise ServingError(
                Code.NOT_FOUND, "there is no model here for this endpoint", param="model", reason="model_not_found"
            )
        if len(names) > 1:
            raise invalid("missing_required_parameter", "model", "'model' is required: this server has several models")
        return names.pop()

    def _live(self, model_id: str) -> LiveModel:
        """The model called `model_id` or, when there is none, the version named after its last colon."""
        try:
            return self._find(model_id, "")
        except ServingError as error:
            name, colon, version = model_id.rpartition(":")
            if error.code is not Code.NOT_FOUND or not (colon and version.isdigit()):
                raise _unavailable(error, model_id) from None
        try:
            return self._find(name, version)
        except ServingError as error:
            raise _unavailable(error, model_id) from None

    def _ids(self) -> dict[str, LiveModel]:
        """Every id of every model that speaks text: the bare name, and each version where there are several."""
        ids: dict[str, LiveModel] = {}
        by_name: dict[str, list[LiveModel]] = {}
        for model in self._list():
            if _chats(model) or is_pooling_model(model):
                by_name.setdefault(model.config.name, []).append(model)
        for name, versions in sorted(by_name.items()):
            ids[name] = max(versions, key=lambda model: int(model.version))
            if len(versions) > 1:
                ids |= {f"{name}:{model.version}": model for model in versions}
        return ids

    def _card(self, model_id: str, model: LiveModel) -> dict[str, object]:
        return {
            "id": model_id,
            "object": "model",
            "created": self._created,
            "owned_by": "tidegate",
            "root": model.config.name,
            "parent": None,
            "max_model_len": model.max_model_len if is_text_model(model) or is_pooling_model(model) else None,
            "permission": [],
            "task": model.description.task if is_pooling_model(model) else "generate",
        }


def _chats(model: LiveModel) -> bool:
    return is_text_model(model) or speaks_in_tensors(model)


def _unavailable(error: ServingError, model_id: str) -> ServingError:
    """The repository's error in this face's words."""
    if error.code is Code.NOT_FOUND:
        message = f"The model '{model_id[:200]}' does not exist or is not served here."
        return ServingError(Code.NOT_FOUND, message, param="model", reason="model_not_found")
    if error.code is Code.UNAVAILABLE:
        return ServingError(
            error.code, error.message, param="model", reason=error.reason, retry_after=error.retry_after
        )
    return error
