"""Summaries equal to those of `nsys stats`."""
