"""The trainer's MLP: its sizes, ranges, transports and settings."""
