"""Record the catalogue of vLLM's attention backends: ``python -m kvlayout.facts.record_backends --out FOLDER``.

Run with a Python that has vLLM, it reads every backend's source and then asks each class that can be imported on
this machine; what the class answers is what is recorded. With ``--source FOLDER --version V`` (a folder that holds
an unpacked ``vllm``) nothing is imported: all is read from the source and marked so. A new release is one command.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from kvlayout.candidates import common_layouts
from kvlayout.facts import backend_source as source
from kvlayout.facts.source_tree import SourceTree

SCRIPT = "python -m kvlayout.facts.record_backends"
SECONDS_PER_RUN = 400  # a Python that asks all classes takes about a minute; one that hangs is ended
PLACEHOLDERS = {None: "a name for a class of the user's own", "": "used for vision towers, which keep no cache"}

# What is read by calling a method without arguments, and what is a class attribute.
METHODS = {
    "vllm_name": "get_name",
    "layouts": "supported_kv_cache_layouts",
    "kernel_block_sizes": "get_supported_kernel_block_sizes",
    "head_sizes": "get_supported_head_sizes",
    "is_mla": "is_mla",
    "is_sparse": "is_sparse",
    "is_ssm": "is_ssm",
}
BRANCHES = {"layouts": "layout_branches", "kernel_block_sizes": "kernel_block_branches"}
ATTRIBUTES = {"dtypes": "supported_dtypes", "kv_cache_dtypes": "supported_kv_cache_dtypes"}


def read_backend(tree: SourceTree, path: str) -> dict:
    """Return the facts of one backend class as its source gives them."""
    facts = {"class_path": path, "from_source": True, **read_attributes(tree, path)}
    for name, method in METHODS.items():
        owner, branches = source.read_branches(tree, path, method)
        facts[name] = source.default_branch(branches).get("value")
        if len(branches) > 1 or "expression" in branches[0]:
            facts[BRANCHES[name]] = branches
    owner, _ = tree.find_method(path, "customize_spec")
    facts["repacked_by"] = None if owner == source.BASE else owner
    facts["bases"] = [base for base in tree.lineage(path)[1:] if base != source.BASE]
    return facts


def read_attributes(tree: SourceTree, path: str) -> dict:
    """Return the facts that are class attributes."""
    found = {name: tree.find_attribute(path, attribute) for name, attribute in ATTRIBUTES.items()}
    return {name: tree.value(expression, owner.rpartition(".")[0]) for name, (owner, expression) in found.items()}


def read_composite(tree: SourceTree, path: str, composite: dict) -> dict:
    """Return the facts of two backends under one name: what both can do (``create_composite_attention_backend``)."""
    # A part of a private class only narrows where its base may run.
    public = [next(one for one in tree.lineage(part) if not one.rpartition(".")[2].startswith("_"))
              for part in composite["parts"]]
    parts = [read_backend(tree, one) for one in public]
    return {
        "class_path": path, "from_source": True, "parts": public, **read_attributes(tree, source.BASE),
        "vllm_name": composite["backend_name"], "head_sizes": composite.get("head_sizes", []),
        "layouts": [one.name for one in common_layouts((p["class_path"], p["layouts"]) for p in parts).layouts],
        "kernel_block_sizes": composite.get("kernel_block_sizes") or common_sizes(parts),
        **dict.fromkeys(("is_mla", "is_sparse", "is_ssm"), False),
    }


def common_sizes(parts: list[dict]) -> list:
    """Return the kernel block sizes of two parts; only equal lists are met so far."""
    first, second = (part["kernel_block_sizes"] for part in parts)
    if first != second:
        raise NotImplementedError(f"a composite of kernel block sizes {first} and {second}")
    return first


def read_catalogue(tree: SourceTree) -> dict:
    """Return {"backends": {name: facts}, "placeholders": {name: reason}} as the source gives them."""
    enums, platforms, composites = source.read_enums(tree), source.read_platforms(tree), source.read_composites(tree)
    named = {path: (name, kind) for kind, entries in enums.items() for name, path in entries.items() if path}
    paths = source.find_backends(tree)
    found = {path: read_backend(tree, path) for path in paths}
    found |= {path: read_composite(tree, path, one) for path, one in composites.items()}
    names = unlisted_names({path: facts["vllm_name"] for path, facts in found.items()},
                           {path for path in paths if tree.find_method(path, "get_name")[0] == path},
                           {path: name for path, (name, _) in named.items()})
    backends = {}
    for path, facts in found.items():
        name, facts["registry"] = named.get(path, (names.get(path), None))
        facts["platforms"] = platforms.get(name) or source.guess_platforms(path, name)
        backends[name] = facts
    placeholders = {name: PLACEHOLDERS.get(path, f"its class {path} is not in the package")
                    for entries in enums.values() for name, path in entries.items() if path not in found}
    return {"backends": backends, "placeholders": placeholders}


def unlisted_names(vllm_names: dict[str, str], namers: set[str], listed: dict[str, str]) -> dict[str, str]:
    """Return a name for each class without an enum entry: vLLM's own where this class alone defines it (``namers``
    are the classes that define their names themselves), else the shortest end of the class path that is unique."""
    count = Counter(name for path, name in vllm_names.items() if path in namers)
    names = {}
    for path, name in vllm_names.items():
        if path in listed:
            continue
        if path not in namers or count[name] > 1 or name in listed.values():
            parts = path.split(".")
            tails = (".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1))
            name = next(tail for tail in tails if sum(f".{other}".endswith(f".{tail}") for other in vllm_names) == 1)
        names[path] = name
    return names


def ask(path: str) -> dict:
    """Import one class and return its facts, or {"reason": why not}. Runs in a Python of its own."""
    module_name, _, name = path.rpartition(".")
    try:
        backend = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # whatever a module does when its hardware or library is missing
        text = re.sub(r" \(/[^)]*\)", "", str(error))  # without this machine's paths
        return {"reason": f"{type(error).__name__}: {text.split('. ')[0]}".strip()}
    facts = {}
    for key, method in METHODS.items():
        try:
            facts[key] = plain(getattr(backend, method)())
        except Exception as error:  # some answers need a model's configuration
            print(f"{path}.{method}(): {type(error).__name__}: {error}", file=sys.stderr)
    for key, attribute in ATTRIBUTES.items():
        facts[key] = plain(getattr(backend, attribute))
    return facts


def plain(value: object) -> object:
    """Return a backend's answer as JSON: lists, names of layouts and dtypes, MultipleOf(n) as {"multiple_of": n}."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if type(value).__name__ == "MultipleOf":
        return {"multiple_of": value.base}
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return value.name if type(value).__name__ == "KVCacheLayout" else value


def ask_all(paths: list[str]) -> dict[str, dict]:
    """Ask every class in a second Python, which is started anew behind a class that ends or hangs it."""
    answers: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answers.jsonl"
        while len(answers) < len(paths):
            waiting = [path for path in paths if path not in answers]
            command = [sys.executable, "-m", __spec__.name, "--ask", str(file), *waiting]
            environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
            try:
                code = subprocess.run(command, env=environment, timeout=SECONDS_PER_RUN, check=False).returncode
                end = f"Python ended with status {code} while importing it"
            except subprocess.TimeoutExpired:
                end = f"importing it took more than {SECONDS_PER_RUN} s"
            answers = {line["path"]: line["facts"] for line in map(json.loads, file.read_text().splitlines())}
            unanswered = [path for path in paths if path not in answers]
            if unanswered:
                with file.open("a") as lines:
                    lines.write(json.dumps({"path": unanswered[0], "facts": {"reason": end}}) + "\n")
                answers[unanswered[0]] = {"reason": end}
    return answers


def merge(facts: dict, answer: dict) -> None:
    """Put what a class answered in place of what its source says, and say where the two differ."""
    if "reason" in answer:
        facts["reason"] = answer["reason"]
        return
    facts["from_source"] = False
    for key, value in answer.items():
        if facts[key] != value:
            print(f"{facts['class_path']}.{key}: source says {facts[key]}, the class {value}", file=sys.stderr)
        facts[key] = value


def catalogue_text(catalogue: dict) -> str:
    """Return the catalogue as JSON, a fact a line, facts that are false, empty or absent left out."""
    lines = ["{"]
    lines += [f" {json.dumps(key)}: {json.dumps(catalogue[key], sort_keys=True)},"
              for key in ("vllm", "script", "placeholders")]
    lines.append(' "backends": {')
    blocks = []
    for name, facts in sorted(catalogue["backends"].items()):
        rows = [f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(facts.items())
                if value not in (None, False, [])]
        blocks.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(rows) + "}")
    return "\n".join(lines) + "\n" + ",\n".join(blocks) + "\n }\n}\n"


def main() -> None:
    """Read the command line and write ``backends-VERSION.json``."""
    parser = argparse.ArgumentParser(description="Record vLLM's attention backends.")
    parser.add_argument("--out", type=Path, help="folder for backends-VERSION.json")
    parser.add_argument("--source", type=Path, help="folder that holds an unpacked vllm; nothing is imported")
    parser.add_argument("--version", help="the version of --source")
    parser.add_argument("--ask", nargs="+", metavar=("FILE", "CLASS"), help="used by the recorder itself")
    options = parser.parse_args()
    if options.ask:
        with open(options.ask[0], "a") as file:
            for path in options.ask[1:]:
                print(json.dumps({"path": path, "facts": ask(path)}), file=file, flush=True)
        return
    if options.out is None or (options.source is None) != (options.version is None):
        parser.error("give --out, and --source together with --version or neither")
    root, version = options.source, options.version
    if root is None:
        root = Path(importlib.util.find_spec("vllm").submodule_search_locations[0]).parent
        version = importlib.metadata.version("vllm")
    catalogue = {"vllm": version, "script": SCRIPT, **read_catalogue(SourceTree(root, "vllm"))}
    if options.source is None:
        answers = ask_all([facts["class_path"] for facts in catalogue["backends"].values()])
        for facts in catalogue["backends"].values():
            merge(facts, answers[facts["class_path"]])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"backends-{version}.json").write_text(catalogue_text(catalogue))
    print(f"{len(catalogue['backends'])} backends of vLLM {version}")


if __name__ == "__main__":
    main()
