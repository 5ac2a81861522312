"""Tables, text and pictures of the studies."""
