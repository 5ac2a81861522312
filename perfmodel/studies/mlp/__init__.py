"""The trainer: its cases, the parts of its steps, their bounds, and its changes."""
