"""The response cache in a Redis server, shared by several gateways. The `redis` package is imported on use."""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from backends.api.errors import Code, ServingError
from backends.api.tensor import NUMPY_DTYPES, Tensor

_LOG = logging.getLogger(__name__)
_Packed = tuple[str, str, tuple[int, ...], bytes | list[bytes]]
_DECODER = msgspec.msgpack.Decoder(list[_Packed])
_PREFIX = b"tidegate:"


class RedisClient(Protocol):
    """The part of `redis.Redis` we use."""

    def get(self, name: bytes) -> bytes | None: ...
    def set(self, name: bytes, value: bytes) -> object: ...
    def close(self) -> None: ...


class RedisCache:
    """A `ResponseCache` in Redis, whose own maxmemory policy bounds it. A server that is away means misses."""

    may_block = True

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    def get(self, key: bytes) -> list[Tensor] | None:
        try:
            packed = self._client.get(_PREFIX + key)
            return None if packed is None else [_unpack(item) for item in _DECODER.decode(packed)]
        except Exception as error:  # the network, or a value somebody else wrote
            _LOG.warning("response cache: look-up in Redis failed: %s", error)
            return None

    def close(self) -> None:
        self._client.close()

    def put(self, key: bytes, outputs: Sequence[Tensor]) -> None:
        try:
            self._client.set(_PREFIX + key, msgspec.msgpack.encode([_pack(tensor) for tensor in outputs]))
        except Exception as error:
            _LOG.warning("response cache: insertion in Redis failed: %s", error)


def connect(host: str, port: int, user: str | None = None, password: str | None = None) -> RedisCache:
    """A cache in the Redis server at `host`. Raises ServingError(UNAVAILABLE) without the `redis` package."""
    try:
        from redis import Redis  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ServingError(
            Code.UNAVAILABLE, "response cache 'redis' needs the package 'redis', which is not installed"
        ) from error
    # RESP2, which servers of every age speak
    client: Any = Redis(host=host, port=port, username=user, password=password, socket_timeout=1.0, protocol=2)
    return RedisCache(client)


def _pack(tensor: Tensor) -> _Packed:
    data = tensor.data if isinstance(tensor.data, list) else np.ascontiguousarray(tensor.data).tobytes()
    return tensor.name, tensor.datatype, tensor.shape, data


def _unpack(packed: _Packed) -> Tensor:
    name, datatype, shape, data = packed
    if isinstance(data, list):
        return Tensor(name, datatype, shape, data)
    return Tensor(name, datatype, shape, np.frombuffer(data, NUMPY_DTYPES[datatype]).reshape(shape))
