"""An engine that is killed fails its requests with a reason, and comes back by itself."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import openai
import pytest

from tests.e2e.server_process import LONG, START, eventually

pytestmark = pytest.mark.slow

NUM_STREAMS = 8


def test_killed_under_eight_streams_each_ends_with_an_error_and_the_next_chat_is_answered(server):
    all_flowing = Barrier(NUM_STREAMS + 1)

    def read() -> str:
        stream = server.openai.completions.create(
            model="chat", prompt=LONG["prompt"], max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        all_flowing.wait(60)
        with pytest.raises(openai.APIError) as broken:
            for _ in stream:
                pass
        return broken.value.message

    victim = server.engine().pid
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        reads = [pool.submit(read) for _ in range(NUM_STREAMS)]
        all_flowing.wait(60)
        server.engine().kill()
        assert {each.result(60) for each in reads} == {"engine process ended (signal 9)"}
    assert server.get("/v2/health/live").status_code == 200
    assert eventually(lambda: server.get("/v2/models/chat/ready").status_code == 200, START)
    assert server.is_ready()
    assert server.engine().pid != victim
    assert server.is_idle()
    answer = server.openai.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "Say hello"}], max_tokens=5
    )
    assert answer.choices[0].message.content
