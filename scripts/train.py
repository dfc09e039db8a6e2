"""Run `vanilla-transformer train`, with the same flags, under `accelerate launch` or `torchrun`.

accelerate launch scripts/train.py --preset tiny --train_file P --validation_file Q --output_dir D
"""

import sys

from hf_vanilla_transformer.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
