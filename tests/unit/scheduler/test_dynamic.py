"""The queue between those who ask and the threads that run."""

from backends.api.request import InferenceRequest
from scheduler.alarm import Alarm
from scheduler.batch import BatchPolicy, Waiting
from scheduler.dynamic import BatchScheduler, Seat


class SilentAlarm(Alarm):
    """Never rings, as if its thread had not got the processor yet."""

    def set(self, callback, when) -> None:
        """Forgets it."""


def test_a_request_that_expires_as_the_last_thread_leaves_is_refused_and_not_lost():
    refused = []
    scheduler = BatchScheduler(BatchPolicy(), lambda waiting, error: refused.append(waiting), SilentAlarm())
    late = Waiting(InferenceRequest("m", "", []), timeout=0.0)
    scheduler.submit(late)
    scheduler.close()
    assert scheduler.take(Seat()) is None
    assert refused == [late]
