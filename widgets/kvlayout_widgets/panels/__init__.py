"""The panels of the Clinic tab, one module each: a question about an offset bug, and its answer."""
