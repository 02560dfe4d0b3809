# Two commands are enough to start: `make run` and `make test`. Each makes .venv first when it is not there.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help run test check format lint types arrows laws lab mutants bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name text; do printf '  make %-9s %s\n' "$$name" "$$text"; done

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

run: $(INSTALLED)  ## replay a synthetic workload through the three tiers (RUN="--trace FILE ..." for yours)
	$(BIN)/hicachectl run $(RUN)

test: $(INSTALLED)  ## all tests but the lab's (PYTEST="-k NAME ..." for some)
	$(BIN)/python -m pytest -n $(JOBS) -m "not lab and not host_write" $(PYTEST)

check: format lint types arrows  ## format, lint, types, import arrows

format: $(INSTALLED)
	$(BIN)/ruff format --check .

lint: $(INSTALLED)
	$(BIN)/ruff check .

# The editable install maps the folders in a way type checkers cannot follow: check a normal install of this checkout.
types: $(INSTALLED)
	rm -rf build
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target build/types .
	cd build/types && ../../$(BIN)/python -m mypy --config-file ../../pyproject.toml -p hicachectl

arrows: $(INSTALLED)
	$(BIN)/python -m pytest -q tests/test_arrows.py

laws: $(INSTALLED)  ## the long random test of the laws
	LAW_STEPS=$${LAW_STEPS:-200000} $(BIN)/python -m pytest -q --timeout 3600 tests/laws $(PYTEST)

# The pieces are cached: only the first time, and after a change of their recipe, it needs root, Debian 12 and its mirror.
lab: $(INSTALLED)  ## set up the QEMU lab (see tests/lab/README.md) and run topo and tune in its machines
	tests/lab/setup.sh --where >/dev/null 2>&1 || LAB_PYTHON=$(CURDIR)/$(BIN)/python tests/lab/setup.sh
	LAB_REQUIRED=1 $(BIN)/python -m pytest -rs -m lab tests/lab $(PYTEST)

mutants: $(INSTALLED)  ## plant known bugs, each must turn a test red
	$(BIN)/python tests/mutants/run.py

bench: $(INSTALLED)  ## run every benchmark, JSON in build/bench
	@mkdir -p build/bench
	@set -e; shopt -s nullglob; for file in benchmarks/bench_*.py; do \
		echo "== $$file"; $(BIN)/python $$file --json build/bench/$$(basename $$file .py).json; done

clean:  ## remove what builds and checks leave behind, .venv stays
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
