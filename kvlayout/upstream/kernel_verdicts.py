"""Verdicts on kernels in Triton, our examples and vLLM's own: run where they can be, else as they were recorded.

``python -m kvlayout.upstream.kernel_verdicts FILE`` runs all of them, or those named, and writes their record; it
needs triton, for vLLM's own vLLM 0.33 too, and no GPU. The records are notebooks/data/kernel-verdicts.json, and of
vLLM's own over 500 shapes tests/recorded/writers/0.33.0.json (``--cases 500 --kernel NAME --kernel NAME``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kvlayout.errors import LayoutError, check_int
from kvlayout.spec import FullAttentionSpec

if TYPE_CHECKING:
    from kvlayout.bench import KernelReport

SPEC = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=32, dtype="bfloat16")


@dataclass(frozen=True)
class _Kernel:
    """Where a writer's function is, the module that it needs, and what of VARY it doesn't take."""

    module: str
    function: str
    needs: str
    fixed: tuple[str, ...] = ()


_OPS = "vllm.v1.attention.ops.triton_reshape_and_cache_flash"
_KERNELS = {
    "triton_writer": _Kernel("kvlayout.bench.examples.triton_writer", "write", "triton"),
    "triton_flat_writer": _Kernel("kvlayout.bench.examples.triton_flat_writer", "write", "triton"),
    "reshape_and_cache_flash": _Kernel("kvlayout.upstream.triton_writer", "reshape_and_cache_flash", _OPS,
                                       ("head_size_v",)),
    "reshape_and_cache_flash_diffkv": _Kernel("kvlayout.upstream.triton_writer", "reshape_and_cache_flash_diffkv",
                                              _OPS),
}
NAMES = tuple(_KERNELS)


@dataclass(frozen=True)
class KernelVerdict:
    """What check_writer said of a kernel.

    Attributes:
        kernel: its name, one of NAMES
        ok: whether nothing went wrong
        text: the report's sentences
        source: where and when it was run
        is_recorded: whether it was run at another time, because it can't be here
    """

    kernel: str
    ok: bool
    text: tuple[str, ...]
    source: str
    is_recorded: bool

    @property
    def lines(self) -> tuple[str, ...]:
        """The verdict as plain text, with where it comes from first."""
        return (f"{self.kernel} · {self.source}", *self.text)


def triton_device() -> str:
    """Return "cuda" where there is a GPU, else make Triton run its kernels in Python, and return "cpu".

    To be called before anything imports triton or vLLM.
    """
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise LayoutError("triton", "imported", "was made for a GPU, and there is none",
                          "Restart Python and call this before anything imports triton")
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return "cpu"


def why_not(kernel: str) -> str:
    """Return why a kernel can't be run in this Python; empty where it can. LayoutError for an unknown name."""
    needs = _kernel(kernel).needs
    for package in dict.fromkeys((needs.partition(".")[0], "triton")):
        if find_spec(package) is None:
            return f"{package} isn't installed here"
    try:
        triton_device()
        import_module(needs)
    except Exception as error:  # an installation that is broken, or of another release, may raise anything
        return f"{needs} can't be imported: {type(error).__name__}: {error}"
    return ""


def kernel_verdict(kernel: str, recorded: Path | str | None = None, *, cases: int = 24) -> KernelVerdict:
    """Return the verdict on one of NAMES: of a run in this Python, or where that can't be, of the file ``recorded``.

    ``cases``: how many random shapes a run tries. Raises LayoutError where it can't be run and isn't recorded.
    """
    check_int("cases", cases, minimum=1)
    reason = why_not(kernel)
    if not reason:
        return _run(kernel, cases)
    if recorded is None:
        raise LayoutError("kernel", kernel, f"can't be run: {reason}", "Name a file with its record")
    try:
        record = json.loads(Path(recorded).read_text())
        found = record["verdicts"][kernel]
        source = f"RECORDED on {record['date']} with {record['made_with']}; not run now, as {reason}"
        return KernelVerdict(kernel, bool(found["ok"]), tuple(map(str, found["text"])), source, True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LayoutError("recorded", str(recorded), f"holds no verdict on {kernel} ({type(error).__name__})",
                          "Make it with python -m kvlayout.upstream.kernel_verdicts FILE") from error


def _kernel(name: str) -> _Kernel:
    if not isinstance(name, str) or name not in _KERNELS:
        raise LayoutError("kernel", name, f"must be one of {', '.join(NAMES)}")
    return _KERNELS[name]


def _run(name: str, cases: int) -> KernelVerdict:
    report, device = _report(name, cases), triton_device()
    return KernelVerdict(name, report.ok, tuple(report.sentences()), f"run now with {_made_with(device)}", False)


def _report(name: str, cases: int) -> KernelReport:
    from kvlayout.bench import VARY, check_writer

    kernel, device = _kernel(name), triton_device()
    writer: Callable = getattr(import_module(kernel.module), kernel.function)
    # On a GPU an address out of all memory would end the process, and the flat writer has some.
    fixed = (*kernel.fixed, *(("far_blocks",) if device == "cuda" and name == "triton_flat_writer" else ()))
    return check_writer(writer, SPEC, cases=cases, vary=[one for one in VARY if one not in fixed], device=device)


def _record(report: KernelReport) -> dict:
    return {"ok": report.ok, "cases": report.cases, "far_cases": report.far_cases, "failed": report.failed,
            "by_layout": report.by_layout, "by_feature": report.by_feature, "text": report.sentences()}


def _made_with(device: str) -> str:
    """The releases that take part, and on what."""
    found = []
    for package in ("vllm", "triton", "torch"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return f"{', '.join(found)}, {'on a GPU' if device == 'cuda' else 'in the interpreter on a CPU'}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run every kernel and write the record; return the process's exit status: 2 where one can't be run."""
    parser = argparse.ArgumentParser(prog="python -m kvlayout.upstream.kernel_verdicts", description=__doc__)
    parser.add_argument("file", type=Path, help="the JSON file to write")
    parser.add_argument("--cases", type=int, default=120, help="random shapes for each kernel")
    parser.add_argument("--kernel", action="append", choices=NAMES, help="run only this one; may be given again")
    args = parser.parse_args(argv)
    names = args.kernel or NAMES
    try:
        check_int("cases", args.cases, minimum=1)
        for name in names:
            if why_not(name):
                raise LayoutError("kernel", name, f"can't be run: {why_not(name)}")
        found = {name: _record(_report(name, args.cases)) for name in names}
    except LayoutError as error:
        print(error, file=sys.stderr)
        return 2
    record = {"date": date.today().isoformat(), "made_with": _made_with(triton_device()), "verdicts": found}
    args.file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
