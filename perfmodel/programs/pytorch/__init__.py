"""PyTorch: its operators' ranges, their sizes, and what one can do about a slow step."""
