"""PyTorch programs that are recorded with known truth."""
