"""Plugins: a package is really installed; what it registers is in the catalogues, and what is broken is left out."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvlayout import plugins

ROOT = Path(__file__).parents[2]
PACKAGE = Path(__file__).parent / "plugin_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return the folder that the package and a second one, which wants the same name, are installed into."""
    folder = tmp_path_factory.mktemp("installed")
    second = tmp_path_factory.mktemp("second") / "package"
    shutil.copytree(PACKAGE, second, ignore=shutil.ignore_patterns("acme_kv", "__pycache__"))
    (second / "zeta_kv.py").write_text("LAYOUT = 'CLBHN'\n")
    (second / "pyproject.toml").write_text("""
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "zeta-kv"
version = "0.1"
[project.entry-points."kvlayout.layouts"]
acme_rows = "zeta_kv:LAYOUT"
ZETA = "zeta_kv:LAYOUT"
[tool.setuptools]
py-modules = ["zeta_kv"]
""")
    for source in (PACKAGE, second):
        copy = tmp_path_factory.mktemp("source") / "package"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        # With the setuptools installed here, so that no registry is asked.
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
                   "--disable-pip-version-check", "--target", str(folder), str(copy)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def run(installed):
    def run(code, *options):
        path = os.pathsep.join([str(ROOT), str(ROOT / "widgets"), str(installed)])
        done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "PYTHONPATH": path})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


def test_nothing_is_loaded_before_a_catalogue_is_asked(run):
    found, _ = run("""
import json, sys, kvlayout as kv
kv.KVCacheLayout, kv.layout_from_name("NHD"), kv.PhysicalLayout("HBLNC"), kv.Selection(layout="HBLNC")
before = "acme_kv" in sys.modules
kv.presets()
print(json.dumps([before, "acme_kv" in sys.modules]))
""")
    assert found == [False, True]


def test_what_is_right_is_in_the_catalogues_and_can_be_planned(run):
    found, _ = run("""
import json, kvlayout as kv
from kvlayout.bench import backend_matrix, try_backend
from kvlayout.layout import as_layout
plan = kv.make_plan(kv.Selection(model="tiny-2l", backend="ACME_FLAT", layout="ACME_ROWS", num_blocks=4))
free = kv.make_plan(kv.Selection(model="acme/Tiny-2L", backend="ACME_FLAT", num_blocks=4, vllm_version="0.30.0"))
row = backend_matrix("0.33.0").row("ACME_FLAT")
print(json.dumps({
    "registered": kv.plugins.registered(), "model": kv.get_preset("acme/Tiny-2L").source,
    "layouts": [as_layout("ACME_ROWS").name, as_layout("ACME_SAME") is kv.KVCacheLayout.LBNHC],
    "plan": [plan.layout.name, plan.config.size_bytes],
    "free": [free.layout.name, kv.get_backend("ACME_FLAT").plugin],
    "specs": kv.make_plan(kv.Selection(model="acme/Specs", num_blocks=2)).config.size_bytes,
    "short": kv.get_preset("llama-3.1-8b").name,
    "cells": {name: cell.state for name, cell in row.cells.items()},
    "mla": backend_matrix("0.33.0", mla=True).row("ACME_FLAT").not_settled,
    "beside": try_backend(kv.get_backend("ACME_FLAT").asked).alone.layout,
}))
""", "-W", "ignore")
    assert found["registered"] == {"backends": ["ACME_FLAT"], "layouts": ["ACME_ROWS", "ACME_SAME", "ZETA"],
                                   "models": ["acme/Llama-3.1-8B", "acme/Specs", "acme/Tiny-2L"]}
    assert found["model"] == "a plugin of acme-kv 1.5"
    assert found["layouts"] == ["BNHLC", True]
    # 2 layers x 4 blocks x 2 heads x 16 states x 64 bytes.
    assert found["plan"] == ["BNHLC", 2 * 4 * 2 * 16 * 64] and found["free"] == ["BLNHC", "acme-kv 1.5"]
    assert found["specs"] == 2 * 2 * 16 * 64
    assert found["short"] == "meta-llama/Llama-3.1-8B"  # a plugin takes no preset's short name
    assert found["cells"] == dict.fromkeys(["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BHLNC"], "refused") | {
        "BLNHC": "supported"}
    assert found["mla"] == ["whether it keeps latents (MLA) is not recorded"] and found["beside"] == "BLNHC"


def test_what_is_broken_is_named_and_stops_nothing(run):
    found, told = run("""
import json, kvlayout as kv
found = kv.plugins.plugin_findings()
assert kv.plugins.plugin_findings() == found
print(json.dumps({one.numbers["kind"] + " " + one.numbers["name"] + " " + one.numbers["package"]:
                  [one.rule, one.severity, one.message] for one in found}))
""")
    expected = {
        "backends ACME_BROKEN": "ModuleNotFoundError: No module named 'acme_kv_needs_this'",
        "backends ACME_EXIT": "SystemExit: no GPU",
        "backends ACME_ODD": "has no supported_kv_cache_layouts()",
        "backends ACME_GONE": "AttributeError: module 'acme_kv' has no attribute 'Gone'",
        "backends FLASH_ATTN": "its name is taken: vLLM 0.33.0 has a backend FLASH_ATTN",
        "backends ACME_MUTE": "leaves out ACME_MUTE (acme_kv.mute:Backend): Mute.",
        "backends ACME_DIRECT": "Direct: direct",
        "backends flashinfer": "its name is taken: vLLM 0.33.0 has a backend FLASHINFER",
        "layouts hnd": "its name is taken: HND is a layout of vLLM",
        "layouts Lbnhc": "its name is taken: LBNHC is a layout of vLLM",
        "layouts cblnh": "its name is taken: CBLNH is itself an order of the axes",
        "layouts ACME_WRONG": "must name each of the axes L, B, H, N, C exactly once",
        "layouts NHD": "its name is taken: NHD is a layout of vLLM",
        "layouts HBLNC": "its name is taken: HBLNC is itself an order of the axes",
        "models acme/Unknown": "isn't a model type that can be read",
        "models qwen/qwen3-0.6b": "its name is taken: Qwen/Qwen3-0.6B is a preset",
    }
    second = found.pop("layouts acme_rows zeta-kv 0.1")
    assert second[:2] == ["plugin-name", "warning"] and "another package registers ACME_ROWS too" in second[2]
    assert set(found) == {f"{name} acme-kv 1.5" for name in expected}
    for name, part in expected.items():
        rule, severity, message = found[f"{name} acme-kv 1.5"]
        assert severity == "warning" and part in message and "acme-kv 1.5" in message
        assert rule == ("plugin-name" if "its name is taken" in part else "plugin-broken")
        assert message in told  # as a warning too
    assert told.count("PluginWarning: ") == len(expected) + 1


def test_a_list_that_cannot_be_read_is_named_and_stops_nothing(run, tmp_path):
    for name, listed in (("torn", "[kvlayout.layouts]\nTORN\n"), ("other", "[console_scripts]\nOTHER\n")):
        folder = tmp_path / f"{name}-0.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
        (folder / "entry_points.txt").write_text(listed)
    (tmp_path / "empty-1.dist-info").mkdir()
    shutil.copytree(tmp_path / "torn-0.1.dist-info", tmp_path / "bytes-0.1.dist-info")
    (tmp_path / "bytes-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: bytes\nVersion: 0.1\n")
    (tmp_path / "bytes-0.1.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe")
    found, _ = run(f"""
import json, sys
sys.path.insert(0, {str(tmp_path)!r})
import kvlayout as kv
print(json.dumps([kv.plugins.registered(), [str(one) for one in kv.plugins.plugin_findings()
                                            if "acme" not in one.message and "zeta" not in one.message]]))
""", "-W", "ignore")
    registered, told = found
    assert registered["layouts"] == ["ACME_ROWS", "ACME_SAME", "ZETA"] and "ACME_FLAT" in registered["backends"]
    named = [re.search(r"kvlayout.(\w+) of (.+) leaves out all \(entry_points.txt\): its list can't be read", one)
             for one in told]
    assert [one.groups() for one in named] == [
        ("backends", "bytes 0.1"), ("layouts", "bytes 0.1"), ("layouts", "torn 0.1"), ("models", "bytes 0.1")]


def test_the_explorer_offers_them(run):
    found, _ = run("""
import json, kvlayout as kv
from kvlayout_widgets import Explorer
from kvlayout_widgets import catalogue
shown = Explorer(model="acme/Tiny-2L", backend="ACME_FLAT", layout="ACME_ROWS", num_blocks=4)
shown.show("Offsets")
print(json.dumps({"models": [value for _, value in catalogue.model_options()], "layout": shown.plan.layout.name,
    "backends": [text for text, value in catalogue.backend_options("0.33.0") if value == "ACME_FLAT"],
    "layouts": [text for text, value in catalogue.layout_options(None, {}) if value == "ACME_ROWS"],
    "status": shown._status.value}))
""", "-W", "ignore")
    assert "acme/Tiny-2L" in found["models"] and found["layout"] == "BNHLC" and "Error" not in found["status"]
    assert found["backends"] == ["ACME_FLAT (by acme-kv 1.5)"]
    assert found["layouts"] == ["ACME_ROWS (BNHLC, a plugin's)"]


def test_the_command_line_takes_them(run, installed):
    code = """
import json, sys
from typer.testing import CliRunner
from kvlayout.cli.app import app
done = CliRunner().invoke(app, ["explain", "acme/Tiny-2L", "--backend", "ACME_FLAT", "--json"])
print(json.dumps(json.loads(done.stdout)["layout"]))
"""
    assert run(code, "-W", "ignore")[0] == "BLNHC"


def test_without_plugins():
    assert plugins.registered() == {"backends": [], "layouts": [], "models": []}
    assert plugins.plugin_findings() == []
