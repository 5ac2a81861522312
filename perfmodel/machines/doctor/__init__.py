"""Doctor: what works on this machine, and what to install where it does not."""
