"""A cache as plain vLLM code: text that builds it with vLLM's own classes and reads one address off its view."""

from __future__ import annotations

import re
from dataclasses import fields
from fractions import Fraction

from kvlayout.address import AddressMap
from kvlayout.config import KVCacheConfig
from kvlayout.dtypes import ITEM_SIZE_BYTES
from kvlayout.layout import KVCacheLayout
from kvlayout.spec import KVCacheSpec, KVQuantMode, MambaSpec, MultipleOf, UniformTypeKVCacheSpecs
from kvlayout_widgets.figures.common import Coordinate

_HOME = {
    "KVQuantMode": "vllm.v1.kv_cache_interface", "SparseCacheRole": "vllm.v1.kv_cache_interface",
    "MultipleOf": "vllm.v1.attention.backend",
    "MambaAttentionBackendEnum": "vllm.v1.attention.backends.registry", "Fraction": "fractions",
}


def vllm_code(address_map: AddressMap, coordinate: Coordinate, vllm_version: str) -> str:
    """Return Python that makes the same views with vLLM on "meta" and asserts the offset of ``coordinate``.

    A layout that vLLM doesn't have gives a comment that says so.
    """
    if address_map.layout.name not in KVCacheLayout.__members__:
        return f"# {address_map.layout.name} is a prototype; vLLM has no such layout.\n"
    writer = _Writer(address_map.config)
    body = writer.config_lines(address_map)
    imports = "\n".join(["import torch", *writer.import_lines(),
                         "from vllm.v1.kv_cache_layout import KVCacheLayout",
                         "from vllm.v1.worker.utils import allocate_kv_cache"])
    return "\n".join([f"# vLLM {vllm_version}; its engine plans this config in get_kv_cache_configs.", imports, "",
                      *body, "", *_address_lines(address_map, coordinate), ""])


class _Writer:
    """Writes the constructors, and collects what they need to import."""

    def __init__(self, config: KVCacheConfig):
        self.config = config
        self.needs: dict[str, set[str]] = {"vllm.v1.kv_cache_interface": {
            "KVCacheConfig", "KVCacheGroupSpec", "KVCacheTensor"}}
        self.specs: dict[KVCacheSpec, str] = {}

    def import_lines(self) -> list[str]:
        lines = []
        for module in sorted(self.needs):
            names = sorted(self.needs[module])
            line = f"from {module} import {', '.join(names)}"
            lines.append(line if len(line) <= 100 else
                         f"from {module} import (\n    {', '.join(names)})")
        return lines

    def config_lines(self, address_map: AddressMap) -> list[str]:
        config = self.config
        for spec in config.layer_specs.values():
            self.specs.setdefault(spec, f"spec_{len(self.specs)}")
        lines = [f"{name} = {self.call(spec)}" for spec, name in self.specs.items()]
        lines += [f"layers_{i} = {names_code(tensor.layers)}" for i, tensor in enumerate(config.kv_cache_tensors)]
        lines += ["config = KVCacheConfig(", f"    num_blocks={config.num_blocks},", "    kv_cache_tensors=["]
        lines += [f"        KVCacheTensor(size={t.size}, layers=layers_{i}, layer_stride={t.layer_stride},\n"
                  f"                      block_stride={t.block_stride}, offset={t.offset}),"
                  for i, t in enumerate(config.kv_cache_tensors)]
        lines += ["    ],", "    kv_cache_groups=["]
        for group in config.kv_cache_groups:
            tensors = [i for i, t in enumerate(config.kv_cache_tensors) if set(t.layers) <= set(group.layer_names)]
            names = " + ".join(f"layers_{i}" for i in tensors) or "[]"
            lines.append(f"        KVCacheGroupSpec({names}, {self.group_spec(group, tensors)}),")
        lines += ["    ],", ")"]
        sizes = address_map.kernel_block_sizes
        shown = "" if sizes is None else f", kernel_block_sizes={list(sizes)}"
        return [*lines, 'caches = allocate_kv_cache(config, torch.device("meta"), '
                        f"KVCacheLayout.{address_map.layout.name}{shown})"]

    def group_spec(self, group, tensors: list[int]) -> str:
        if not isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs):
            # A pipeline stage may have none of a group's layers, so that no tensor has named its spec.
            return self.specs.get(group.kv_cache_spec) or self.call(group.kv_cache_spec)
        self.needs["vllm.v1.kv_cache_interface"].add("UniformTypeKVCacheSpecs")
        specs = group.layer_specs
        parts = [f"**dict.fromkeys(layers_{i}, {self.specs[specs[self.config.kv_cache_tensors[i].layers[0]]]})"
                 for i in tensors]
        return (f"UniformTypeKVCacheSpecs(\n            block_size={group.kv_cache_spec.block_size}, "
                f"kv_cache_specs={{{', '.join(parts)}}})")

    def call(self, spec: KVCacheSpec) -> str:
        """The constructor call of a spec, with the fields that differ from their default."""
        name = type(spec).__name__
        self.needs["vllm.v1.kv_cache_interface"].add(name)
        shown = []
        for field in fields(spec):
            value = getattr(spec, field.name)
            follows = field.name == "head_size_v" and value == spec.head_size
            if value == field.default or follows or field.name == "is_draft":
                continue
            shown.append(f"{field.name}={self.value(field.name, value)}")
        line = f"{name}({', '.join(shown)})"
        if len(line) <= 100:
            return line
        return f"{name}(\n    " + ",\n    ".join(shown) + ")"

    def value(self, name: str, value: object) -> str:
        if isinstance(value, tuple):
            inner = ", ".join(self.value(name, one) for one in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, str) and value in ITEM_SIZE_BYTES and name in ("dtype", "dtypes"):
            return f"torch.{value}"
        if isinstance(value, KVQuantMode):
            return self.use("KVQuantMode", f"KVQuantMode.{value.name}")
        if isinstance(value, MultipleOf):
            return self.use("MultipleOf", f"MultipleOf({value.base})")
        if isinstance(value, Fraction):
            return self.use("Fraction", f"Fraction({value.numerator}, {value.denominator})")
        if name == "mamba_type":
            return self.use("MambaAttentionBackendEnum", f"MambaAttentionBackendEnum.{value.upper()}")
        if name == "cache_role":
            return self.use("SparseCacheRole", f"SparseCacheRole.{value.upper()}")
        return repr(value)

    def use(self, name: str, text: str) -> str:
        self.needs.setdefault(_HOME[name], set()).add(name)
        return text


def _address_lines(address_map: AddressMap, at: Coordinate) -> list[str]:
    region = address_map.region(at.layer)
    offset = address_map.offset(at.layer, at.block, at.head, at.state, at.byte)
    item = 1 if isinstance(region.spec, MambaSpec) else ITEM_SIZE_BYTES[region.spec.dtype]
    cache = f"caches[{at.layer!r}]"
    if region.interior.scope == "state":
        lines = [f"cell = {cache}[{at.block}, {at.head}, {at.state}]    # block, head slot, state: C",
                 f"offset = cell.storage_offset() * {item} + {at.byte}    # bytes; the view counts elements"]
    else:
        start = address_map.region(at.layer).geometry
        local = region.tensor.layers.index(at.layer)
        page = start.offset + local * start.strides[0] + at.block * start.strides[1]
        lines = [f"page = {cache}[{at.block}]    # the backend keeps an order of its own inside a page",
                 f"offset = page.storage_offset() * {item} + {offset - page}    # bytes; the view counts elements"]
    return [*lines, f"assert offset == {offset}    # {offset:#x}"]


def names_code(names: tuple[str, ...]) -> str:
    """Return a list expression of ``names``; numbered alike, as a comprehension over their numbers."""
    first = re.search(r"\d+", names[0])
    if first and len(names) > 1:
        head, tail = names[0][:first.start()], names[0][first.end():]
        numbers = [name[len(head):len(name) - len(tail)] for name in names]
        plain = all(name == f"{head}{number}{tail}" and number.isdecimal() and str(int(number)) == number
                    for name, number in zip(names, numbers))
        if plain and not set("{}\"") & set(head + tail):
            return f'[f"{head}{{i}}{tail}" for i in {_numbers_code([int(number) for number in numbers])}]'
    return repr(list(names))


def _numbers_code(numbers: list[int]) -> str:
    step = numbers[1] - numbers[0]
    if step > 0 and numbers == list(range(numbers[0], numbers[-1] + 1, step)):
        return f"range({numbers[0]}, {numbers[-1] + 1}{f', {step}' if step > 1 else ''})"
    return repr(tuple(numbers))
