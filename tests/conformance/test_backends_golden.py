"""The catalogue of backends, and how each repacks a page, against what real vLLM answered (all five releases)."""

from __future__ import annotations

import ast
from dataclasses import fields

import pytest

from kvlayout.errors import LayoutError
from kvlayout.facts.backends import Backend, Branch, as_backend, backends, get_backend
from kvlayout.facts.machine import Machine
from kvlayout.spec import MultipleOf
from kvlayout.spec_io import spec_from_dict
from kvlayout.versions import VLLM_VERSIONS
from tests.golden_records import load

BASE = "vllm.v1.attention.backend.AttentionBackend"
COMPOSITE = "vllm.v1.attention.backends.composite.CompositeAttentionBackend"  # the inside of a factory


def plain(sizes):
    """Kernel block sizes as the records write them."""
    return [{"multiple_of": size.base} if isinstance(size, MultipleOf) else size for size in sizes]


def names(layouts):
    return None if layouts is None else [layout.name for layout in layouts]


def recorded_backends(version):
    """Every record of a release: (record, our backend); names without a class of vLLM's, and bases, left out."""
    found = []
    for record in load(f"backends/backends-{version}"):
        path = record["output"]["class"]
        if path and path not in (BASE, COMPOSITE) and "no_attention" not in path:
            by_path = next(one for one in backends(version).values() if one.class_path == path)
            found.append((record["output"], by_path, record["input"].get("enum")))
    return found


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_catalogue_agrees_with_every_record(version):
    compared = 0
    for output, backend, enum in recorded_backends(version):
        if enum is not None:
            assert get_backend(enum, version) is backend
        answers = {
            "supported_kv_cache_layouts": names(backend.supported_kv_cache_layouts()),
            "name": backend.get_name(),
            "kv_cache_dtypes": list(backend.kv_cache_dtypes),
            "dtypes": list(backend.dtypes),
            "head_sizes": list(backend.head_sizes),
            "is_mla": backend.is_mla,
            "is_sparse": backend.is_sparse,
            "is_ssm": backend.is_ssm,
        }
        if "kernel_block_sizes" in output:
            answers["kernel_block_sizes"] = plain(backend.get_supported_kernel_block_sizes())
        for name in answers.keys() & output.keys():
            if isinstance(output[name], list) and output[name] and isinstance(output[name][0], dict) \
                    and "returns" in output[name][0]:
                continue  # a record read from source: see below
            assert answers[name] == output[name], (backend.name, name)
            compared += 1
    assert compared > 200


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_layout_branches_and_machines_agree_with_the_source(version):
    conditional = 0
    for output, backend, _ in recorded_backends(version):
        recorded = output.get("layouts_source", {}).get("branches", [])
        if recorded:
            ours = backend.layout_branches or (Branch(None, backend.layouts),)
            assert [one.when for one in ours] == [one["when"] for one in recorded], backend.name
            for one, theirs in zip(ours, recorded):
                expected = None if theirs["layouts"] in (None, "base") else tuple(theirs["layouts"])
                assert one.value == expected, (backend.name, one)
            conditional += len(recorded) > 1
        for major, layouts in output.get("layouts_by_cuda_major", {}).items():
            machine = Machine("cuda", cuda_major=int(major))
            assert names(backend.on(machine).supported_kv_cache_layouts()) == layouts
    assert conditional >= 2


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_what_was_read_from_source_agrees(version):
    found = 0
    for output, backend, _ in recorded_backends(version):
        if not output["from_source"]:
            continue
        assert backend.from_source and (backend.reason or version != VLLM_VERSIONS[-1])
        found += 1
        for key, ours in (("get_name", [backend.vllm_name]), ("get_supported_head_sizes", [list(backend.head_sizes)]),
                          ("is_mla", [backend.is_mla])):
            if key in output:
                assert [ast.literal_eval(one["returns"]) for one in output[key]] == ours
        sizes = output.get("get_supported_kernel_block_sizes", [])
        kept = backend.kernel_block_branches or (Branch(None, backend.kernel_block_sizes),)
        for theirs, ours in zip(sizes, kept, strict=bool(sizes)):
            assert ours.when == theirs["when"]
            shown = ours.expression or str(list(ours.value)).replace("(base=", "(")
            assert shown == theirs["returns"]
    assert found >= 3


def test_the_newest_catalogue_was_asked_where_the_record_was():
    for output, backend, _ in recorded_backends(VLLM_VERSIONS[-1]):
        assert backend.from_source == output["from_source"], backend.name


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_names_without_a_class_are_refused_with_the_reason(version):
    empty = [record["input"]["enum"] for record in load(f"backends/backends-{version}")
             if "enum" in record["input"]
             and (not record["output"]["class"] or "no_attention" in record["output"]["class"])]
    assert empty
    for name in empty:
        with pytest.raises(LayoutError, match="is no backend to choose"):
            get_backend(name, version)


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_a_bare_class_gets_the_defaults_of_vllms_base_class(version):
    base = next(record["output"] for record in load(f"backends/backends-{version}")
                if record["output"]["class"] == BASE)

    class Bare:
        @classmethod
        def supported_kv_cache_layouts(cls):
            return None

    backend = as_backend(Bare, version)
    assert backend.supported_kv_cache_layouts() == base["supported_kv_cache_layouts"]
    assert plain(backend.get_supported_kernel_block_sizes()) == base["kernel_block_sizes"]
    assert list(backend.head_sizes) == base["head_sizes"]
    assert (backend.is_mla, backend.is_sparse, backend.is_ssm) == (False, False, False)


def customised_fields(before, after):
    """The fields that customize_spec changed, as the records write them."""
    changed = {}
    for field in fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            changed[field.name] = {"multiple_of": new.base} if isinstance(new, MultipleOf) else new
    return changed


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_customize_spec_changes_what_vllm_changes(version):
    records = load(f"backends/customize-{version}")
    assert len(records) >= 15
    for record in records:
        backend = get_backend(record["input"]["backend"], version)
        spec = spec_from_dict(record["input"]["spec"])
        if "error" in record:
            with pytest.raises(LayoutError, match="rotary_dim"):
                backend.customize_spec(spec)
            continue
        after = backend.customize_spec(spec)
        assert customised_fields(spec, after) == record["output"], record
        interior = backend.interior(after)
        if interior is not None:
            interior.check(after)


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_every_backend_answers_every_question(version):
    for name, backend in backends(version).items():
        assert isinstance(backend, Backend) and backend.name == name
        assert backend.repacked_by is None or backend.rule.summary
        assert backend.platforms and set(backend.platforms) <= {"cuda", "rocm", "cpu", "xpu", "any"}
        layouts = backend.supported_kv_cache_layouts()
        assert layouts is None or layouts
        if "Glm5Next" not in name:
            assert backend.get_supported_kernel_block_sizes()
