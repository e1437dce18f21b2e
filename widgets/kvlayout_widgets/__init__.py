"""The Jupyter side of kvlayout: pictures, controls, and the explorer."""
