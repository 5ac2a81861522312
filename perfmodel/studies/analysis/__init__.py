"""What the studies answer, of reports and of models."""
