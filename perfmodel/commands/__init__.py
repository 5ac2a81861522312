"""The commands, a file each; they and `cli.py` are the only ones that print or exit."""
