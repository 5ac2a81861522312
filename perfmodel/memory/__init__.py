"""Memory: what a run should allocate, what it did, and a model of both."""
