"""`python -m rallypoint` is the command `rallypoint`."""

from rallypoint.cli.main import rallypoint

if __name__ == "__main__":
    rallypoint()
