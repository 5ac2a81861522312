"""Readers: each turns one kind of profiler output into a `Trace` or a table of counters."""
