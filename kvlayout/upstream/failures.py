"""What an error of vLLM's means for whoever reads a running engine; vLLM itself isn't imported."""

from __future__ import annotations

from kvlayout.errors import LayoutError


def is_death(error: BaseException) -> bool:
    """Whether an error of vLLM's says that the engine has ended."""
    return type(error).__name__ == "EngineDeadError" or "Executor failed" in str(error)


def explained(llm: object, error: Exception) -> LayoutError:
    """Return what an error of vLLM's means for whoever reads an engine."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    chain = f"{type(error).__name__}: {error}"
    if "INSECURE_SERIALIZATION" in chain:
        return LayoutError("llm", type(llm).__name__, "runs its engine in another process, to which functions can't "
                           "be sent", "Set VLLM_ALLOW_INSECURE_SERIALIZATION=1 before the engine starts, or "
                           "VLLM_ENABLE_V1_MULTIPROCESSING=0")
    if isinstance(error, TimeoutError):
        return LayoutError("llm", type(llm).__name__, f"gave no answer in time: {text}", "Raise timeout, or look "
                           "into the engine's log")
    if is_death(error):
        return LayoutError("llm", type(llm).__name__, "is dead: its engine ended, and its cache with it",
                           "Start a new engine; the reason is in its log")
    return LayoutError("llm", type(llm).__name__, f"couldn't be read: {type(error).__name__}: {text}",
                       "Use an engine of vLLM 0.29 or newer that is running")
