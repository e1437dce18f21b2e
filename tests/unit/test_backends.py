"""The catalogue: names, machines, branches; and a user's own class as a backend."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import pytest

from kvlayout.errors import LayoutError
from kvlayout.facts.backends import as_backend, backends, get_backend
from kvlayout.facts.machine import Machine, holds, is_decided
from kvlayout.interior import Field, Interior
from kvlayout.layout import KVCacheLayout, PhysicalLayout
from kvlayout.plan import make_plan
from kvlayout.resolve import ResolutionError
from kvlayout.selection import Selection
from kvlayout.spec import FullAttentionSpec, KVQuantMode, MLAAttentionSpec, MultipleOf
from kvlayout.versions import VLLM_VERSIONS

BLACKWELL = Machine("cuda", cuda_major=10)
HOPPER = Machine("cuda", cuda_major=9)
SPEC = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")


def names(layouts):
    return None if layouts is None else [layout.name for layout in layouts]


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_recorded_files_name_their_origin_and_no_machine(version):
    text = (files("kvlayout.facts") / "data" / f"backends-{version}.json").read_text()
    recorded = json.loads(text)
    assert recorded["vllm"] == version
    assert recorded["script"] == "python -m kvlayout.facts.record_backends"
    assert "site-packages" not in text and "://" not in text
    assert set(recorded["backends"]) == set(backends(version))


def test_releases_differ_as_they_do():
    counts = [len(backends(version)) for version in VLLM_VERSIONS]
    assert counts == sorted(counts) and counts[0] >= 60 and counts[-1] >= 90
    assert "ROCM_OCTAVE" in backends("0.33.0") and "ROCM_OCTAVE" not in backends("0.32.0")
    assert get_backend("FLASHINFER_MLA_SPARSE_SM90", "0.31.0").supported_kv_cache_layouts() == (KVCacheLayout.LBHNC,)
    assert get_backend("FLASHINFER_MLA_SPARSE_SM90", "0.32.0").supported_kv_cache_layouts() is None


def test_the_dict_is_the_callers_own():
    mine = backends()
    mine.clear()
    assert backends()


def test_state_and_indexer_backends_are_there():
    assert get_backend("GDN_ATTN").is_ssm and get_backend("GDN_ATTN").registry == "mamba"
    indexer = get_backend("DEEPSEEK_V4_INDEXER")
    assert indexer.registry is None and names(indexer.supported_kv_cache_layouts()) == ["BLHNC", "BLNHC"]
    assert get_backend("CPU_ATTN").platforms == ("cpu",)
    assert get_backend("ULTRAQUANT").from_source and "RuntimeError" not in (get_backend("FLASH_ATTN").reason or "")


def test_a_backend_is_found_by_the_unique_end_of_its_class_path():
    backend = get_backend("DeepseekV32IndexerBackend")
    assert backend.name == "DEEPSEEK_V32_INDEXER"
    assert get_backend(backend.class_path) is backend
    assert get_backend("amd.sconv_swa_attn.InklingSconvBackend").platforms == ("rocm",)


def test_bad_names_say_what_is_near():
    with pytest.raises(LayoutError, match="Did you mean FLASH_ATTN "):
        get_backend("flash_atn")
    with pytest.raises(LayoutError, match="names 2 backends.*deepseek_v41.compressor.CompressorBackend"):
        get_backend("CompressorBackend")
    with pytest.raises(LayoutError, match="class of the user's own"):
        get_backend("CUSTOM")
    with pytest.raises(LayoutError, match="Use one of .*CPU_ATTN"):
        get_backend("?")
    with pytest.raises(LayoutError, match="must be a backend's name"):
        get_backend(["CPU_ATTN"])
    with pytest.raises(LayoutError, match="vllm_version"):
        backends("0.28.0")


def test_layouts_follow_the_machine():
    flashinfer = get_backend("FLASHINFER")
    assert flashinfer.supported_kv_cache_layouts() is None
    assert flashinfer.on(HOPPER).supported_kv_cache_layouts() is None
    assert names(flashinfer.on(BLACKWELL).supported_kv_cache_layouts()) == ["LBHNC", "BLHNC"]
    aiter = get_backend("ROCM_AITER_FA")
    assert names(aiter.supported_kv_cache_layouts()) == ["LBHNC", "LHBNC"]
    shuffled = aiter.on(Machine("rocm", shuffle_kv_cache=True))
    assert names(shuffled.supported_kv_cache_layouts()) == ["LHBNC", "LBHNC"]
    octave = get_backend("ROCM_OCTAVE").on(Machine("rocm", cdna_version=3))
    assert names(octave.supported_kv_cache_layouts()) == ["LBHNC"]
    unified = get_backend("ROCM_AITER_UNIFIED_ATTN").on(Machine("rocm", kv_connector=True))
    assert names(unified.supported_kv_cache_layouts()) == ["LBHNC"]


def test_a_composite_takes_what_both_parts_take():
    composite = get_backend("TRITON_FLASHINFER")
    assert names(composite.supported_kv_cache_layouts()) == ["LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC"]
    assert names(composite.on(BLACKWELL).supported_kv_cache_layouts()) == ["LBHNC", "BLHNC"]
    assert composite.get_supported_kernel_block_sizes() == [64]
    assert composite.customize_spec(SPEC) == SPEC
    per_token = replace(SPEC, dtype="int8", kv_quant_mode="INT8_PER_TOKEN_HEAD")
    with pytest.raises(LayoutError, match="in two ways"):
        composite.customize_spec(per_token)


def test_a_branch_can_be_chosen_by_its_number():
    flashinfer = get_backend("FLASHINFER")
    assert [branch.when for branch in flashinfer.layout_branches] == [
        "capability is not None and capability.major == 10", None]
    assert names(flashinfer.with_branch(0).supported_kv_cache_layouts()) == ["LBHNC", "BLHNC"]
    assert flashinfer.on(BLACKWELL).with_branch(1).supported_kv_cache_layouts() is None
    with pytest.raises(LayoutError, match="not a layout branch of FLASHINFER, which has 2"):
        flashinfer.with_branch(2)


def test_kernel_blocks_follow_machine_and_spec():
    v41 = get_backend("FLASHMLA_SPARSE_DSV41")
    assert v41.get_supported_kernel_block_sizes() == [128]
    assert v41.on(HOPPER).get_supported_kernel_block_sizes() == [64]
    sparse = get_backend("FLASHMLA_SPARSE").on(BLACKWELL)
    latent = MLAAttentionSpec(block_size=128, num_kv_heads=1, head_size=576, dtype="uint8",
                              kv_quant_mode=KVQuantMode.FP8_PER_TENSOR)
    assert sparse.get_supported_kernel_block_sizes() == [MultipleOf(64)]
    assert sparse.get_supported_kernel_block_sizes(latent) == [64]
    assert get_backend("DEEPSEEK_V32_INDEXER").on(Machine("rocm")).get_supported_kernel_block_sizes() == [
        1, MultipleOf(16)]
    pooled = get_backend("Glm5NextIndexerBackend")
    with pytest.raises(LayoutError, match="must be given"):
        pooled.get_supported_kernel_block_sizes()
    assert pooled.get_supported_kernel_block_sizes(replace(latent, tokens_per_state=4)) == [128, 256]
    assert pooled.on(Machine("cuda", cuda_major=12)).get_supported_kernel_block_sizes(
        replace(latent, tokens_per_state=4)) == [256]


def test_conditions_are_decided_or_said_not_to_be():
    assert holds(None, Machine()) and is_decided(None)
    assert holds("not current_platform.is_rocm()", Machine())
    assert not holds("current_platform.is_rocm() and get_cdna_version() == 3", Machine("rocm", cdna_version=4))
    assert not is_decided("use_large_pages")
    undecided = [branch.when for branch in get_backend("FLASH_ATTN").kernel_block_branches if not branch.is_decided]
    assert len(undecided) == 2 and "_get_fa4_hd256_block_size" in undecided[1]


@pytest.mark.parametrize("wrong, argument", [
    (dict(platform="gpu"), "platform"), (dict(cuda_major=9), "cuda_major"), (dict(cdna_version=0), "cdna_version"),
    (dict(platform="rocm", cuda_major=9), "cuda_major"), (dict(rotary_dim=-1), "rotary_dim"),
    (dict(cpu_isa="sse"), "cpu_isa"),
])
def test_impossible_machines_are_refused(wrong, argument):
    with pytest.raises(LayoutError) as caught:
        Machine(**wrong)
    assert caught.value.argument == argument


class Mine:
    """A backend of the user's own."""

    supported = ("LBHNC", KVCacheLayout.BLHNC)

    @classmethod
    def supported_kv_cache_layouts(cls):
        return cls.supported

    @staticmethod
    def get_supported_kernel_block_sizes():
        return [32, MultipleOf(64)]

    @classmethod
    def customize_spec(cls, spec):
        return replace(spec, state_content_bytes=600)

    @classmethod
    def interior(cls, spec):
        return Interior((Field("K", 0, 300), Field("V", 300, 300)))


def declaring(layouts):
    return type("Odd", (), {"supported_kv_cache_layouts": classmethod(lambda cls: layouts)})


def test_a_users_class_is_a_backend():
    for backend in (as_backend(Mine), as_backend(Mine())):
        assert backend.name == backend.get_name() == "Mine"
        assert names(backend.supported_kv_cache_layouts()) == ["LBHNC", "BLHNC"] == list(backend.layouts)
        assert backend.get_supported_kernel_block_sizes(SPEC) == [32, MultipleOf(64)]
        customised = backend.customize_spec(SPEC)
        assert customised.state_content_size_bytes == 600
        assert backend.interior(customised).field_of(0, 300) == ("V", 0)
        assert as_backend(backend) is backend
    assert as_backend("CPU_ATTN", "0.30.0") is get_backend("CPU_ATTN", "0.30.0")


@pytest.mark.parametrize("layouts, rule", [
    ((), "must be None, or a tuple"), ("LBHNC", "must be None, or a tuple"), (("lbhnc",), "not a layout of vLLM"),
    (("NHD",), "not a layout of vLLM"), ((PhysicalLayout("HBLNC"), "HBLNC"), "twice"),
    ((None,), "not a KV cache layout"), (("LBHNC", KVCacheLayout.LBHNC), "twice"), (7, "must be None, or a tuple"),
])
def test_nonsense_layouts_are_refused(layouts, rule):
    with pytest.raises(LayoutError, match=rule) as caught:
        as_backend(declaring(layouts))
    assert caught.value.argument == "supported_kv_cache_layouts of Odd"


def test_a_layout_that_vllm_does_not_have_can_be_declared_but_not_resolved():
    both = as_backend(declaring(("HBLNC", "LBHNC", PhysicalLayout("BLNHC"))))
    assert both.layouts == ("HBLNC", "LBHNC", "BLNHC")
    assert both.supported_kv_cache_layouts() == (KVCacheLayout.LBHNC, KVCacheLayout.BLNHC)
    alone = as_backend(declaring((PhysicalLayout("HBLNC"),)))
    with pytest.raises(ResolutionError, match=r"names no layout of vLLM's.*layout='HBLNC'") as caught:
        alone.supported_kv_cache_layouts()
    assert caught.value.steps[-1].after == ()
    selection = Selection(backend="Odd", num_blocks=4)
    with pytest.raises(ResolutionError, match="names no layout of vLLM's"):
        make_plan(selection, backends=[alone])
    assert make_plan(replace(selection, layout="HBLNC"), backends=[alone]).layout == PhysicalLayout("HBLNC")


def test_a_class_that_declares_nothing_or_fails_is_refused():
    with pytest.raises(LayoutError, match=r"has no supported_kv_cache_layouts\(\)"):
        as_backend(int)
    with pytest.raises(LayoutError, match="TypeError.*make the method a classmethod"):
        as_backend(type("Plain", (), {"supported_kv_cache_layouts": lambda self: None}))
    with pytest.raises(LayoutError, match="get_supported_kernel_block_sizes"):
        as_backend(type("Odd", (Mine,), {"get_supported_kernel_block_sizes": staticmethod(lambda: ["16"])}))
    broken = as_backend(type("Odd", (Mine,), {"customize_spec": classmethod(lambda cls, spec: spec.nothing)}))
    with pytest.raises(LayoutError, match="customize_spec of Odd.*AttributeError"):
        broken.customize_spec(SPEC)
    forgetful = as_backend(type("Odd", (Mine,), {"customize_spec": classmethod(lambda cls, spec: None)}))
    with pytest.raises(LayoutError, match="must return a spec"):
        forgetful.customize_spec(SPEC)
    with pytest.raises(LayoutError, match="hold 600 bytes"):
        as_backend(Mine).interior(SPEC)
    vague = as_backend(type("Odd", (Mine,), {"interior": classmethod(lambda cls, spec: "K then V")}))
    with pytest.raises(LayoutError, match="must be a kvlayout Interior"):
        vague.interior(SPEC)


def test_a_subclass_of_vllms_class_keeps_its_repacking():
    base = type("TritonAttentionBackend", (), {
        "__module__": "vllm.v1.attention.backends.triton_attn",
        "supported_kv_cache_layouts": classmethod(lambda cls: None),
        "customize_spec": classmethod(lambda cls, spec: spec.needs_real_vllm)})
    mine = as_backend(type("MyTriton", (base,), {}))
    assert mine.name == "MyTriton" and mine.dtypes == get_backend("TRITON_ATTN").dtypes
    spec = replace(SPEC, dtype="int8", kv_quant_mode="INT8_PER_TOKEN_HEAD")
    customised = mine.customize_spec(spec)
    assert customised.state_content_bytes == 264
    assert [field.name for field in mine.interior(customised).fields] == ["K", "K scale", "V", "V scale"]
    assert as_backend(base).name == "TRITON_ATTN"


def vllm_class(module, name, **methods):
    """A stand-in for a class of vLLM's, which only its dotted path makes one."""
    declare = classmethod(lambda cls: None)
    return type(name, (), {"__module__": f"vllm.{module}", "supported_kv_cache_layouts": declare, **methods})


def test_vllms_own_classes_are_asked_but_repacked_by_our_rules():
    untouched = classmethod(lambda cls, spec: spec.needs_real_vllm)
    base = vllm_class("v1.attention.backend", "AttentionBackend", customize_spec=untouched)
    assert as_backend(base).customize_spec(SPEC) == SPEC
    unknown = vllm_class("models.new.attention", "NewBackend", customize_spec=untouched)
    with pytest.raises(LayoutError, match="repacked by vllm.models.new.attention.NewBackend"):
        as_backend(unknown).customize_spec(SPEC)
    composite = vllm_class("v1.attention.backends.triton_flash_attn", "TritonFlashAttentionBackend",
                           customize_spec=untouched)
    assert as_backend(composite).customize_spec(SPEC) == SPEC


def test_backends_import_no_heavy_library():
    code = ("import sys, kvlayout.facts.user_backend, kvlayout.facts.backends as b; b.get_backend('FLASH_ATTN'); "
            "print([name for name in ('torch', 'vllm', 'matplotlib') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
