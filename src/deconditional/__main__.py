"""``python -m deconditional`` is the command line."""

import sys

from deconditional.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
