# make lab    makes the environment and opens JupyterLab on the explorer
# make test   makes the environment and runs every test that this machine can run
# Both take EXTRAS=vllm: a second environment, .venv-vllm, with real vLLM.

PYTHON ?= python3
EXTRAS ?=
LAB_ARGS ?=
TEST_ARGS ?=

ifeq ($(EXTRAS),)
VENV := .venv
CONSTRAINTS := constraints.txt
INSTALL := .[torch,cli,lab,test]
else ifeq ($(EXTRAS),vllm)
VENV := .venv-vllm
CONSTRAINTS := constraints-vllm.txt
INSTALL := .[torch,cli,lab,test,vllm]
else
$(error EXTRAS=$(EXTRAS) is unknown; leave it out, or use EXTRAS=vllm)
endif

# Jupyter refuses to run as root unless told; containers with a GPU are mostly root.
LAB_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help install lab test lint bench clean

help:
	@sed -n 's/^# //p' Makefile | head -3

install: $(VENV)/.installed

# The stamp is newer than what it was made from, so a second run installs nothing.
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvlayout needs Python 3.11 or newer; this is " + \
	  sys.version.split()[0] + ". Say which: make PYTHON=/path/to/python3")'
	@echo "Installing into $(VENV); this takes a few minutes, once."
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '$(INSTALL)'
	@touch $@

lab: install
	$(VENV)/bin/python -m jupyterlab $(LAB_ROOT) --ServerApp.root_dir='$(CURDIR)/notebooks' \
	  --LabApp.default_url=/lab/tree/explorer.ipynb $(LAB_ARGS)

test: install
	$(VENV)/bin/python -m pytest -n 2 --dist loadgroup $(TEST_ARGS)

lint: install
	$(VENV)/bin/python -m ruff check .

bench: install
	$(VENV)/bin/python tests/benchmarks/bench.py

clean:
	rm -rf .venv .venv-vllm build dist *.egg-info .pytest_cache .ruff_cache .hypothesis tests/browser/out
	find kvlayout widgets tests notebooks -name __pycache__ -prune -exec rm -rf {} +
