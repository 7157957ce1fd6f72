"""httptools' parser for a server that changes to no other protocol."""

from collections.abc import Iterable
from typing import Any

import httptools

_DROPPED = frozenset({b"upgrade", b"http2-settings"})


class Parser:
    """Reads a request that asks for an upgrade as if it had not asked (RFC 9110, section 7.8), its body included.

    For that its head is parsed twice: `ignores_upgrade` is true the first time, when the callbacks mean nothing.
    `protocol` has httptools' callbacks, and the last head in `url` and `headers`.
    """

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._renew()

    @property
    def ignores_upgrade(self) -> bool:
        return self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT"

    def should_upgrade(self) -> bool:
        return False

    def feed_data(self, data: bytes) -> None:
        """Raises what httptools' own does, HttpParserUpgrade for CONNECT alone."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self.ignores_upgrade:
                raise
            head, rest = self._head_without_upgrade(), data[upgrade.args[0] :]
            self._renew()
            self._parser.feed_data(head)
            if rest:
                self.feed_data(rest)

    def _renew(self) -> None:
        parser = self._parser = httptools.HttpRequestParser(self._protocol)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does, for pipelined requests
        self.get_method = parser.get_method
        self.get_http_version = parser.get_http_version
        self.should_keep_alive = parser.should_keep_alive

    def _head_without_upgrade(self) -> bytes:
        parser, protocol = self._parser, self._protocol
        first = b"%b %b HTTP/%b" % (parser.get_method(), protocol.url, parser.get_http_version().encode())
        return b"\r\n".join([first, *_kept(protocol.headers), b"", b""])


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[bytes]:
    for name, value in headers:
        if name == b"connection":
            tokens = [token for token in value.split(b",") if token.strip().lower() not in _DROPPED]
            if tokens:
                yield b"connection: " + b",".join(tokens)
        elif name not in _DROPPED:
            yield name + b": " + value
