"""Base: errors, units, files, tables and processes; knows nothing of performance."""
