# `make demo` and `make test` do everything on a fresh machine; nothing else is needed first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu check format bench screenshot browser clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e '.[test,check]'
	touch $@

demo: $(VENV)/.demo ## train twice on a CPU, watch the numbers, read the verdict
	$(BIN)/trackperf demo

test: $(VENV)/.dev browser ## run the tests
	$(BIN)/python -m pytest -n 3 --dist loadgroup $(PYTEST_ARGS)

# With the Python that has torch for the GPU, and without the plug-ins of pytest that the other tests use.
test-gpu: ## the tests that need an NVIDIA GPU, with PYTHON as it is; figures in build/gpu-figures.json
	PYTHONPATH=.:$$PYTHONPATH $(PYTHON) -m pytest -o addopts= -W ignore::pytest.PytestConfigWarning -ra -m gpu tests/gpu $(PYTEST_ARGS)

check: $(VENV)/.dev ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.bench ## what trackperf costs, beside others
	$(BIN)/python tests/benchmarks/bench.py $(BENCH_ARGS)

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) install -c constraints.txt -e '.[bench]'
	touch $@

screenshot: $(VENV)/.dev browser ## the README's picture, taken in a real browser
	$(BIN)/python tools/screenshot.py

browser:
	@sh tools/install-browser.sh

clean: ## remove the environment and what was built
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache
