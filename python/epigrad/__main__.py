"""``python -m epigrad``."""

import sys

from epigrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
