"""One training step: its batches, how ranks divide it, and its CUDA graph."""
