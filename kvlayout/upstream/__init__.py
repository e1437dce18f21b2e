"""Real vLLM: our objects as its own, its functions as the judge. vLLM is imported late, where a function needs it."""
