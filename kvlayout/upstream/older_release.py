"""Unpacks the Python files of a vLLM release: ``python -m kvlayout.upstream.older_release 0.29.0 FOLDER``.

Beside another release's dependencies they are enough for everything that only computes layouts; compiled parts and
data are left out. Put FOLDER first on PYTHONPATH.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def unpack(wheel: Path, folder: Path) -> int:
    """Unpack ``vllm/**/*.py`` of a wheel into ``folder``; return how many files."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        if "vllm/version.py" not in names:
            raise SystemExit(f"{wheel.name} holds no vllm/version.py, so it is no wheel of vLLM")
        # The file that says that all is there comes last.
        archive.extractall(folder, sorted(names, key=lambda name: name == "vllm/version.py"))
    return len(names)


def main(release: str, folder: str) -> None:
    """Download the official wheel of ``release``, unpack it, and delete it."""
    with tempfile.TemporaryDirectory() as downloads:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                        "--only-binary", ":all:", "--dest", downloads, f"vllm=={release}"], check=True)
        (wheel,) = Path(downloads).glob("vllm-*.whl")
        count = unpack(wheel, Path(folder))
    print(f"{count} Python files of vLLM {release} in {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])
