"""Run `vanilla-transformer train`, with the same flags, under `accelerate launch` or `torchrun`.

accelerate launch scripts/train.py --preset tiny --train_file P --validation_file Q --output_dir D
"""

from hf_vanilla_transformer.cli import run_program

if __name__ == "__main__":
    run_program("train")
