"""`python -m springtide` is the `springtide` command."""

import sys

from springtide.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
