"""The gRPC calls beside inference: health, metadata, repository control, shared memory, settings."""

from dataclasses import asdict
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from backends.api.errors import Code, ServingError
from gateway.kserve_grpc_front import Front, model_version
from gateway.kserve_http_control import unknown_load_parameter
from gateway.kserve_parameters import check_kind
from gateway.kserve_views import EXTENSIONS, index_entry, model_metadata, model_statistics, models_for_statistics


def server_live(front: Front, message: Any) -> Any:
    return pb.ServerLiveResponse(live=True)


def server_ready(front: Front, message: Any) -> Any:
    return pb.ServerReadyResponse(ready=front.service.is_server_ready())


def model_ready(front: Front, message: Any) -> Any:
    check = front.service.repository.check_ready(message.name, model_version(message.version))
    return pb.ModelReadyResponse(ready=front.run(check))


def server_metadata(front: Front, message: Any) -> Any:
    service = front.service
    return pb.ServerMetadataResponse(name=service.server_name, version=service.server_version, extensions=EXTENSIONS)


def metadata(front: Front, message: Any) -> Any:
    version = model_version(message.version)
    repository = front.service.repository
    model = repository.find(message.name, version)
    return pb.ModelMetadataResponse(
        **model_metadata(model, [version] if version else repository.versions(message.name))
    )


def config(front: Front, message: Any) -> Any:
    model = front.service.repository.find(message.name, model_version(message.version))
    return pb.ModelConfigResponse(config=front.service.config_to_proto(model.config))


def statistics(front: Front, message: Any) -> Any:
    models = models_for_statistics(front.service.repository, message.name, model_version(message.version))
    return pb.ModelStatisticsResponse(model_stats=[model_statistics(model) for model in models])


def index(front: Front, message: Any) -> Any:
    _check_repository(message)
    entries = front.service.repository.index(message.ready)
    return pb.RepositoryIndexResponse(models=[index_entry(entry) for entry in entries])


def load(front: Front, message: Any) -> Any:
    _check_repository(message)
    override: str | None = None
    files: dict[str, bytes] = {}
    for name, parameter in message.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if name == "config":
            _check_load_kind(name, kind, "string_param")
            override = parameter.string_param
        elif name.startswith("file:"):
            _check_load_kind(name, kind, "bytes_param")
            files[name] = parameter.bytes_param
        else:
            raise unknown_load_parameter(name)
    front.run(front.service.repository.load(message.model_name, override, files or None))
    return pb.RepositoryModelLoadResponse()


def unload(front: Front, message: Any) -> Any:
    _check_repository(message)
    dependents = False
    for name, parameter in message.parameters.items():
        if name == "unload_dependents":
            check_kind(name, parameter.WhichOneof("parameter_choice"), ("bool_param",))
            dependents = parameter.bool_param
    front.run(front.service.repository.unload(message.model_name, dependents))
    return pb.RepositoryModelUnloadResponse()


def _check_repository(message: Any) -> None:
    if message.repository_name:
        raise ServingError(Code.UNSUPPORTED, "'repository_name' specification is not supported")


def _check_load_kind(name: str, kind: str | None, expected: str) -> None:
    if kind != expected:
        raise ServingError(Code.INVALID, f"invalid value type for load parameter '{name}', expected {expected}.")


def system_status(front: Front, message: Any) -> Any:
    response = pb.SystemSharedMemoryStatusResponse()
    for region in front.service.system_memory.status(message.name or None):
        status = response.regions[region.name]
        status.name, status.key = region.name, region.key
        status.offset, status.byte_size = region.offset, region.byte_size
    return response


def system_register(front: Front, message: Any) -> Any:
    front.service.system_memory.register(message.name, message.key, message.offset, message.byte_size)
    return pb.SystemSharedMemoryRegisterResponse()


def system_unregister(front: Front, message: Any) -> Any:
    front.service.system_memory.unregister(message.name or None)
    return pb.SystemSharedMemoryUnregisterResponse()


def cuda_status(front: Front, message: Any) -> Any:
    front.service.cuda_memory.status(message.name or None)
    return pb.CudaSharedMemoryStatusResponse()


def cuda_register(front: Front, message: Any) -> Any:
    front.service.cuda_memory.register(message.name, message.raw_handle, message.device_id, message.byte_size)
    return pb.CudaSharedMemoryRegisterResponse()


def cuda_unregister(front: Front, message: Any) -> Any:
    front.service.cuda_memory.unregister(message.name or None)
    return pb.CudaSharedMemoryUnregisterResponse()


def trace(front: Front, message: Any) -> Any:
    service, model = front.service, message.model_name
    if model and not service.repository.versions(model):
        raise ServingError(Code.INVALID, f"Request for unknown model : {model}")
    changes = {name: _trace_value(name, list(setting.value)) for name, setting in message.settings.items()}
    settings = service.trace.update(changes, model) if changes else service.trace.get(model)
    response = pb.TraceSettingResponse()
    for name, value in asdict(settings).items():
        response.settings[name].value.extend(value if isinstance(value, tuple | list) else [value])
    return response


def _trace_value(name: str, values: list[str]) -> Any:
    """As in JSON: a list for the levels, text for the rest, None (no value) to go back to the global setting."""
    if not values:
        return None
    if name == "trace_level":
        return values
    if len(values) > 1:
        raise ServingError(Code.INVALID, f"expect only 1 value for '{name}'", param=name)
    return values[0]


_LOG_FIELDS = {
    bool: ("bool_param", "boolean"),
    int: ("uint32_param", "unsigned integer"),
    str: ("string_param", "string"),
}


def log_settings(front: Front, message: Any) -> Any:
    service = front.service
    now = asdict(service.logging.get())
    changes: dict[str, Any] = {}
    for name, setting in message.settings.items():
        kind = setting.WhichOneof("parameter_choice")
        expected, word = _LOG_FIELDS[type(now.get(name, ""))]
        if name in now and kind != expected:
            raise ServingError(Code.INVALID, f"expect {word} for '{name}'", param=name)
        changes[name] = getattr(setting, kind) if kind else None
    settings = service.logging.update(changes) if changes else service.logging.get()
    response = pb.LogSettingsResponse()
    for name, value in asdict(settings).items():
        setattr(response.settings[name], _LOG_FIELDS[type(value)][0], value)
    return response
