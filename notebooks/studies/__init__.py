"""Published performance studies: what they printed, recomputed, and what is wrong in it."""
