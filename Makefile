# Two commands matter: `make run` (a small real study, to a page and a verdict) and `make test`.
# Everything lives in this folder: the environment in .venv, results in runs/. No root is needed.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
EVENHAND := $(PY) -m evenhand
EXTRAS := train,environments,bfcl,shop,tau2,report,dev
WORKERS ?= 2
QUICKSTART := runs/quickstart
PAIRED := runs/paired

# A moved checkout sets itself up anew: an editable install remembers its folder.
STAMP := $(VENV)/setup-$(shell printf %s "$(CURDIR)" | cksum | cut -d' ' -f1)

# Two processes that share cores slow each other many times over if each starts a thread a core.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE := 1
export MPLCONFIGDIR := $(CURDIR)/.cache/matplotlib
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Where the home folder cannot be written, no cache outside this folder is used.
ifneq ($(shell test -n "$$HOME" && test -w "$$HOME" && echo yes),yes)
export HOME := $(CURDIR)/.cache/home
export XDG_CACHE_HOME := $(CURDIR)/.cache
export PIP_NO_CACHE_DIR := 1
endif

.DEFAULT_GOAL := help
.PHONY: help setup run test lint study-paired study-reversal study-update study-rail study-rail-sensitivity study-rail-arms study-rail-grids study-environments study-cacherl study-cacherl-bfcl bench clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## make or renew .venv from constraints.txt

$(STAMP): pyproject.toml constraints.txt constraints-bare.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "evenhand needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	@$(PY) -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	$(PY) -m pip install --quiet --no-deps -r constraints-bare.txt
	@rm -f $(VENV)/setup-*
	@touch $(STAMP)

run: $(STAMP) ## train the quickstart study, print its verdict and the page's path
	$(EVENHAND) study run studies/quickstart.yaml --out $(QUICKSTART)
	$(EVENHAND) study report $(QUICKSTART)

study-paired: $(STAMP) ## the full study behind docs/results (hours)
	$(EVENHAND) study run studies/paired.yaml --out $(PAIRED)
	$(EVENHAND) study report $(PAIRED)

study-reversal: $(STAMP) ## pairing x std-scaling, where theory predicts a reversal and where not (a quarter of an hour)
	test -d runs/policies/couriers || $(EVENHAND) policy tiny couriers --out runs/policies/couriers
	$(EVENHAND) study run studies/reversal.yaml --out runs/reversal
	$(EVENHAND) study report runs/reversal

study-rail: $(STAMP) ## RAIL, its controls and eleven baselines on two small environments (250 runs; 34 minutes of one core, and some seconds a run to start)
	test -d runs/policies/couriers || $(EVENHAND) policy tiny couriers --out runs/policies/couriers
	test -d runs/policies/trails || $(EVENHAND) policy tiny trails --steps 300 --out runs/policies/trails
	$(EVENHAND) study run studies/rail.yaml --out runs/rail
	$(EVENHAND) study report runs/rail

study-rail-sensitivity: $(STAMP) ## each key that RAIL's paper leaves open, low and high (36 runs; six minutes of one core)
	test -d runs/policies/couriers || $(EVENHAND) policy tiny couriers --out runs/policies/couriers
	$(EVENHAND) study run studies/rail-sensitivity.yaml --out runs/rail-sensitivity
	$(EVENHAND) study report runs/rail-sensitivity

study-rail-arms: $(STAMP) ## the fixed cells and the longer shadow that study-rail leaves out (90 runs; a quarter of an hour of one core)
	test -d runs/policies/couriers || $(EVENHAND) policy tiny couriers --out runs/policies/couriers
	test -d runs/policies/trails || $(EVENHAND) policy tiny trails --steps 300 --out runs/policies/trails
	$(EVENHAND) study run studies/rail-arms-couriers.yaml --out runs/rail-arms-couriers
	$(EVENHAND) study report runs/rail-arms-couriers
	$(EVENHAND) study run studies/rail-arms-trails.yaml --out runs/rail-arms-trails
	$(EVENHAND) study report runs/rail-arms-trails

study-rail-grids: $(STAMP) ## RAIL without a choice of branches, with a 2x2 and a 4x4 grid (40 runs; eight minutes of one core)
	test -d runs/policies/couriers || $(EVENHAND) policy tiny couriers --out runs/policies/couriers
	test -d runs/policies/trails || $(EVENHAND) policy tiny trails --steps 300 --out runs/policies/trails
	$(EVENHAND) study run studies/rail-grids.yaml --out runs/rail-grids
	$(EVENHAND) study report runs/rail-grids

study-update: $(STAMP) ## GRPO, Dr.GRPO, RLOO, batch std, MC-GRPO, SALT and its controls (an hour)
	$(EVENHAND) study run studies/update.yaml --out runs/update
	$(EVENHAND) study report runs/update

study-environments: $(STAMP) ## success on tables before and after a short training (16 minutes on two busy cores, half of them the warm start)
	test -d runs/policies/tables || $(EVENHAND) warmstart --environments tables --steps 500 --out runs/policies/tables
	$(EVENHAND) study run studies/environments.yaml --out runs/environments
	$(EVENHAND) study report runs/environments

study-cacherl: $(STAMP) ## the recipe in turns on `database`, eight arms, three seeds (1.4 hours of one core)
	$(EVENHAND) recipe run recipes/cacherl.yaml --out runs/cacherl
	$(PY) -m evenhand.report.recipe runs/cacherl

study-cacherl-bfcl: $(STAMP) ## the same on BFCL's broker, after a warm start of three minutes (1.4 hours of one core)
	test -d runs/policies/bfcl-broker || $(EVENHAND) warmstart --environments bfcl-broker --steps 400 --out runs/policies/bfcl-broker
	$(EVENHAND) recipe run recipes/cacherl-bfcl.yaml --out runs/cacherl-bfcl --arm main --arm live --arm sft_alone --arm no_tier_reward
	$(PY) -m evenhand.report.recipe runs/cacherl-bfcl

lint: $(STAMP) ## ruff, mypy --strict and the floors
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) -m mypy --strict src
	$(VENV)/bin/lint-imports

test: lint ## lint, then the tests (one thread a process)
	$(PY) -m pytest -n $(WORKERS) --dist loadfile

test-textworld: ## the tests of an environment that needs a Python environment of its own (.venv-textworld)
test-verifiers: ## the same for the engine verifiers (.venv-verifiers)
test-verl: ## the same for verl (.venv-verl; some minutes)

# What cannot be installed beside the rest: constraints-NAME.txt is its whole environment.
test-%: .venv-%/ready
	.venv-$*/bin/python -m pytest tests/*_$*

.PRECIOUS: .venv-%/ready
.venv-%/ready: constraints-%.txt pyproject.toml
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install --quiet -r constraints-$*.txt
	.venv-$*/bin/python -m pip install --quiet --no-deps -e .
	@touch $@

bench: $(STAMP) ## the measured claims, as ratios
	@for file in benchmarks/*.py; do echo "== $$file"; $(PY) "$$file" || exit 1; done

clean: ## remove .venv, caches and runs
	rm -rf $(VENV) .venv-* .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache runs dist
