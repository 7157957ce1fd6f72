"""A request handed to its model."""

import pytest

from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.api.request import InferenceRequest
from gateway.kserve_service import CLOSING, Service, submit
from tests.fakes.kserve import Behaviour, FakeModel, FakeRepository, boom


def closing(model: FakeModel, request: InferenceRequest) -> None:
    raise ServingError(Code.UNAVAILABLE, "closing", reason=CLOSING)


@pytest.mark.parametrize(("behaviour", "version"), [(boom, "3"), (closing, "4")])
def test_a_request_keeps_which_version_took_it(behaviour: Behaviour, version: str) -> None:
    repository = FakeRepository()
    found, newer = (FakeModel(ModelConfig("m"), each, name) for each, name in ((behaviour, "3"), (boom, "4")))
    repository.add(found, newer)
    request = InferenceRequest("m", "", [])
    submit(Service(repository, dict, dict), found, request)
    with pytest.raises(ServingError, match="boom"):
        request.stream.get()
    assert (request.taken_by, request.version) == (version, "")
