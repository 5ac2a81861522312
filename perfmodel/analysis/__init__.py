"""Analysis: joins times, work and ceilings into rates, findings, comparisons and predictions."""
