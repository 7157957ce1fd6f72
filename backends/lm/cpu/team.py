"""A team of threads that runs tapes: lists of tasks, each finished before the next begins.

A task is a compiled function `task(args address, item) -> int`. Asked for item -1 it says how many items it has;
its items may then run in any order on any thread. The caller's thread leads: it publishes one task after the
other, works on it like everybody else, and goes on when all items are done. It never waits for a thread that
holds no item, so a helper that is asleep or has lost its processor to a busy neighbour (the gateway) slows
nothing down. A task of one item stays on the leader and costs no synchronisation at all.

A whole decoder step can be one tape, and then costs Python one call. Helpers wait for work by spinning briefly,
then sleep in the kernel (futex): an idle team costs nothing.

One team is used by one caller at a time.
"""

import ctypes
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import cfunc, njit, types

from backends.lm.cpu.memory import (
    aligned,
    atomic_add,
    atomic_load,
    atomic_store,
    call_task,
    compare_and_swap,
    load_int,
    pause,
)

# Byte offsets in the team's memory. What different threads write lies on different cache lines.
_OFFER = 0  # number of the offer << 20 | items nobody has taken; whoever lowers it owns that item
_DONE = 128  # finished items of the offer
_SLEEPERS = 256  # helpers that are, or are about to be, asleep
_TASK = 384  # address of the tape entry on offer; steady while anybody holds one of its items
_STOP = 392
_NUM_THREADS = 400
_SIZE = 512

_ENTRY_SIZE = 16  # bytes of a tape's entry: the addresses of a task and of its arguments

_ITEM_BITS = 20
_ITEM_MASK = (1 << _ITEM_BITS) - 1
_COUNT = -1  # the item that asks a task for its number of items

# One pause is about 20 ns on Zen 4.
_SPINS_BEFORE_SLEEP = 5_000  # longer than the Python between two calls of one step
_SPINS_BEFORE_YIELD = 1_000

_FUTEX = 202  # x86-64 system call number
_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129
_syscall = types.ExternalFunction("syscall", types.intp(*[types.intp] * 5))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())

TASK_SIGNATURE = types.intp(types.intp, types.intp)


@njit(types.boolean(types.intp), cache=True, nogil=True)
def _work_on_offer(team: int) -> bool:
    """Take and do items of the current offer until none is left; whether there was any."""
    worked = False
    while True:
        offer = atomic_load(team + _OFFER)
        left = offer & _ITEM_MASK
        if left == 0:
            return worked
        if compare_and_swap(team + _OFFER, offer, offer - 1):
            entry = load_int(team + _TASK)
            call_task(load_int(entry), load_int(entry + 8), left - 1)
            atomic_add(team + _DONE, 1)
            worked = True


@njit(types.void(types.intp, types.intp, types.intp), cache=True, nogil=True)
def _run_together(team: int, entry: int, count: int) -> None:
    atomic_store(team + _DONE, 0)
    atomic_store(team + _TASK, entry)
    number = (atomic_load(team + _OFFER) >> _ITEM_BITS) + 1
    atomic_store(team + _OFFER, (number << _ITEM_BITS) | count)
    if atomic_load(team + _SLEEPERS) > 0:
        _syscall(_FUTEX, team + _OFFER, _FUTEX_WAKE_PRIVATE, 0x7FFFFFFF, 0)
    _work_on_offer(team)
    spins = 0
    while atomic_load(team + _DONE) < count:
        spins += 1
        if spins < _SPINS_BEFORE_YIELD:
            pause()
        else:
            _sched_yield()


@cfunc(types.void(types.intp, types.intp, types.intp), cache=True)
def _lead(team: int, tape: int, length: int) -> None:
    """Run `length` entries (task address, args address) from address `tape` on."""
    alone = load_int(team + _NUM_THREADS) == 1
    for entry in range(tape, tape + _ENTRY_SIZE * length, _ENTRY_SIZE):
        task, args = load_int(entry), load_int(entry + 8)
        count = call_task(task, args, _COUNT)
        if alone or count == 1:
            for item in range(count):
                call_task(task, args, item)
        elif count > 0:
            _run_together(team, entry, count)


@njit(types.void(types.intp), cache=True, nogil=True)
def _sleep(team: int) -> None:
    """Sleep until the next offer. The kernel looks at the offer once more, so none is missed."""
    atomic_add(team + _SLEEPERS, 1)
    offer = atomic_load(team + _OFFER)
    if offer & _ITEM_MASK == 0 and atomic_load(team + _STOP) == 0:
        _syscall(_FUTEX, team + _OFFER, _FUTEX_WAIT_PRIVATE, offer & 0xFFFFFFFF, 0)
    atomic_add(team + _SLEEPERS, -1)


@cfunc(types.void(types.intp), cache=True)
def _help(team: int) -> None:
    """A helper's life, until the team is stopped."""
    spins = 0
    while atomic_load(team + _STOP) == 0:
        if _work_on_offer(team):
            spins = 0
        elif spins < _SPINS_BEFORE_SLEEP:
            spins += 1
            pause()
        else:
            _sleep(team)
            spins = 0


@cfunc(types.void(types.intp), cache=True)
def _stop(team: int) -> None:
    atomic_store(team + _STOP, 1)
    atomic_add(team + _OFFER, 1 << _ITEM_BITS)  # a new offer of nothing: whoever falls asleep now wakes at once
    _syscall(_FUTEX, team + _OFFER, _FUTEX_WAKE_PRIVATE, 0x7FFFFFFF, 0)


def _c_function(compiled: Any, num_args: int) -> Any:
    """A compiled function as Python calls it: without the GIL."""
    return ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * num_args)(compiled.address)


class Tape:
    """A list of (compiled task, its arguments), fixed in memory. Arguments may be rewritten between runs."""

    def __init__(self, entries: "Sequence[tuple[Any, np.ndarray]]") -> None:
        self.entries = list(entries)  # keeps tasks and arguments alive
        self._memory = np.array([[task.address, args.ctypes.data] for task, args in entries], dtype=np.int64)
        self.address = self._memory.ctypes.data
        self.length = len(self.entries)


class Team:
    """`num_threads` threads, the caller's among them. Its helpers end with `close`, or when nobody holds it."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._memory = aligned(_SIZE // 8, np.int64)
        self._memory[_NUM_THREADS // 8] = num_threads
        self._address = self._memory.ctypes.data
        self._lead = _c_function(_lead, 3)
        self._helpers = [
            threading.Thread(target=_be_helper, args=(self._memory,), name=f"lm-compute-{index}", daemon=True)
            for index in range(1, num_threads)
        ]
        for helper in self._helpers:
            helper.start()
        self._end = weakref.finalize(self, _end_helpers, self._memory)

    def run(self, tape: Tape, first: int = 0, end: int | None = None) -> None:
        """Return when all tasks of `tape`, or those from `first` to before `end`, are done in order. Releases the GIL."""
        end = tape.length if end is None else end
        self._lead(self._address, tape.address + _ENTRY_SIZE * first, end - first)

    @property
    def num_asleep(self) -> int:
        """Helpers that have given up waiting for work, as of just now."""
        return int(self._memory[_SLEEPERS // 8])

    def close(self) -> None:
        """End the helpers; what runs afterwards runs on the caller's thread alone."""
        self._end()
        for helper in self._helpers:
            helper.join()
        self._helpers.clear()


def _be_helper(memory: np.ndarray) -> None:
    """A helper's thread. Holds the team's memory, which may outlive the team itself by a moment."""
    _c_function(_help, 1)(memory.ctypes.data)


def _end_helpers(memory: np.ndarray) -> None:
    memory[_NUM_THREADS // 8] = 1
    _c_function(_stop, 1)(memory.ctypes.data)
