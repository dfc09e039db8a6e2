"""`python -m hf_vanilla_transformer` is the command `vanilla-transformer`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
