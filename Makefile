# Two commands do all their own set-up, in one .venv:  make demo,  make test.
# PYTHON=python3.12 chooses another interpreter.  PIP_ARGS adds arguments for pip, for instance the index of
# PyTorch's CPU builds where pip's own index would bring CUDA.

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check
INSTALL := $(PIP) install $(PIP_ARGS) --constraint constraints.txt

.PHONY: demo test lint clean help

help:
	@echo "make demo   set up, and run programs on the model that ships"
	@echo "make test   set up, and run all tests"
	@echo "make lint   ruff and pyright"
	@echo "make clean  remove .venv and caches"

demo: $(VENV)/.installed
	@$(RUN) examples/demo.py

test: $(VENV)/.installed-dev
	@$(RUN) -m pytest

lint: $(VENV)/.installed-dev
	@$(RUN) -m ruff format --check . && $(RUN) -m ruff check . && $(RUN) -m pyright

$(VENV)/.created:
	@echo "callboard: making $(VENV) ($$($(PYTHON) --version))"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "callboard needs Python 3.11 or newer; try make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# A machine without a GPU must not download CUDA: pip tells beforehand what it would install.
$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "callboard: installing what it runs on (about a minute, under 1 GB)"
	@if ! command -v nvidia-smi >/dev/null 2>&1 && $(PIP) install $(PIP_ARGS) --constraint constraints.txt \
	    --dry-run torch 2>/dev/null | grep -q 'Would install.*nvidia'; then \
	  echo "callboard: pip would bring CUDA, several GB, to a machine without a GPU."; \
	  echo "           Point it at PyTorch's CPU builds:  make PIP_ARGS='--extra-index-url URL' $(MAKECMDGOALS)"; exit 1; fi
	@$(INSTALL) --progress-bar on 'setuptools>=77' wheel
	@$(INSTALL) --progress-bar on --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "callboard: installing what its tests run on"
	@$(INSTALL) --progress-bar on --no-build-isolation --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
