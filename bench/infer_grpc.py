"""gRPC load: ready-made bytes, answers left as bytes, clients spread over a few channels."""

import asyncio
from typing import Any

import grpc
import grpc.aio

from bench.infer_requests import Body, Target

_SERVICE = "/inference.GRPCInferenceService/"
_MAX_CHANNELS = 4
_ERROR_FIRST = b"\x0a"  # ModelStreamInferResponse.error_message is field 1: an answer with one starts with its tag


class Channels:
    """Up to four connections, each with its own socket; clients take turns on them."""

    def __init__(self, target: Target, clients: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self._channels = [
            grpc.aio.insecure_channel(target.grpc, options=options) for _ in range(min(clients, _MAX_CHANNELS))
        ]

    def connection(self, index: int, body: Body, *, stream: bool) -> "UnaryConnection | StreamConnection":
        channel = self._channels[index % len(self._channels)]
        return StreamConnection(channel, body.content) if stream else UnaryConnection(channel, body.content)

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels))


class UnaryConnection:
    def __init__(self, channel: Any, content: bytes) -> None:
        self._infer = channel.unary_unary(f"{_SERVICE}ModelInfer")
        self._content = content

    async def call(self) -> str:
        try:
            await self._infer(self._content)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return ""

    async def close(self) -> None:
        """The channel is shared."""


class StreamConnection:
    """One ModelStreamInfer call that lives as long as the client."""

    def __init__(self, channel: Any, content: bytes) -> None:
        self._call = channel.stream_stream(f"{_SERVICE}ModelStreamInfer")()
        self._content = content

    async def call(self) -> str:
        try:
            await self._call.write(self._content)
            answer = await self._call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            return f"the stream ended: {error}"
        if answer is grpc.aio.EOF:
            return "the stream ended"
        return "an error message" if answer[:1] == _ERROR_FIRST else ""

    async def close(self) -> None:
        self._call.cancel()
