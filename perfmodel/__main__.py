"""`python -m perfmodel`."""

from perfmodel.cli import main

main(prog_name="perfmodel")
