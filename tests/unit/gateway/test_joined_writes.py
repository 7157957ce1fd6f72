import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.joined_writes import JoinedWrites


class Wire(asyncio.Transport):
    """Keeps each piece that would be one system call."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.pieces: list[bytes] = []
        self.is_closed = False

    def writelines(self, list_of_data: Any) -> None:
        assert not self.is_closed
        self.pieces.append(b"".join(list_of_data))

    def close(self) -> None:
        self.is_closed = True


async def test_head_and_body_written_in_one_turn_leave_together() -> None:
    wire = Wire()
    transport = JoinedWrites(wire, asyncio.get_running_loop())
    transport.write(b"head")
    transport.write(b"body")
    await asyncio.sleep(0)
    assert wire.pieces == [b"headbody"]


async def test_a_large_piece_does_not_wait_so_that_the_writer_can_be_held_back() -> None:
    wire = Wire()
    transport = JoinedWrites(wire, asyncio.get_running_loop())
    transport.write(b"head")
    transport.write(bytes(100_000))
    assert wire.pieces == [b"head" + bytes(100_000)]


async def test_closing_sends_what_was_written_before() -> None:
    wire = Wire()
    transport = JoinedWrites(wire, asyncio.get_running_loop())
    transport.write(b"last words")
    transport.close()
    await asyncio.sleep(0)
    assert wire.pieces == [b"last words"]
    assert wire.is_closed


@given(st.lists(st.one_of(st.binary(max_size=40_000), st.none()), max_size=12))
def test_every_byte_leaves_once_and_in_order(steps: list[bytes | None]) -> None:
    async def run() -> Wire:
        wire = Wire()
        transport = JoinedWrites(wire, asyncio.get_running_loop())
        for step in steps:
            if step is None:
                await asyncio.sleep(0)
            else:
                transport.write(step)
        await asyncio.sleep(0)
        return wire

    assert b"".join(asyncio.run(run()).pieces) == b"".join(step for step in steps if step is not None)


async def test_everything_else_is_the_transports_own() -> None:
    transport = JoinedWrites(Wire(), asyncio.get_running_loop())
    assert transport.get_extra_info("peername") == ("127.0.0.1", 1)
