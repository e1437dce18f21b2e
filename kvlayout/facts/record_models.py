"""Records what real vLLM's layers report for a config: ``python -m kvlayout.facts.record_models OUT.jsonl``.

Run it with a Python that has vLLM (no GPU is needed): each model is built on the meta device by vLLM's own classes,
as one rank of a process group that only pretends to exist, with a neutral attention backend that takes any block. One
JSON object a line: ``input`` (a preset's name or a config, and the choices), ``output`` (the different specs, and for
each layer its name and which of them it has; see :func:`expand`) or ``error`` (the exception's type).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from kvlayout.facts.models import presets
from kvlayout.facts.record_cases import CASES, family_configs
from kvlayout.spec_io import as_spec, spec_to_dict

QUIET = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}


def main(path: str) -> None:
    """Record every case into ``path``, one process for each kind of rank."""
    ranks = sorted({(case["tp_size"], case["pp_size"], case["pp_rank"]) for case in all_cases()})
    lines = []
    for rank in ranks:
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as part:
            command = [sys.executable, "-m", "kvlayout.facts.record_models", "--rank", *map(str, rank), part.name]
            subprocess.run(command, check=True, env={**os.environ, **QUIET})
            lines += [compact(line) for line in part.read().splitlines()]
    Path(path).write_text("\n".join(lines) + "\n")


def compact(line: str) -> str:
    """Shorten a record: its layers from [name, spec] to [pattern, number in the name, spec], each pattern once."""
    record = json.loads(line)
    if "output" in record:
        patterns, layers = [], []
        for name, spec in record["output"]["layers"]:
            number = re.search(r"\d+", name).group()
            pattern = name.replace(number, "#", 1)
            if pattern not in patterns:
                patterns.append(pattern)
            layers.append([patterns.index(pattern), int(number), spec])
        record["output"] |= {"patterns": patterns, "layers": layers}
    return json.dumps(record, separators=(",", ":"))


def expand(output: dict) -> dict[str, dict]:
    """Return {layer name: plain spec} of a compact record's output, in vLLM's order."""
    return {output["patterns"][pattern].replace("#", str(number)): output["specs"][spec]
            for pattern, number, spec in output["layers"]}


def all_cases() -> list[dict]:
    """Every case: presets in several ranks and dtypes, and one small config of each model type."""
    return CASES + [{"model": config, "tp_size": 1, "pp_size": 1, "pp_rank": 0} for config in family_configs()]


def record_rank(tp_size: int, pp_size: int, pp_rank: int, path: str) -> None:
    """Record the cases of one kind of rank; this process becomes that rank."""
    import vllm

    build = _builder(tp_size, pp_size, pp_rank)
    with open(path, "w") as out:
        for case in all_cases():
            if (case["tp_size"], case["pp_size"], case["pp_rank"]) != (tp_size, pp_size, pp_rank):
                continue
            print(case["model"] if isinstance(case["model"], str) else case["model"]["model_type"], case, flush=True)
            try:
                result = {"output": _plain(build(case))}
            except Exception as error:  # whatever vLLM raises is the record
                print("  ", repr(error)[:300], flush=True)
                result = {"error": type(error).__name__}
            out.write(json.dumps({"vllm": vllm.__version__, "input": case, **result}) + "\n")


def _plain(specs: dict) -> dict:
    """{"specs": different specs, "layers": [[name, index of its spec]]}, in vLLM's order."""
    different, layers = [], []
    for name, spec in specs.items():
        plain = spec_to_dict(as_spec(spec))
        if plain not in different:
            different.append(plain)
        layers.append([name, different.index(plain)])
    return {"specs": different, "layers": layers}


def _builder(tp_size: int, pp_size: int, pp_rank: int):
    """Return a function from a case to vLLM's own {layer name: spec}; call once, it sets the process up as a rank."""
    import torch
    import vllm.platforms
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.platforms.cpu import CpuPlatform

    platform = vllm.platforms._current_platform = vllm.platforms.current_platform = CpuPlatform()
    world, rank = tp_size * pp_size, pp_rank * tp_size
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    make_group = torch.distributed.new_group
    torch.distributed.new_group = lambda ranks, backend=None, **_: make_group(ranks, backend="fake")
    _neutralise(platform)

    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment, parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    def build(case: dict) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            config = presets()[case["model"]].config if isinstance(case["model"], str) else case["model"]
            (Path(folder) / "config.json").write_text(json.dumps(config))
            engine = EngineArgs(
                model=folder, load_format="dummy", skip_tokenizer_init=True, enforce_eager=True,
                tensor_parallel_size=tp_size, pipeline_parallel_size=pp_size,
                block_size=case.get("block_size", 16), kv_cache_dtype=case.get("kv_cache_dtype", "auto"),
                enable_prefix_caching=False if case.get("mamba_cache_mode") == "none" else None,
                max_model_len=case.get("max_model_len"),
                distributed_executor_backend="external_launcher" if world > 1 else None,
            ).create_engine_config()
            engine.parallel_config.rank = rank
            # The CPU platform has a block size of its own for latents.
            engine.cache_config.block_size = case.get("block_size", 16)
            with set_current_vllm_config(engine), set_default_torch_dtype(engine.model_config.dtype):
                if parallel_state._WORLD is None:
                    init_distributed_environment(world, rank, "tcp://127.0.0.1:1", 0, "fake")
                    ensure_model_parallel_initialized(tp_size, pp_size, backend="fake")
                # Mixture-of-experts layers want a group of their own, made for the first such model only.
                parallel_state._EP = parallel_state._EP or parallel_state._TP
                with torch.device("meta"):
                    initialize_model(vllm_config=engine)
                if case.get("aligned"):
                    platform._align_hybrid_block_size(engine, _neutral_backend())
                layers = engine.compilation_config.static_forward_context
                specs = {name: layer.get_kv_cache_spec(engine) for name, layer in layers.items()
                         if hasattr(layer, "get_kv_cache_spec")}
            return {name: spec for name, spec in specs.items() if spec is not None}

    return build


def _neutralise(platform) -> None:
    """Attention layers get a backend that takes any block and repacks nothing; models are inspected in-process."""
    from vllm.distributed import parallel_state
    from vllm.model_executor.layers.attention import (
        attention,
        chunked_local_attention,
        cross_attention,
        encoder_only_attention,
        mla_attention,
    )
    from vllm.model_executor.models import registry

    for module in (attention, chunked_local_attention, cross_attention, encoder_only_attention):
        module.get_attn_backend = lambda *args, **choices: _neutral_backend()
    mla_attention.get_attn_backend = lambda *args, use_sparse=False, **choices: _neutral_backend(True, use_sparse)
    registry._run_in_subprocess = lambda function: function()

    def group(group_ranks, local_rank, backend, *args, group_name=None, **kwargs):
        return parallel_state.GroupCoordinator(group_ranks, local_rank, "fake", False, group_name=group_name)
    parallel_state.init_model_parallel_group = group


def _neutral_backend(is_mla: bool = False, is_sparse: bool = False) -> type:
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    class Impl:
        """Takes what any implementation takes, and says that it has no extras."""

        supports_quant_query_input = supports_dense_mha_prefill = uses_amx_bmm = False
        dcp_world_size = 1

        def __init__(self, *args, **choices):
            self.is_sparse, self.head_size = is_sparse, 0

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)

    class Neutral(CPUAttentionBackend):
        """Any block, nothing repacked."""

        get_impl_cls = staticmethod(lambda: Impl)
        get_supported_kernel_block_sizes = staticmethod(lambda spec=None: [MultipleOf(1)])
        supports_alibi_sqrt = classmethod(lambda cls: True)

        @classmethod
        def is_mla(cls):
            return is_mla

        @classmethod
        def customize_spec(cls, spec):
            return spec

    return Neutral


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        record_rank(*map(int, sys.argv[2:5]), sys.argv[5])
    else:
        main(sys.argv[1])
