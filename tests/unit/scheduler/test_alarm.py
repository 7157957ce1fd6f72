import threading
import time

from scheduler.alarm import Alarm

PATIENCE = 20.0


def test_callbacks_are_called_at_their_time_the_earliest_first():
    alarm, seen, done = Alarm(), [], threading.Event()
    now = time.monotonic()
    alarm.set(done.set, now + 0.03)
    alarm.set(lambda: seen.append("second"), now + 0.02)
    alarm.set(lambda: seen.append("first"), now + 0.01)
    assert done.wait(PATIENCE)
    assert seen == ["first", "second"]
    assert time.monotonic() >= now + 0.03


def test_a_callback_set_again_keeps_only_its_new_time_and_a_cleared_one_is_not_called():
    alarm, called, done = Alarm(), [], threading.Event()

    def call() -> None:
        called.append(time.monotonic())

    now = time.monotonic()
    alarm.set(call, now)
    alarm.set(call, now + 100)
    alarm.clear(call)
    alarm.set(done.set, time.monotonic() + 0.01)
    assert done.wait(PATIENCE)
    assert len(called) <= 1  # the first time may have come before it was changed


def test_a_callback_that_raises_does_not_stop_the_others(caplog):
    alarm, done = Alarm(), threading.Event()

    def fail() -> None:
        raise RuntimeError("ours")

    alarm.set(fail, 0.0)
    alarm.set(done.set, time.monotonic() + 0.01)
    assert done.wait(PATIENCE)
    assert "callback failed" in caplog.text


def test_a_time_farther_ahead_than_a_lock_can_wait_does_not_end_the_thread():
    alarm, done = Alarm(), threading.Event()
    alarm.set(lambda: None, time.monotonic() + 2 * threading.TIMEOUT_MAX)
    alarm.set(done.set, time.monotonic() + 0.01)
    assert done.wait(PATIENCE)
