"""Render: results as text, tables, JSON, figures, HTML and timelines."""
