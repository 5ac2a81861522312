"""What ran when: the bars of a batch by rank and lane, and the same as a Perfetto trace."""
