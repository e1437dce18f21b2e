"""`make bench`: ratios measured in one run, so that they mean the same on any machine. Nothing here passes or fails.

With vLLM installed (make bench EXTRAS=vllm) its own functions are timed beside ours.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

import kvlayout as kv

SPEC = dict(block_size=16, num_kv_heads=8, head_size=128)
LAYERS = [f"model.layers.{i}.self_attn.attn" for i in range(80)]


def best(run: Callable[[], object], repeats: int = 7, number: int = 1) -> float:
    """Return the least seconds of one call over several repeats."""
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(number):
            run()
        least = min(least, (time.perf_counter() - start) / number)
    return least


def show(name: str, ours: float, other: float, against: str, aim: str) -> None:
    print(f"{name:44} {ours * 1e3:10.3f} ms  /  {other * 1e3:10.3f} ms {against:28} = {ours / other:5.2f}   "
          f"(aim {aim})")


def bench_addresses() -> None:
    """Owners of 10 million random addresses against the bare chain of divmods that they need."""
    group = kv.KVCacheGroupSpec(LAYERS, kv.FullAttentionSpec(**SPEC, dtype="bfloat16"))
    address_map = kv.AddressMap(kv.get_kv_cache_config_from_groups([group], 140 << 30, "BLNHC"))
    addresses = np.random.default_rng(0).integers(0, address_map.size_bytes, 10_000_000)
    strides = (address_map.strides(0)[0], address_map.region(0).geometry.strides[0],
               *address_map.strides(0)[2:0:-1])

    def chain():
        rest, found = addresses, []
        for stride in strides:
            index, rest = np.divmod(rest, stride)
            found.append(index)
        return found

    ours, plain = best(lambda: address_map.locate(addresses), 3), best(chain, 3)
    show("owners of 10,000,000 addresses", ours, plain, "numpy.divmod chain", "<= 1.5")


def bench_vllm() -> None:
    """Strides and an 80-layer placement against vLLM's own."""
    if importlib.util.find_spec("vllm") is None:
        print("vLLM isn't installed here, so strides and placement have nothing to be measured against.")
        return
    import torch
    from vllm import __version__
    from vllm.v1 import kv_cache_interface as theirs
    from vllm.v1.core import kv_cache_planning as planning

    our_spec = kv.FullAttentionSpec(**SPEC, dtype="bfloat16")
    their_spec = theirs.FullAttentionSpec(**SPEC, dtype=torch.bfloat16)
    layout, their_layout = kv.KVCacheLayout.BLNHC, theirs.KVCacheLayout.BLNHC
    show("compute_layout_strides",
         best(lambda: kv.compute_layout_strides(our_spec, 11_632, 80, layout), number=2000),
         best(lambda: theirs.compute_layout_strides(their_spec, 11_632, 80, their_layout), number=2000),
         f"vLLM {__version__}", "<= 1")
    cache = SimpleNamespace(get_resolved_kv_cache_layout=lambda: their_layout, num_gpu_blocks_override=None,
                            prefix_cache_retention_interval=None)
    config = SimpleNamespace(cache_config=cache, attention_config=SimpleNamespace(hisparse_config=None))
    our_groups = [kv.KVCacheGroupSpec(LAYERS, our_spec)]
    their_groups = [theirs.KVCacheGroupSpec(LAYERS, their_spec)]
    show("placing 80 layers of one spec",
         best(lambda: kv.get_kv_cache_config_from_groups(our_groups, 140 << 30, layout), number=300),
         best(lambda: planning.get_kv_cache_config_from_groups(config, their_groups, 140 << 30), number=300),
         f"vLLM {__version__}", "<= 1")
    mixed = {name: 8 if index % 2 else 4 for index, name in enumerate(LAYERS)}
    our_mixed = {n: kv.FullAttentionSpec(**{**SPEC, "num_kv_heads": h}, dtype="bfloat16") for n, h in mixed.items()}
    their_mixed = {n: theirs.FullAttentionSpec(**{**SPEC, "num_kv_heads": h}, dtype=torch.bfloat16)
                   for n, h in mixed.items()}
    our_groups = [kv.KVCacheGroupSpec(LAYERS, kv.UniformTypeKVCacheSpecs(16, our_mixed))]
    their_groups = [theirs.KVCacheGroupSpec(LAYERS, theirs.UniformTypeKVCacheSpecs(16, their_mixed))]
    show("placing 80 layers of two page sizes",
         best(lambda: kv.get_kv_cache_config_from_groups(our_groups, 140 << 30, layout), number=100),
         best(lambda: planning.get_kv_cache_config_from_groups(config, their_groups, 140 << 30), number=100),
         f"vLLM {__version__}", "<= 1")


def bench_verify() -> None:
    """The proof by memory against a plain copy of the same bytes, on the CPU and on a GPU if there is one."""
    if importlib.util.find_spec("torch") is None:
        print("torch isn't installed here, so there is no memory to prove.")
        return
    import torch

    group = kv.KVCacheGroupSpec(LAYERS[:32], kv.FullAttentionSpec(**SPEC, dtype="bfloat16"))
    for device, size, aim in (("cpu", 1 << 30, ">= 0.5"), ("cuda:0", 8 << 30, ">= 0.6")):
        if device != "cpu" and not torch.cuda.is_available():
            print("There is no GPU here, so verify is measured on the CPU only.")
            continue
        for layout in ("LBNHC", "BLHNC", "BHLNC"):
            config = kv.get_kv_cache_config_from_groups([group], size, layout)
            with kv.allocate_kv_cache(config, device) as cache:
                other = torch.empty_like(cache.buffer)

                def copy(cache=cache, other=other):
                    other.copy_(cache.buffer)
                    if cache.device.type == "cuda":
                        torch.cuda.synchronize()

                plain, ours = best(copy), best(lambda cache=cache: kv.verify(cache))
            speeds = [cache.nbytes / seconds / 2**30 for seconds in (ours, plain)]
            print(f"{f'verify, {layout}, {device}':44} {speeds[0]:8.2f} GiB/s  /  {speeds[1]:8.2f} GiB/s "
                  f"{'tensor.copy_':26} = {plain / ours:5.2f}   (aim {aim})")


def bench_redraw() -> None:
    """Each tab's redraw in the kernel, for a pool of 1 MiB and one of 140 GiB."""
    if importlib.util.find_spec("kvlayout_widgets") is None:
        print("kvlayout_widgets isn't installed here, so there is no redraw to measure.")
        return
    from kvlayout_widgets import Explorer

    times = {}
    for size in (1 << 20, 140 << 30):
        # One spec and one layout; only the number of blocks differs.
        explorer = Explorer(model="llama-tiny", device="meta", available_memory=size)
        shown = {}
        for title, tab in explorer.tabs.items():
            shown |= {f"{title} {name}": panel for name, panel in getattr(tab, "panels", {"": tab}).items()}
        times[size] = {title: best(lambda tab=tab: tab.draw("light"), 7) for title, tab in shown.items()}
    for name, large in times[140 << 30].items():
        show(f"redraw {name.strip()}, 140 GiB", large, times[1 << 20][name], "1 MiB pool", "<= 1.2, each <= 100 ms")


if __name__ == "__main__":
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}, "
          f"{time.strftime('%Y-%m-%d')}")
    kinds = ("addresses", "verify", "vllm", "redraw")
    for name in kinds:
        if name in (sys.argv[1:] or kinds):
            globals()[f"bench_{name}"]()
