"""Machines: ceilings that are shipped as TOML files, looked up, or measured."""
