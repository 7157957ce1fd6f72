"""An unmodified openai client holds a chat with a real model on a real server."""

import psutil
import pytest

from tests.e2e.server_process import START, eventually

pytestmark = pytest.mark.slow

QUESTION = {"model": "chat", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


def test_a_streamed_chat_says_what_the_plain_one_says(server):
    plain = server.openai.chat.completions.create(**QUESTION, temperature=0, max_tokens=40)
    assert "Paris" in plain.choices[0].message.content
    chunks = list(
        server.openai.chat.completions.create(
            **QUESTION, temperature=0, max_tokens=40, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == [plain.choices[0].finish_reason]
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (plain.usage.prompt_tokens, plain.usage.completion_tokens)


def test_a_choice_that_ends_at_a_stop_string_counts_as_stop(server):
    before = server.metric("vllm:request_success_total", finished_reason="stop")
    answer = server.openai.completions.create(
        model="chat", prompt="Here is the English alphabet: A B C D E F", stop=" I", temperature=0, max_tokens=40
    )
    assert answer.choices[0].finish_reason == "stop"
    assert eventually(lambda: server.metric("vllm:request_success_total", finished_reason="stop") == before + 1)


def test_a_server_is_alive_at_once_and_ready_when_its_model_is(start):
    server = start()
    assert server.get("/v2/health/live").status_code == 200
    assert server.get("/v2/health/ready").status_code == 503
    assert server.get("/v2/models/chat/ready").status_code == 400  # Triton's word for it
    assert eventually(server.is_ready, START)
    assert server.get("/v2/models/chat/ready").status_code == 200


def test_who_has_nothing_to_do_takes_no_processor_time(server):
    """Under a hundredth of a core, over seconds of processor time: other processes on the machine don't count."""
    processes = [psutil.Process(server.pid), server.engine()]

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before = used()
    with pytest.raises(psutil.TimeoutExpired):
        processes[0].wait(timeout=6)
    assert used() - before <= 0.06 * len(processes)
