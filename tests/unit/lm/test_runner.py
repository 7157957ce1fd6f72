"""A loaded runner: the same tokens as transformers' generate, however the engine cuts and mixes the work."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tqdm import TMonitor

from backends.api.errors import Code, ServingError
from backends.api.request import SamplingParams, TokenLogprobs
from backends.lm.load import load_runner
from backends.lm.ops import AttentionBatch
from backends.lm.options import LmOptions
from backends.lm.runner import LmRunner, RunnerLimits
from backends.lm.step import StepBatch, StepOutput
from backends.lm.torch_ops import TorchOps
from backends.lm.weights import Weight

BLOCK = 4
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)


@dataclass
class Request:
    prompt: list[int]
    sampling: SamplingParams = GREEDY
    seed: int = 0
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    drafts: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    failed: ServingError | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def answer(self) -> list[int]:
        return self.tokens[len(self.prompt) :]


class Driver:
    """What the engine does, in few lines: rows, scattered blocks, slices of at most `chunk` tokens, guesses."""

    def __init__(
        self, runner: LmRunner, chunk: int = 1000, guess: Callable[[Request], list[int]] | None = None
    ) -> None:
        self.runner, self.chunk, self.guess = runner, chunk, guess
        per_row = -(-runner.max_model_len // BLOCK)
        rows = runner.num_blocks // per_row
        self.table = np.random.default_rng(1).permutation(rows * per_row).reshape(rows, per_row).astype(np.int32)

    def run(self, requests: list[Request], first_row: int = 0) -> None:
        rows = {first_row + i: request for i, request in enumerate(requests)}
        for row, request in rows.items():
            self.runner.add(row, request.tokens, len(request.prompt), request.sampling, request.seed)
        while rows:
            self._step(rows)
            for row, request in list(rows.items()):
                if request.failed or len(request.answer) >= request.sampling.max_tokens:
                    self.runner.remove(row)
                    del rows[row]

    def _step(self, rows: dict[int, Request]) -> None:
        parts = []
        for request in rows.values():
            known = request.tokens[request.computed : request.computed + self.chunk]
            reaches = request.computed + len(known) == len(request.tokens)
            request.drafts = self.guess(request) if self.guess and reaches and request.answer else []
            parts.append((known + request.drafts, reaches))
        output = self.compute(self._batch(rows, parts))
        for index, (request, (part, _)) in enumerate(zip(rows.values(), parts, strict=True)):
            self._take(request, output, index, len(part))

    def compute(self, batch: StepBatch) -> StepOutput:
        return self.runner.step(batch)

    def _take(self, request: Request, output: StepOutput, index: int, count: int) -> None:
        tokens = output.tokens[index]
        request.failed = output.failed.get(index)
        request.computed += count - (len(request.drafts) - (len(tokens) - 1) if tokens else 0)
        request.tokens += tokens
        request.logprobs += output.logprobs.get(index, [])
        request.prompt_logprobs += output.prompt_logprobs.get(index, [])

    def _batch(self, rows: dict[int, Request], parts: list[tuple[list[int], bool]]) -> StepBatch:
        counts = [len(part) for part, _ in parts]
        numbers = np.array(list(rows), np.int32)
        contexts = [request.computed + count for request, count in zip(rows.values(), counts, strict=True)]
        return StepBatch(
            rows=numbers,
            tokens=np.concatenate([part for part, _ in parts]).astype(np.int32),
            query_starts=np.cumsum([0, *counts]).astype(np.int32),
            context_lens=np.array(contexts, np.int32),
            block_table=self.table[numbers][:, : -(-max(contexts) // BLOCK)],
            samples=np.array([reaches for _, reaches in parts]),
            num_drafts=np.array([len(request.drafts) for request in rows.values()], np.int32),
        )


class LayerByLayer(Driver):
    """Takes a batch through one layer at a time, and calls `between` after each."""

    between: Callable[[], None] = staticmethod(lambda: None)

    def compute(self, batch: StepBatch) -> StepOutput:
        layered = self.runner.layered
        assert layered is not None
        layered.begin(batch)
        while (output := layered.advance(1)) is None:
            self.between()
        return output


def options(folder: Path, **changes: Any) -> LmOptions:
    return LmOptions(**{"model": str(folder), "dtype": "float32", "block_size": BLOCK, "max_num_seqs": 8} | changes)


@pytest.fixture(scope="module", params=[8, 16])
def reference(request: pytest.FixtureRequest, tiny: Callable) -> Any:
    """With heads of 8, which CPU kernels do not take, and of 16, which they do where the processor has what they need."""
    return tiny("llama", max_position_embeddings=128, head_dim=request.param)


@pytest.fixture(scope="module")
def folder(reference: Any, folder_of: Callable) -> Path:
    return folder_of(reference)


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[LmRunner]:
    loaded = load_runner(Path(), options(folder))
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, 97, n).tolist() for n in (1, 9, 40, 23, 64)]


@pytest.fixture(scope="module")
def expected(reference: Any, prompts: list[list[int]]) -> list[list[int]]:
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = reference.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, min_new_tokens=12
        )
        answers.append(out[0, len(prompt) :].tolist())
    return answers


@pytest.fixture(scope="module")
def no_eos(runner: LmRunner) -> SamplingParams:
    """As `generate` with min_new_tokens: the end is not chosen early."""
    return SamplingParams(max_tokens=12, min_tokens=12, temperature=0.0)


@pytest.mark.parametrize("chunk", [1000, 7, pytest.param(1, marks=pytest.mark.slow)])
def test_greedy_answers_are_those_of_generate_batched_and_in_chunks(
    chunk: int, runner: LmRunner, prompts: list, expected: list, no_eos: SamplingParams
) -> None:
    requests = [Request(prompt, no_eos) for prompt in prompts]
    Driver(runner, chunk).run(requests)
    assert [request.answer for request in requests] == expected


def test_a_greedy_answer_alone_is_that_of_a_batch(
    runner: LmRunner, prompts: list, expected: list, no_eos: SamplingParams
) -> None:
    for row, prompt in enumerate(prompts):
        alone = Request(prompt, no_eos)
        Driver(runner).run([alone], first_row=row)
        assert alone.answer == expected[row]


def test_chunks_that_go_layer_by_layer_between_the_steps_of_a_stream_change_neither(
    runner: LmRunner, prompts: list, expected: list, no_eos: SamplingParams
) -> None:
    stream, prompt = Request(prompts[1], no_eos), Request(prompts[4], no_eos)
    scored = msgspec.structs.replace(no_eos, prompt_logprobs=0)
    streaming, layers = Driver(runner), LayerByLayer(runner, chunk=40)
    runner.add(7, stream.tokens, len(stream.prompt), no_eos, 0)
    layers.between = lambda: streaming._step({7: stream}) if len(stream.answer) < 12 else None
    layers.run([prompt])
    runner.remove(7)
    assert (stream.answer, prompt.answer) == (expected[1], expected[4])
    whole, parts = Request(prompts[4], scored), Request(prompts[4], scored)
    Driver(runner, chunk=40).run([whole])
    LayerByLayer(runner, chunk=40).run([parts])
    assert parts.prompt_logprobs == whole.prompt_logprobs


def test_a_gguf_and_other_models_run_alike(tiny: Callable, folder_of: Callable, no_eos: SamplingParams) -> None:
    reference = tiny("gpt_neox", max_position_embeddings=128)
    other = load_runner(Path(), options(folder_of(reference)))
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    want = reference.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, min_new_tokens=12
    )
    request = Request(ids[0].tolist(), no_eos)
    Driver(other, chunk=2).run([request])
    assert other.layered is None
    assert request.answer == want[0, 5:].tolist()


@pytest.mark.parametrize("kind", ["right", "wrong", "half right"])
def test_guesses_never_change_an_answer(
    kind: str, runner: LmRunner, prompts: list, expected: list, no_eos: SamplingParams
) -> None:
    steps = 0

    def guess(request: Request) -> list[int]:
        nonlocal steps
        steps += 1
        answer = expected[prompts.index(request.prompt)]
        made = len(request.answer)
        right = answer[made : min(made + 3, 11)]
        wrong = [(token + 1) % 97 for token in right]
        return {"right": right, "wrong": wrong, "half right": right[:1] + wrong[1:]}[kind]

    requests = [Request(prompt, no_eos) for prompt in prompts]
    Driver(runner, guess=guess).run(requests)
    assert [request.answer[:12] for request in requests] == expected
    assert (steps < 11 * len(prompts)) == (kind != "wrong")


def test_sampled_answers_depend_on_the_seed_and_not_on_the_batch(runner: LmRunner, prompts: list) -> None:
    sampling = SamplingParams(max_tokens=12, temperature=1.5)

    def answers(chunk: int, seeds: list[int]) -> list[list[int]]:
        requests = [Request(prompt, sampling, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
        Driver(runner, chunk).run(requests)
        return [request.answer for request in requests]

    first = answers(1000, [1, 2, 3, 4, 5])
    assert first == answers(5, [1, 2, 3, 4, 5])
    assert all(a != b for a, b in zip(first, answers(1000, [6, 7, 8, 9, 10]), strict=True))


@pytest.mark.parametrize("chunk", [1000, 5])
def test_log_probabilities_of_prompt_and_answer_are_those_of_the_dense_model(
    chunk: int, runner: LmRunner, reference: Any, dense_logits: Callable, prompts: list
) -> None:
    sampling = SamplingParams(max_tokens=4, temperature=0.0, logprobs=2, prompt_logprobs=3, ignore_eos=True)
    requests = [Request(prompt, sampling) for prompt in prompts]
    Driver(runner, chunk).run(requests)
    for request in requests:
        dense = dense_logits(reference, request.tokens).log_softmax(-1)
        entries = request.prompt_logprobs + request.logprobs
        assert [entry.token for entry in entries] == request.tokens[1:]
        for place, entry in enumerate(entries):
            assert entry.logprob == pytest.approx(float(dense[place, entry.token]), abs=1e-4)
            assert entry.rank == int((dense[place] > dense[place, entry.token]).sum()) + 1
            best = [float(x) for x in dense[place].topk(len(entry.top)).values]
            assert [value for _, value in entry.top] == pytest.approx(best, abs=1e-4)
        assert {len(entry.top) for entry in request.prompt_logprobs} <= {3}
        assert {len(entry.top) for entry in request.logprobs} == {2}


class OneBadRow:
    """A model whose logits for token 13 are not numbers. Counts the rows that meet its head."""

    vocab_size = 16

    def __init__(self) -> None:
        self.head_rows = 0

    def forward(self, tokens: np.ndarray, batch: AttentionBatch) -> torch.Tensor:
        return torch.from_numpy(tokens)[:, None].float()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.head_rows += len(hidden)
        logits = torch.nn.functional.one_hot((hidden[:, 0].long() + 1) % 16, 16).float()
        logits[hidden[:, 0] == 13] = float("nan")
        return logits

    def close(self) -> None:
        self.closed = True


def small_runner(model: Any) -> LmRunner:
    return LmRunner(model, RunnerLimits(32, 8, 64, BLOCK, "f", frozenset({0})))


def test_a_sequence_whose_logits_are_no_numbers_fails_alone() -> None:
    short = SamplingParams(max_tokens=5, temperature=0.0)
    requests = [Request([1, 2, 3], short), Request([4, 13], short), Request([5], short)]
    Driver(small_runner(OneBadRow())).run(requests)
    assert [bool(request.failed) for request in requests] == [False, True, False]
    assert [request.answer for request in requests] == [[4, 5, 6, 7, 8], [], [6, 7, 8, 9, 10]]


def test_a_request_that_forbids_every_token_is_told_so_and_fails_alone() -> None:
    impossible = SamplingParams(max_tokens=5, temperature=0.0, allowed_token_ids=(4,), bad_words=((4,),))
    requests = [
        Request([1, 2, 3], SamplingParams(max_tokens=5, temperature=0.0)),
        Request([5, 6], impossible),
    ]
    Driver(small_runner(OneBadRow())).run(requests)
    failed = requests[1].failed
    assert failed is not None
    assert (failed.code, failed.reason) == (Code.INVALID, "invalid_value")
    assert "forbid" in failed.message
    assert requests[0].answer == [4, 5, 6, 7, 8]


def test_only_rows_that_choose_meet_the_head() -> None:
    model = OneBadRow()
    Driver(small_runner(model), chunk=2).run([Request([1] * 8, SamplingParams(max_tokens=3, temperature=0.0))])
    assert model.head_rows == 3


def test_a_closed_runner_steps_no_more() -> None:
    model = OneBadRow()
    runner = small_runner(model)
    driver = Driver(runner)
    runner.close()
    runner.close()
    assert model.closed
    with pytest.raises(ServingError, match="the model is closed"):
        driver.run([Request([1])])


def test_the_cache_never_takes_more_than_its_memory(folder: Path, reference: Any) -> None:
    head_dim = reference.config.head_dim
    block_bytes = 3 * 2 * 2 * head_dim * BLOCK * 4  # layers, k and v, kv heads, head size, tokens, float32
    runner = load_runner(Path(), options(folder, kv_cache_memory_bytes=1 << 17, max_model_len=64))
    assert runner.num_blocks == (1 << 17) // block_bytes
    assert load_runner(Path(), options(folder, num_gpu_blocks_override=40)).num_blocks == 40


def test_by_default_the_cache_is_what_sequences_can_use(runner: LmRunner) -> None:
    assert runner.max_model_len == 128
    assert runner.num_blocks == 8 * 128 // BLOCK


def test_the_models_length_is_cut_to_the_cache_but_an_asked_one_must_fit(folder: Path) -> None:
    assert load_runner(Path(), options(folder, num_gpu_blocks_override=10)).max_model_len == 40
    with pytest.raises(
        ServingError, match=r"'kv_cache_memory_bytes': expected at least \d+ bytes \(25 blocks\)"
    ) as caught:
        load_runner(Path(), options(folder, kv_cache_memory_bytes=1 << 14, max_model_len=100))
    assert caught.value.param == "kv_cache_memory_bytes"


def test_a_cache_given_in_blocks_may_be_smaller_than_the_longest_sequence(folder: Path) -> None:
    runner = load_runner(Path(), options(folder, num_gpu_blocks_override=10, max_model_len=100))
    assert (runner.num_blocks, runner.max_model_len) == (10, 100)


def test_a_length_beyond_the_model_is_refused(folder: Path) -> None:
    with pytest.raises(ServingError, match=r"'max_model_len': expected at most 128, .* got 129") as caught:
        load_runner(Path(), options(folder, max_model_len=129))
    assert caught.value.code is Code.INVALID


def test_equal_weights_have_equal_fingerprints_and_others_not(
    runner: LmRunner, reference: Any, tiny: Callable, folder_of: Callable, folder: Path
) -> None:
    assert load_runner(Path(), options(folder_of(reference))).fingerprint == runner.fingerprint
    assert load_runner(Path(), options(folder, dtype="bfloat16")).fingerprint != runner.fingerprint
    changed = tiny("llama", max_position_embeddings=128, head_dim=reference.config.head_dim)
    with torch.no_grad():
        changed.lm_head.weight += 1
    assert load_runner(Path(), options(folder_of(changed))).fingerprint != runner.fingerprint


def test_deterministic_rows_are_the_same_to_the_last_bit_in_any_batch() -> None:
    torch.manual_seed(1)
    ops = TorchOps(torch.float32, torch.device("cpu"), deterministic=True)
    linear = ops.linear([Weight.from_tensor(torch.randn(300, 200))], [None])
    x = torch.randn(70, 200)
    whole = linear(x)
    for rows in (1, 2, 5, 16, 33):
        assert torch.equal(linear(x[:rows]), whole[:rows])
        assert torch.equal(linear(x[70 - rows :]), whole[70 - rows :])


@pytest.mark.parametrize("backend", ["gather", pytest.param("reference", marks=pytest.mark.slow)])
def test_every_attention_backend_gives_the_same_answers(
    backend: str, folder: Path, prompts: list, expected: list, no_eos: SamplingParams
) -> None:
    requests = [Request(prompt, no_eos) for prompt in prompts]
    Driver(load_runner(Path(), options(folder, attention_backend=backend)), chunk=9).run(requests)
    assert [request.answer for request in requests] == expected


def test_an_attention_backend_that_cannot_be_had_is_refused(folder: Path) -> None:
    with pytest.raises(ServingError, match="varlen") as caught:
        load_runner(Path(), options(folder, attention_backend="varlen", device="cpu"))
    assert caught.value.code is Code.UNSUPPORTED


@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_a_failed_load_leaves_no_threads_behind(family: str, tiny: Callable, folder_of: Callable) -> None:
    folder = folder_of(tiny(family, head_dim=16))
    before = set(threading.enumerate())
    with pytest.raises(ServingError):
        load_runner(Path(), options(folder, kv_cache_memory_bytes=1 << 14, max_model_len=128))
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if not isinstance(thread, TMonitor)]  # the progress bar's, one a process


def test_loading_tells_its_progress(folder: Path) -> None:
    seen: list[tuple[str, float, float]] = []
    load_runner(Path(), options(folder), lambda *step: seen.append(step))
    assert seen == [("layers", 1, 3), ("layers", 2, 3), ("layers", 3, 3)]
