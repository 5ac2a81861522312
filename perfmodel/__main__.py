"""`python -m perfmodel`."""

from perfmodel.cli import main

if __name__ == "__main__":  # processes that read reports import this file, too
    main(prog_name="perfmodel")
