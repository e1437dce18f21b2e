"""Random inputs for our functions and vLLM's own, one module a kind; ``kvlayout.upstream.conformance`` runs them."""
