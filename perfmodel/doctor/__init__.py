"""What this machine lacks for analyzing, collecting and training: asked, judged, with advice."""
