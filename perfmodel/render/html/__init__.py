"""A report as one HTML file that needs nothing else: no network, no fonts, no other files."""

from perfmodel.render.html.page import Asked, page

__all__ = ["Asked", "page"]
