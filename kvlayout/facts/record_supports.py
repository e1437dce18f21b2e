"""Record what vLLM's backend classes say to sizes and dtypes: ``python -m kvlayout.facts.record_supports OUT.json``.

Run it with a Python that has vLLM (no GPU is needed: what then depends on the machine is answered for none). Every
class that can be imported is asked ``supports_head_size`` and so on for a list of values; those it takes are written.
The tests hold "What can I run?" against it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from pathlib import Path

from kvlayout.facts.catalogue import SUPPORTS, load
from kvlayout.facts.kv_dtypes import kv_cache_dtypes

SCRIPT = "python -m kvlayout.facts.record_supports"


def values(vllm_version: str) -> dict[str, list]:
    """Return {question: values that are asked}: usual sizes, odd ones, and the edges of checks."""
    return {
        "head_size": [1, 7, 8, 16, 31, 32, 46, 64, 72, 80, 96, 112, 128, 192, 248, 256, 264, 512, 520, 576, 1024],
        "block_size": [1, 7, 8, 16, 24, 32, 48, 64, 80, 96, 128, 256, 544, 1024],
        "dtype": ["float16", "bfloat16", "float32"],
        "kv_cache_dtype": list(kv_cache_dtypes(vllm_version)),
    }


def ask(path: str, vllm_version: str) -> dict[str, list]:
    """Return {question: values that the class takes}."""
    import torch

    module_name, _, name = path.rpartition(".")
    backend = getattr(importlib.import_module(module_name), name)
    return {question: [one for one in asked if getattr(backend, SUPPORTS[question])(
                getattr(torch, one) if question == "dtype" else one)]
            for question, asked in values(vllm_version).items()}


def main() -> None:
    """Ask all classes of the installed vLLM and write the file that the command line names."""
    version = importlib.metadata.version("vllm").partition("+")[0]
    answers = {}
    for name, backend in load(version).items():
        try:
            answers[name] = ask(backend.class_path, version)
        except Exception as error:  # whatever a module does when its hardware or library is missing
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in answers.items())
    Path(sys.argv[1]).write_text(f'{{\n "vllm": {json.dumps(version)},\n "script": {json.dumps(SCRIPT)},\n "asked": '
                                 f'{json.dumps(values(version))},\n "takes": {{\n{lines}\n }}\n}}\n')
    print(f"{len(answers)} of {len(load(version))} backends of vLLM {version}")


if __name__ == "__main__":
    main()
