"""From a repr's tree to specs, tensors, groups and configs; what stands in the way is collected, never thrown away.

Field names are those of vLLM 0.29 to 0.33 (``vllm/v1/kv_cache_interface.py``), and of the generation before, whose
tensors name their layers in ``shared_by`` and have no strides.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields

from kvlayout.capture.config_json import check_layout_name
from kvlayout.capture.tree import Call, Elided, EnumMember, Mapping, Name, Opaque
from kvlayout.capture.values import gap, has_gap, mode_name, plain, shown, unknown_spec
from kvlayout.config import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from kvlayout.errors import LayoutError
from kvlayout.spec import KVCacheSpec, KVQuantMode
from kvlayout.spec_io import SPEC_TYPES, spec_from_dict

_OLD = "is how vLLM before 0.29 names a tensor's layers"


@dataclass(frozen=True)
class SharedTensor:
    """A tensor from before vLLM 0.29: ``size`` bytes that layers share; packed ones have two fields more."""

    size: int
    shared_by: tuple[str, ...]
    offset: int | None = None
    block_stride: int | None = None


class Reader:
    """Reads the calls of one paste. ``problems``: why something isn't complete; ``unknown_fields``: their values."""

    def __init__(self):
        self.problems: list[LayoutError] = []
        self.unknown_fields: dict[str, list[object]] = {}
        self.specs: list[KVCacheSpec] = []
        self.layer_specs: dict[str, KVCacheSpec] = {}
        self.tensors: list[KVCacheTensor] = []
        self.shared_tensors: list[SharedTensor] = []
        self.groups: list[KVCacheGroupSpec] = []
        self.configs: list[KVCacheConfig] = []

    def read(self, call: Call) -> None:
        """Read one call that stands by itself in the text."""
        if call.short_name == "KVCacheConfig":
            self._config(call)
        elif call.short_name == "KVCacheTensor":
            self._tensor(call, "KVCacheTensor")
        elif call.short_name == "KVCacheGroupSpec":
            self._group(call, "KVCacheGroupSpec")
        elif (spec := self._spec(call, call.short_name)) is not None:
            self.specs.append(spec)
            if call.key is not None:
                self.layer_specs[call.key] = spec

    def _config(self, call: Call) -> None:
        before = len(self.problems)
        values = self._arguments(call, KVCacheConfig, "KVCacheConfig")
        tensors = [self._tensor(one, f"kv_cache_tensors[{index}]")
                   for index, one in self._items(values, "kv_cache_tensors", "KVCacheTensor")]
        groups = [self._group(one, f"kv_cache_groups[{index}]")
                  for index, one in self._items(values, "kv_cache_groups", "KVCacheGroupSpec")]
        num_blocks = self._whole_number(values, "num_blocks", "num_blocks")
        layout = plain(values.get("kv_cache_layout"))
        if isinstance(layout, Elided):
            self._problem("kv_cache_layout", layout, "is not in the text")
            layout = None
        elif layout is not None:
            self._try(lambda: check_layout_name(layout), "kv_cache_layout")
        if len(self.problems) == before and None not in tensors:
            config = self._try(lambda: KVCacheConfig(num_blocks, tuple(tensors), tuple(groups), layout), "")
            if config is not None and config not in self.configs:
                self.configs.append(config)

    def _tensor(self, call: Call, path: str) -> KVCacheTensor | None:
        before = len(self.problems)
        if "shared_by" in call.kwargs:
            return self._shared_tensor(call, path)
        values = self._arguments(call, KVCacheTensor, path)
        if call.kwargs.get("host_resident") is True:
            self._problem(f"{path}.host_resident", True, "puts the tensor into a pool of the host's memory",
                          "Only the device's allocation is described")
        layers = self._names(values, "layers", path)
        numbers = {name: self._whole_number(values, name, f"{path}.{name}")
                   for name in ("size", "layer_stride", "block_stride", "offset") if name in values}
        if len(self.problems) > before:
            return None
        tensor = self._try(lambda: KVCacheTensor(layers=layers, **numbers), path)
        if tensor is not None:
            self.tensors.append(tensor)
        return tensor

    def _shared_tensor(self, call: Call, path: str) -> None:
        values = self._arguments(call, SharedTensor, path)
        before = len(self.problems)
        layers = self._names(values, "shared_by", path)
        numbers = {name: self._whole_number(values, name, f"{path}.{name}")
                   for name in ("size", "offset", "block_stride") if name == "size" or values.get(name) is not None}
        if len(self.problems) == before:
            self.shared_tensors.append(SharedTensor(shared_by=layers, **numbers))
        if not any(problem.rule.startswith(_OLD) for problem in self.problems):
            self._problem(f"{path}.shared_by", layers, f"{_OLD}: it has no strides, so the layout can't be known "
                          "from it", "Paste the config of vLLM 0.29 or newer")

    def _group(self, call: Call, path: str) -> KVCacheGroupSpec | None:
        before = len(self.problems)
        values = self._arguments(call, KVCacheGroupSpec, path)
        names = self._names(values, "layer_names", path)
        spec = values.get("kv_cache_spec")
        if isinstance(spec, Call):
            spec = self._spec(spec, f"{path}.kv_cache_spec")
        elif "kv_cache_spec" in values or not call.is_cut:
            self._problem(f"{path}.kv_cache_spec", shown(spec), "is not a spec that the text shows")
        if len(self.problems) > before or spec is None:
            return None
        group = KVCacheGroupSpec(names, spec)
        self.groups.append(group)
        return group

    def _spec(self, call: Call, path: str) -> KVCacheSpec | None:
        before = len(self.problems)
        data = self._spec_dict(call, path)
        if len(self.problems) > before:
            return None
        return self._try(lambda: spec_from_dict(data), path)

    def _spec_dict(self, call: Call, path: str) -> dict | None:
        """Return the plain dict of a spec's call, as spec_from_dict takes it."""
        kind = SPEC_TYPES.get(call.short_name)
        if kind is None:
            self.problems.append(unknown_spec(call, path))
            return None
        data = {"type": call.short_name}
        for name, value in self._arguments(call, kind, path).items():
            if name == "kv_cache_specs" and isinstance(value, Mapping):
                data[name] = self._spec_dicts(value, f"{path}.{name}")
            elif name == "block_stride_alignment" and isinstance(value, Opaque):
                self._keep_unknown(call, name, value)
            elif name == "kv_quant_mode" and isinstance(value, (EnumMember, Name)) \
                    and mode_name(value) not in KVQuantMode.__members__:
                self._keep_unknown(call, name, value)  # a mode changes no size by itself
            else:
                found = mode_name(value) if name == "kv_quant_mode" else plain(value)
                if has_gap(found):
                    self._problem(f"{path}.{name}", shown(value), "is not whole in the text")
                data[name] = found
        if "tokens_per_state" not in call.kwargs and call.short_name in ("MLAAttentionSpec", "SlidingWindowMLASpec"):
            data.pop("head_size_v", None)  # before 0.29 it repeated head_size here, and no byte was V's
        return data

    def _spec_dicts(self, mapping: Mapping, path: str) -> dict:
        found = {}
        for key, value in mapping.items:
            if isinstance(key, str) and isinstance(value, Call):
                found[key] = self._spec_dict(value, f"{path}[{key!r}]")
            else:
                self._problem(path, shown(value), f"are not whole in the text: {gap(list(found), None)}")
        return found

    def _arguments(self, call: Call, kind: type, path: str) -> dict[str, object]:
        """Return {field: tree} of a call; unknown fields are kept aside, and those that dots stand for are named."""
        known = [f.name for f in fields(kind)]
        positional = [f.name for f in fields(kind) if not f.kw_only]
        given = [value for value in call.args if not isinstance(value, Elided)]
        values = dict(zip(positional, given))
        if len(given) > len(positional) or set(values) & set(call.kwargs):
            self._problem(path, [shown(value) for value in given], f"has values of {call.short_name} without a name")
        for name, value in call.kwargs.items():
            if name in known:
                values[name] = value
            else:
                self._keep_unknown(call, name, value)
        unseen = [name for name in known if name not in values]
        if call.is_cut:
            self._problem(path, "...", f"is cut: the text has no {', '.join(unseen) or 'end of it'}")
        elif len(given) < len(call.args):
            self._problem(path, "...", f"is elided: the text has no {', '.join(unseen) or 'more fields'}",
                          "Paste it whole")
        else:
            required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
            missing = [name for name in required if name not in values]
            if missing and not issubclass(kind, KVCacheSpec):  # a spec's own check says it for specs
                self._problem(path, sorted(call.kwargs), f"has no {', '.join(missing)}")
        return values

    def _items(self, values: dict, name: str, class_name: str) -> list[tuple[int, Call]]:
        """Return the numbered calls of ``class_name`` in the list ``values[name]``; gaps in it are problems."""
        if name not in values:
            return []
        found = values[name]
        if not isinstance(found, (list, tuple)):
            self._problem(name, shown(found), f"is not a list of {class_name}s in the text")
            return []
        for index, one in enumerate(found):
            if not isinstance(one, Call) or one.short_name != class_name:
                self._problem(f"{name}[{index}]", shown(one), f"is no {class_name} that the text shows",
                              "Paste the list whole" if isinstance(one, Elided) else "")
        return [(index, one) for index, one in enumerate(found)
                if isinstance(one, Call) and one.short_name == class_name]

    def _names(self, values: dict, name: str, path: str) -> tuple[str, ...]:
        found = values.get(name)
        if name not in values:
            return ()
        if not isinstance(found, (list, tuple)):
            self._problem(f"{path}.{name}", shown(found), "is not a list of layer names in the text")
            return ()
        names = [one for one in found if isinstance(one, str)]
        for index, one in enumerate(found):
            if not isinstance(one, str):
                rule = "is not a layer's whole name"
                if isinstance(one, Elided):
                    rule = f"is elided: {gap(found[:index], (*found[index + 1:], None)[0])}"
                self._problem(f"{path}.{name}[{index}]", shown(one), rule)
        return tuple(names)

    def _whole_number(self, values: dict, name: str, path: str) -> int | None:
        value = values.get(name)
        if name in values and (not isinstance(value, int) or isinstance(value, bool)):
            self._problem(path, shown(value), "is not whole in the text" if isinstance(value, Elided) else
                          "must be a whole number")
        return value

    def _keep_unknown(self, call: Call, name: str, value: object) -> None:
        seen = self.unknown_fields.setdefault(f"{call.short_name}.{name}", [])
        if shown(value) not in seen:
            seen.append(shown(value))

    def _problem(self, argument: str, value: object, rule: str, cure: str = "") -> None:
        self.problems.append(LayoutError(argument, value, rule, cure))

    def _try(self, build, path: str):
        """Return what ``build()`` gives, or None with its LayoutError among the problems."""
        try:
            return build()
        except LayoutError as error:
            argument = f"{path}.{error.argument}" if path else error.argument
            self.problems.append(LayoutError(argument, error.value, error.rule, error.cure))
            return None
