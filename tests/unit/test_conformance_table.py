"""The README's conformance table is what the recorded runs say, and they ran long enough, without a disagreement."""

import json
import re
from pathlib import Path

import pytest

from kvlayout.upstream.conformance import kinds
from kvlayout.versions import VLLM_VERSIONS

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (0\.\d+\.\d+) \| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)


def recorded(version: str) -> dict:
    return json.loads((ROOT / "tests" / "recorded" / "conformance" / f"{version}.json").read_text())


def test_every_release_has_one_row():
    assert [version for version, _ in ROWS] == list(VLLM_VERSIONS)


@pytest.mark.parametrize(("version", "row"), ROWS)
def test_a_row_is_its_recorded_run(version, row):
    run = recorded(version)
    assert run["vllm"] == run["reproduced"] == version
    assert row.split(" | ") == [run["date"], f"{run['cases']:,}", f"{run['refused']:,}", str(run["disagreements"]),
                                f"{run['seconds']:,.0f}"]


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_each_kind_was_asked_often_enough_and_mostly_answered(version):
    run = recorded(version)
    assert set(run["kinds"]) == set(kinds())
    for name, kind in run["kinds"].items():
        assert kind["cases"] >= 20_000 and kind["disagreements"] == 0 and kind["first"] == [], name
        assert kind["values"] + kind["refused"] == kind["cases"]
        assert kind["refused"] <= 0.6 * kind["cases"], name
    assert run["refused"] == sum(kind["refused"] for kind in run["kinds"].values())
