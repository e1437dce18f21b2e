"""What can I run? against what vLLM's own classes answer: a yes is never a no, and a no never a yes."""

import json
from pathlib import Path

import pytest

from kvlayout.bench import PrototypeBackend, backend_matrix
from kvlayout.bench.running import Wanted
from kvlayout.facts.backends import as_backend
from kvlayout.facts.catalogue import load
from kvlayout.facts.machine import PLATFORMS
from kvlayout.versions import VLLM_VERSIONS

RECORDED = json.loads((Path(__file__).parents[1] / "recorded" / "supports-0.33.0.json").read_text())


def answer(backend, platform, **asked):
    """True, False, or None where it isn't settled, of one question alone."""
    (name, _), = asked.items()
    return Wanted(platform=platform, **asked).answer(name, backend)[0]


@pytest.mark.parametrize("question", RECORDED["asked"])
def test_a_yes_is_never_a_no_of_vllms_class_nor_a_no_a_yes(question):
    known, settled, asked = load("0.33.0"), 0, 0
    for name, takes in RECORDED["takes"].items():
        # It was asked on a machine without an accelerator; nothing but the platform may tell another one's answer.
        backend = known[name]
        for value in RECORDED["asked"][question]:
            found = answer(backend, None, **{question: value})
            assert found is None or found is (value in takes[question]), (name, question, value)
            settled, asked = settled + (found is not None), asked + 1
    assert asked > 240 and settled > 0.9 * asked, f"only {settled} of {asked} are settled"


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_no_platform_changes_what_is_settled_without_one(version):
    for backend in load(version).values():
        for asked in ({"head_size": 512}, {"head_size": 16}, {"block_size": 32}, {"kv_cache_dtype": "fp8"}):
            without = answer(backend, None, **asked)
            if without is not None:
                assert {answer(backend, platform, **asked) for platform in PLATFORMS} == {without}, backend.name


@pytest.mark.parametrize("name, asked, settled, said", [
    ("FLASH_ATTN", {"head_size": 7}, False, "refuses head size 7: its class refuses head_size % 8 != 0"),
    ("FLASH_ATTN", {"head_size": 256}, True, None),
    ("FLASH_ATTN", {"head_size": 512}, None, "whether it takes head size 512 depends: is_fa_version_supported(4)"),
    ("TRITON_ATTN", {"head_size": 16}, False, "refuses head size 16: its class wants head_size >= 32"),
    ("FLASH_ATTN", {"kv_cache_dtype": "fp8"}, None,
     "whether it takes KV cache dtype fp8 depends: flash_attn_supports_kv_cache_dtype(kv_cache_dtype)"),
    ("TRITON_FLASHINFER", {"kv_cache_dtype": "fp8"}, True, None),
    ("B12X", {"block_size": 256}, False,
     "refuses blocks of 256: its class wants block_size is None or int(block_size) in (64, 128)"),
    ("FLASHINFER", {"kv_cache_dtype": "nvfp4"}, None,
     "whether it takes KV cache dtype nvfp4 depends: _nvfp4_kv_on_fa2()"),
])
def test_checks_of_a_classs_own_are_told_as_vllm_writes_them(name, asked, settled, said):
    backend = load("0.33.0")[name]
    assert answer(backend, "cuda", **asked) is settled
    against, open_ = Wanted(platform="cuda", **asked).answers(backend)
    if said is not None:
        assert any(one.startswith(said) for one in (*against, *open_)), (against, open_)


def test_fa4_is_no_question_for_an_intel_gpu():
    assert answer(load("0.33.0")["FLASH_ATTN"], "xpu", head_size=512) is True
    assert answer(load("0.33.0")["FLASH_ATTN"], "xpu", head_size=520) is False


def test_a_composite_takes_what_its_parts_take_on_the_platform():
    composite, sizes = load("0.33.0")["TRITON_FLASH_ATTN"], (16, 32, 64, 96, 128)
    # The class itself on an Intel GPU: multiples of 64 alone. On CUDA its part FLASH_ATTN depends on FA4.
    assert [answer(composite, "xpu", block_size=size) for size in sizes] == [False, False, True, False, True]
    assert {answer(composite, "cuda", block_size=size) for size in (16, 32)} == {None}


def test_another_class_that_a_platform_runs_is_named():
    rows = {row.backend: row for row in backend_matrix("0.33.0", platform="xpu", mla=True)}
    assert rows["FLASH_ATTN_MLA"].not_settled == ("on xpu vLLM runs XPUFlashAttnMLABackend in its place",)


def test_what_no_option_names_and_sparse_attention_are_not_settled():
    rows = {row.backend: row for row in backend_matrix("0.33.0", platform="cuda", mla=True, head_size=576)}
    assert any("selection of tokens" in one for one in rows["FLASHMLA_SPARSE"].not_settled)
    assert rows["FLASHMLA"].not_settled == ()
    assert any(one.startswith("no option names it") for one in rows["HYV4FlashMLASparseBackend"].not_settled)
    assert all(row.not_settled == () for row in backend_matrix("0.33.0"))  # nothing is asked


def test_a_class_of_ones_own_is_asked():
    class Mine(PrototypeBackend):
        layouts = ("LBNHC",)

        @classmethod
        def supports_head_size(cls, head_size):
            return head_size == 96

    row = backend_matrix(head_size=96, backends=[Mine]).rows[0]
    assert row.backend == "Mine" and row.layouts("first choice") == ["LBNHC"] and not row.not_settled
    assert "Mine" in backend_matrix(head_size=64, backends=[Mine]).excluded
    backend = as_backend(Mine)
    assert answer(backend, None, head_size=96) is True and answer(backend, None, head_size=64) is False
    assert Wanted(head_size=64).answers(backend)[0] == ["refuses head size 64 by its own supports_head_size()"]
