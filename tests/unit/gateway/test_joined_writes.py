import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.joined_writes import JoinedWrites, TurnEnd


class Wire(asyncio.Transport):
    """Keeps each piece that would be one system call."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.pieces: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.pieces.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


async def test_head_and_body_written_in_one_turn_leave_together() -> None:
    wire = Wire()
    transport = JoinedWrites(wire, asyncio.get_running_loop(), TurnEnd())
    transport.write(b"head")
    transport.write(b"body")
    await asyncio.sleep(0)
    assert wire.pieces == [b"headbody"]


async def test_a_large_piece_does_not_wait_so_that_the_writer_can_be_held_back() -> None:
    wire = Wire()
    transport = JoinedWrites(wire, asyncio.get_running_loop(), TurnEnd())
    transport.write(b"head")
    transport.write(bytes(100_000))
    assert wire.pieces == [b"head" + bytes(100_000)]


async def test_closing_sends_what_was_written_before() -> None:
    wire = Wire()
    transport = JoinedWrites(wire, asyncio.get_running_loop(), TurnEnd())
    transport.write(b"last words")
    transport.close()
    await asyncio.sleep(0)
    assert wire.pieces == [b"last words"]
    assert wire.is_closed


async def test_what_is_held_for_a_client_who_leaves_is_let_go() -> None:
    wire = Wire()
    transport = JoinedWrites(wire, asyncio.get_running_loop(), TurnEnd())
    transport.write(b"too late")
    wire.close()
    await asyncio.sleep(0)
    transport.write_whole(b"later still")
    assert wire.pieces == []


@given(st.lists(st.one_of(st.binary(max_size=40_000), st.none()), max_size=12))
def test_every_byte_leaves_once_and_in_order(steps: list[bytes | None]) -> None:
    async def run() -> Wire:
        wire = Wire()
        transport = JoinedWrites(wire, asyncio.get_running_loop(), TurnEnd())
        for step in steps:
            if step is None:
                await asyncio.sleep(0)
            else:
                transport.write(step)
        await asyncio.sleep(0)
        return wire

    assert b"".join(asyncio.run(run()).pieces) == b"".join(step for step in steps if step is not None)


async def test_everything_else_is_the_transports_own() -> None:
    transport = JoinedWrites(Wire(), asyncio.get_running_loop(), TurnEnd())
    assert transport.get_extra_info("peername") == ("127.0.0.1", 1)


async def test_a_connection_that_fails_does_not_hold_up_the_others() -> None:
    class Broken(Wire):
        def write(self, data: Any) -> None:
            raise RuntimeError("the connection is gone")

    turn_end, wire = TurnEnd(), Wire()
    for each in (Broken(), wire):
        JoinedWrites(each, asyncio.get_running_loop(), turn_end).write(b"news")
    await asyncio.sleep(0)
    assert wire.pieces == [b"news"]
