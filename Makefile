# This works on a fresh clone that has only Python, with no environment activated: `make help`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-untimed test-timed test-faults test-long test-hosts test-gpu matrix fuzz lint bench false-differences false-alarms other-programs reference docs clean

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
# A stamp for each part of the set-up; `make demo` needs the first two.
PACKAGES := $(VENV)/.packages
HOROVOD := $(VENV)/.horovod
TOOLS := $(VENV)/.tools
MPICH := $(VENV)/.mpich
WEB := $(VENV)/.web

# The files that take longest come first, so that no worker is left alone with them at the end.
TESTS := $(wildcard tests/e2e tests/contract tests/proof tests/fuzz tests/test_*.py tests/unit tests/faults tests/lab)
QUICK := not faults and not long and not lab
REPORTS ?=
# Each target keeps its own list of failed tests, for --last-failed.
PYTEST = $(PY) -m pytest $(TESTS) -o cache_dir=.pytest_cache/$@ $(if $(REPORTS),--junitxml=$(REPORTS)/$@.xml)
# A worker that crashes ends the whole run: with a replacement, pytest-xdist can wait for ever.
SIDE_BY_SIDE := -n logical --maxprocesses 4 --max-worker-restart 0
# pytest exits with 5 if it selects no test. With -k, one half of `make test` may select none, but not both.
NONE = .pytest_cache/none-in-$@
MAY_BE_NONE = $(if $(PYTEST_ARGS),|| { [ $$? = 5 ] && mkdir -p $(dir $(NONE)) && touch $(NONE); })

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(PACKAGES) $(HOROVOD) $(TOOLS) $(MPICH) ## make .venv with everything, Horovod included where it can be built

# The demo runs on CPUs, which every machine has: two ranks would need two GPUs.
demo: PARTS := packages horovod comparison
demo: $(PACKAGES) $(HOROVOD) ## compare ddp, horovod and a fast arm, two ranks on this machine
	@horovod=$$([ ! -e $(HOROVOD) ] || echo horovod,); \
	$(PART) comparison "$(PARTS)" $(VENV)/bin/ringside run \
	  --num-proc 2 --repeats 5 --device cpu --backend "ddp,$${horovod}manual:mode=shared_memory"
	@echo 'All arms that can run here: $(VENV)/bin/ringside run'

test: lint test-untimed test-timed ## lint, then all tests except those of the targets below (PYTEST_ARGS="-k name")
	@[ ! -e $(NONE)-untimed ] || [ ! -e $(NONE)-timed ] || { \
	  echo "PYTEST_ARGS selects no test." >&2; exit 5; }

# Timed tests run alone on the cores.
test-untimed: setup
	@rm -f $(NONE)
	$(PYTEST) -m "$(QUICK) and not timed" $(SIDE_BY_SIDE) --dist loadfile $(PYTEST_ARGS) $(MAY_BE_NONE)

# Collecting the tests of all folders takes longer than some of these tests.
test-timed: TESTS := tests/unit tests/e2e
test-timed: setup
	@rm -f $(NONE)
	$(PYTEST) -m "$(QUICK) and timed" $(PYTEST_ARGS) $(MAY_BE_NONE)

# These two take the folders that hold such tests, because it takes long to collect all others.
test-faults: TESTS := tests/contract tests/proof tests/e2e tests/faults
test-faults: setup ## the tests that kill ranks, fill disks, damage installations and train wrongly
	$(PYTEST) -m "faults and not lab" $(SIDE_BY_SIDE) --dist worksteal $(PYTEST_ARGS)

test-long: setup ## the tests that inject delays and causes, and check that the report names them
	$(PYTEST) -m long $(PYTEST_ARGS)

test-hosts: TESTS := tests/lab
test-hosts: setup ## the tests over several hosts, made of network namespaces; needs root
	$(PYTEST) -m lab $(SIDE_BY_SIDE) --dist worksteal $(PYTEST_ARGS)

fuzz: setup ## give every parser of input from elsewhere 20,000 examples
	FUZZ_EXAMPLES=20000 $(PYTEST) $(SIDE_BY_SIDE) tests/fuzz $(PYTEST_ARGS)

lint: setup ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# It installs nothing: the machine may have no network, and its own torch.
test-gpu: ## try what needs a GPU, with an interpreter that has torch (PYTHON=python3 GPU_ARGS="--device cpu")
	$(PYTHON) -m tests.gpu $(GPU_ARGS) build/gpu-$$(date +%Y-%m-%dT%H-%M-%S)

matrix: setup ## try every Python and torch that is here (PYTHONS="/other/bin/python" WHEELS=/folder/of/torch/wheels)
	WHEELS="$(WHEELS)" $(PY) -m tests.matrix build/matrix-$$(date +%Y-%m-%dT%H-%M-%S) --python $(PYTHONS)

bench: setup ## measure Ringside itself (BENCH_ARGS="...")
	$(PY) -m tests.bench $(BENCH_ARGS)

false-differences: setup ## compare an arm with itself, and add that to a record (BENCH_ARGS="--arm mpi --more 10")
	$(PY) -m tests.bench.false_verdicts aa $(BENCH_ARGS)

false-alarms: setup ## gate this environment against itself, and add that to a record (BENCH_ARGS="--more 10")
	$(PY) -m tests.bench.false_verdicts gate $(BENCH_ARGS)

other-programs: setup ## time MPI's collectives beside IMB and OSU, which it fetches into build/
	$(PY) -m tests.bench.other_programs build/other-programs $(BENCH_ARGS)

reference: setup ## write all commands, flags and options, and the schema of results.json, into docs/
	$(PY) -m tests.reference

docs: $(WEB) ## build the documentation's web pages into build/web; this needs neither torch nor Horovod
	$(VENV)/bin/zensical build --strict -f zensical.toml

clean: ## remove .venv and the caches of tools; runs/ and data/ stay
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the parts of setup --------------------------------------------------------------------------------

# Each part prints its time, and that of the parts that are left.
PARTS := packages horovod tools mpich
PART := $(PYTHON) tests/set_up.py

$(PY):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is not on PATH. Run 'apt-get install python3 python3-venv', or name another: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) --version 2>&1), older than 3.11. Name another: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments. Run 'apt-get install python3-venv', then this again." >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) && $(PIP_INSTALL) --quiet --upgrade pip || { rm -rf $(VENV); exit 1; }

# Python compiles a module when it loads it first, and most modules are never loaded. So pip compiles none.
unexport PYTHONDONTWRITEBYTECODE

# Build dependencies follow PIP_CONSTRAINT in pip before 25.3, and PIP_BUILD_CONSTRAINT in later ones.
PIP_INSTALL := env PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
  $(PY) -m pip install --disable-pip-version-check --no-compile -c constraints.txt

# What a run needs. torch alone is several hundred megabytes.
$(PACKAGES): $(PY) pyproject.toml constraints.txt
	@$(PART) packages "$(PARTS)" $(PIP_INSTALL) -e '.[mpi]'
	@touch $@

# All else works without Horovod, so a failed build is reported and stops nothing. The stamp is then
# missing, so the next call tries again.
$(HOROVOD): $(PACKAGES) $(wildcard compare/doctor/horovod/*.py compare/doctor/horovod/*.cmake)
	@if $(PART) horovod "$(PARTS)" $(PY) -m compare setup horovod --constraints constraints.txt; then touch $@; else \
	  rm -f $@; echo; echo "Horovod is UNAVAILABLE in $(VENV); the reason is above. Everything else works."; \
	  echo "To install it later: $(VENV)/bin/ringside setup horovod"; echo; fi

# What the tests, the checks and the documentation need besides. Tests start many processes, so all is compiled.
$(TOOLS): $(PACKAGES)
	@$(PART) tools "$(PARTS)" $(PIP_INSTALL) -e '.[mpi,horovod,lightning,dev]'
	@$(PY) -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

# The generator of web pages alone, which $(TOOLS) brings as well.
$(WEB): $(PY) constraints.txt
	@$(PIP_INSTALL) --quiet zensical
	@touch $@

# 36 MB in ~/.cache/ringside. All else works without it.
$(MPICH): $(PACKAGES) compare/doctor/mpich.py backends/launchers/hydra.py
	@if $(PART) mpich "$(PARTS)" $(PY) -m compare setup mpich; then touch $@; else \
	  rm -f $@; echo; echo "MPICH is UNAVAILABLE; the reason is above. Everything else works."; \
	  echo "To install it later: $(VENV)/bin/ringside setup mpich"; echo; fi
