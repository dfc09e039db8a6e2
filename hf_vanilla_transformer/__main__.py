"""Run the command line with `python -m hf_vanilla_transformer`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
