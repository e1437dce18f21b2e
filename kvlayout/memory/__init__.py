"""Real memory: the only rooms of the library that import torch."""
