# make demo   set up and run the main job on shipped lengths: table, pictures, report
# make test   set up and run lint, types, import contracts and tests
# make clean  remove what the two leave behind

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint types contracts unit evidence clean

demo: $(VENV)/.run
	$(BIN)/tlt sim recommend --config sim/presets/demo.toml --out out/demo

test: lint types contracts unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2

# Figures of docs/evidence and the tables made from them; several minutes.
evidence: $(VENV)/.dev
	$(BIN)/python docs/evidence/measure.py
	$(BIN)/python -m analysis.evidence README.md docs/*.md

$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP_INSTALL) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) out build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
