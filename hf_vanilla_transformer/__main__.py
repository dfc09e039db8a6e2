"""Run the command line with `python -m hf_vanilla_transformer`."""

from .cli import run_program

if __name__ == "__main__":
    run_program()
