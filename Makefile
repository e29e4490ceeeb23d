# Everything runs in the project's own virtual environment; `make demo` and `make test` need python3 (3.11 or later) with
# venv, and make. Targets: demo, test, check, bench, model, storm, clean.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check format bench model storm clean

# One stamp a set of extras, so that a changed pyproject.toml reinstalls.
$(VENV)/installed-%: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing ($*)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(subst -,$(comma),$*)]'
	@touch $@
comma := ,

$(VENV)/installed: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

demo: $(VENV)/installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/demo.py

# Files of tests side by side, each process with services of its own. ARGS="-n 0" has them in one process.
test: $(VENV)/installed-test
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile $(ARGS)

check: $(VENV)/installed-test-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/basedpyright

format: $(VENV)/installed-test-check
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/installed-test-bench
	$(BIN)/python -m tests.benchmarks $(ARGS)

model: $(VENV)/installed-test
	$(BIN)/python -m tests.model $(ARGS)

storm: $(VENV)/installed-test
	$(BIN)/python -m tests.storm $(ARGS)

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
