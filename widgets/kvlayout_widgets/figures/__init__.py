"""Figures of layouts: library objects in, matplotlib Figures out; no pyplot state and no ipywidgets."""
