"""Finding offset bugs: checks, look-ups and comparisons on top of an address map."""
