"""Recording the catalogue: reading source, asking classes that import, and what becomes of those that don't."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from kvlayout.facts import backend_source as source
from kvlayout.facts import record_backends as recorder
from kvlayout.facts.source_tree import NotConstant, SourceTree

ROOT = Path(__file__).parents[2]

# A vLLM in miniature; what it says is made up, its shape is the real one's.
FILES = {
    "v1/kv_cache_layout.py": """
        from enum import Enum
        class KVCacheLayout(Enum):
            LBHNC = (0, 1, 2, 3, 4)
            LBNHC = (0, 1, 3, 2, 4)
        """,
    "v1/attention/backend.py": """
        from vllm.v1.kv_cache_layout import KVCacheLayout
        class MultipleOf:
            def __init__(self, base):
                self.base = base
        class AttentionBackend:
            supported_dtypes = ["float16", "bfloat16"]
            supported_kv_cache_dtypes = ["auto"]
            @staticmethod
            def get_name():
                raise NotImplementedError
            @staticmethod
            def get_supported_kernel_block_sizes(spec=None):
                return [MultipleOf(1)]
            @classmethod
            def get_supported_head_sizes(cls):
                return []
            @classmethod
            def customize_spec(cls, spec):
                return spec
            @classmethod
            def supported_kv_cache_layouts(cls):
                return None
            @classmethod
            def is_mla(cls):
                return False
            @classmethod
            def is_sparse(cls):
                return False
            @classmethod
            def is_ssm(cls):
                return False
        """,
    "v1/attention/backends/registry.py": """
        from enum import Enum
        class AttentionBackendEnum(Enum):
            PLAIN = "vllm.v1.attention.backends.plain.PlainBackend"
            GONE = "vllm.v1.attention.backends.gone.GoneBackend"
            FATAL = "vllm.v1.attention.backends.fatal.FatalBackend"
            BROKEN = "vllm.v1.attention.backends.broken.BrokenBackend"
            TORCH_SDPA = ""
            CUSTOM = None
        class MambaAttentionBackendEnum(Enum):
            pass
        """,
    "v1/attention/backends/composite.py": "def create_composite_attention_backend(*parts, **facts): ...\n",
    "v1/attention/backends/plain.py": """
        from vllm.platforms import current_platform
        from vllm.v1.attention.backend import AttentionBackend, MultipleOf
        from vllm.v1.kv_cache_layout import KVCacheLayout
        SIZES = (16, 32)
        class PlainBackend(AttentionBackend):
            supported_kv_cache_dtypes = [*AttentionBackend.supported_kv_cache_dtypes, "fp8"]
            @staticmethod
            def get_name():
                return "PLAIN"
            @staticmethod
            def get_supported_kernel_block_sizes(spec=None):
                return [64 if current_platform.is_xpu() else 128, *SIZES]
            @classmethod
            def supported_kv_cache_layouts(cls):
                if current_platform.is_rocm():
                    if cls.modern():
                        return (KVCacheLayout.LBNHC,)
                    return super().supported_kv_cache_layouts()
                return (KVCacheLayout.LBHNC, KVCacheLayout.LBNHC)
            @classmethod
            def modern(cls):
                return False
        class ChildBackend(PlainBackend):
            @classmethod
            def get_supported_head_sizes(cls):
                return list((64, 128))
        """,
    "v1/attention/backends/fatal.py": """
        import os
        from vllm.v1.attention.backends.plain import PlainBackend
        os._exit(3)
        class FatalBackend(PlainBackend):
            @staticmethod
            def get_name():
                return "FATAL"
        """,
    "v1/attention/backends/broken.py": """
        from vllm.v1.attention.backends.plain import PlainBackend
        raise RuntimeError("no driver (/home/somebody/lib.so). More words")
        class BrokenBackend(PlainBackend):
            @staticmethod
            def get_name():
                return "BROKEN"
        """,
    "platforms/__init__.py": """
        class current_platform:
            is_rocm = is_xpu = staticmethod(lambda: False)
        """,
    "platforms/cuda.py": "def pick(): return AttentionBackendEnum.PLAIN\n",
    "platforms/rocm.py": "def get_vit_backend(): return AttentionBackendEnum.PLAIN\n",
    "platforms/cpu.py": "",
    "platforms/xpu.py": "",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in FILES.items():
        lines = text.splitlines()
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        file = tmp_path / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(line[indent:] for line in lines))
        for folder in file.parents:
            if folder == tmp_path:
                break
            (folder / "__init__.py").touch()
    return SourceTree(tmp_path, "vllm")


PLAIN = "vllm.v1.attention.backends.plain.PlainBackend"


def test_values_are_read_and_nothing_is_run(tree):
    module = "vllm.v1.attention.backends.plain"

    def value(text):
        return tree.value(ast.parse(text, mode="eval").body, module)

    assert value("[MultipleOf(16), -1, *SIZES]") == [{"multiple_of": 16}, -1, 16, 32]
    assert value("(KVCacheLayout.LBNHC, torch.bfloat16)") == ["LBNHC", "bfloat16"]
    assert value("PlainBackend.supported_kv_cache_dtypes") == ["auto", "fp8"]
    for text in ("unknown", "SIZES[0]", "print(1)", "AttentionBackend.nothing"):
        with pytest.raises(NotConstant, match=text.split("(")[0].replace("[", r"\[")):
            value(text)


def test_names_and_lines_of_classes(tree):
    assert tree.resolve("vllm.v1.attention.backends.broken", "PlainBackend") == PLAIN
    assert tree.resolve("vllm.v1.attention.backends.broken", "os") is None
    child = PLAIN.replace("PlainBackend", "ChildBackend")
    assert tree.lineage(child) == [child, PLAIN, source.BASE]
    assert tree.find_method(child, "customize_spec")[0] == source.BASE
    assert tree.find_method(child, "nothing") is None
    assert tree.module("torch") is None and tree.class_def("NoModule") is None


def test_branches_keep_their_conditions_and_the_default_is_a_bare_cpus(tree):
    owner, branches = source.read_branches(tree, PLAIN, "supported_kv_cache_layouts")
    assert owner == PLAIN
    assert branches == [
        {"when": "current_platform.is_rocm() and cls.modern()", "value": ["LBNHC"]},
        {"when": "current_platform.is_rocm()", "value": None},
        {"when": None, "value": ["LBHNC", "LBNHC"]},
    ]
    assert source.default_branch(branches) is branches[2]
    _, sizes = source.read_branches(tree, PLAIN, "get_supported_kernel_block_sizes")
    assert sizes == [{"when": "current_platform.is_xpu()", "value": [64, 16, 32]},
                     {"when": None, "value": [128, 16, 32]}]
    with pytest.raises(NotConstant, match=r"PlainBackend has no gone\(\)"):
        source.read_branches(tree, PLAIN, "gone")


def test_catalogue_from_source(tree):
    catalogue = recorder.read_catalogue(tree)
    assert set(catalogue["backends"]) == {"PLAIN", "ChildBackend", "FATAL", "BROKEN"}
    plain, child = catalogue["backends"]["PLAIN"], catalogue["backends"]["ChildBackend"]
    assert plain["registry"] == "attention" and plain["platforms"] == ["cuda"] and plain["from_source"]
    assert child["registry"] is None and child["head_sizes"] == [64, 128] and child["vllm_name"] == "PLAIN"
    assert catalogue["placeholders"] == {
        "GONE": "its class vllm.v1.attention.backends.gone.GoneBackend is not in the package",
        "TORCH_SDPA": "used for vision towers, which keep no cache",
        "CUSTOM": "a name for a class of the user's own"}


def test_source_mode_writes_the_file(tree, tmp_path, monkeypatch, capsys):
    arguments = ["--source", str(tree.root), "--version", "9.9.9", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["record", *arguments])
    recorder.main()
    assert capsys.readouterr().out == "4 backends of vLLM 9.9.9\n"
    text = (tmp_path / "out" / "backends-9.9.9.json").read_text()
    recorded = json.loads(text)
    assert recorded["vllm"] == "9.9.9" and list(recorded["backends"]) == sorted(recorded["backends"])
    assert "is_mla" not in recorded["backends"]["PLAIN"] and str(tmp_path) not in text
    monkeypatch.setattr(sys, "argv", ["record", "--source", "x"])
    with pytest.raises(SystemExit):
        recorder.main()


def test_classes_are_asked_and_the_ones_that_end_python_are_read_from_source(tree, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{tree.root}:{ROOT}")
    backends = recorder.read_catalogue(tree)["backends"]
    answers = recorder.ask_all([facts["class_path"] for facts in backends.values()])
    for facts in backends.values():
        recorder.merge(facts, answers[facts["class_path"]])
    assert not backends["PLAIN"]["from_source"] and backends["PLAIN"]["kernel_block_sizes"] == [128, 16, 32]
    assert backends["PLAIN"]["layouts"] == ["LBHNC", "LBNHC"]
    assert backends["FATAL"]["from_source"]
    assert backends["FATAL"]["reason"] == "Python ended with status 3 while importing it"
    assert backends["BROKEN"]["reason"] == "RuntimeError: no driver"


def test_an_answer_that_differs_from_the_source_is_said_and_kept(capsys):
    facts = {"class_path": "a.B", "from_source": True, "layouts": None, "is_mla": False}
    recorder.merge(facts, {"layouts": ["LBHNC"], "is_mla": False})
    assert facts["layouts"] == ["LBHNC"] and not facts["from_source"]
    assert "a.B.layouts: source says None, the class ['LBHNC']" in capsys.readouterr().err
