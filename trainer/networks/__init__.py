"""The network: forward, backward and step, on any backend or in kernels made for it."""
