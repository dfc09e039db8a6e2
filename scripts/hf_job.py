# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "accelerate>=1.10",
#   "datasets>=5.0.1",
#   "evaluate>=0.4.5",
#   "filelock>=3.24.3",
#   "huggingface-hub>=1.4",
#   "jinja2>=3.1.6",
#   "numpy>=1.26",
#   "packaging>=23.0",
#   "pyarrow>=23.0.1",
#   "pyyaml>=6.0",
#   "regex>=2025.10.22",
#   "sacrebleu>=2.5",
#   "safetensors>=0.5",
#   "sentencex>=1.0",
#   "tokenizers>=0.22",
#   "torch>=2.11",
#   "tqdm>=4.66.3",
#   "transformers>=5.17,<6",
# ]
#
# [tool.hf-jobs]
# secrets = ["HF_TOKEN"]
# ///
"""Train a recipe on a dataset of the Hub as a job of Hugging Face, and upload the model with its card.

pip wheel --no-deps --wheel-dir dist .
hf jobs uv run --flavor a10g-small --timeout 12h scripts/hf_job.py dist/*.whl scripts/recipes/wmt14_en_de_base.yaml \\
  --dataset_name wmt/wmt14 --dataset_config_name de-en --hub_model_id YOU/wmt14-en-de-base

`hf` sends the script, the wheel and the recipe to the job. There is no release of this package to install; what it
needs is above, as in pyproject.toml. The flags after the recipe are those of `vanilla-transformer train`. To resume a
job that ran out of time, mount a bucket with `--volume hf://buckets/YOU/runs:/runs`, add `--output_dir /runs/wmt14`,
and run the same command again.
"""

import sys
import tempfile
import zipfile


def main(words: list[str]) -> int:
    """Train with the package in a wheel; return the exit status of `train`."""
    names_repository = any(word.startswith("--hub_model_id") for word in words)
    if not (names_repository and words[0].endswith(".whl") and words[1].endswith((".yaml", ".yml"))):
        print("usage: hf_job.py WHEEL RECIPE.yaml --dataset_name D --hub_model_id YOU/MODEL [flags]", file=sys.stderr)
        return 2
    wheel, recipe, *flags = words
    # Unpacked, since the package reads files beside its modules. Processes that it starts need the folder to the end.
    with tempfile.TemporaryDirectory() as packages:
        zipfile.ZipFile(wheel).extractall(packages)
        sys.path.insert(0, packages)
        from hf_vanilla_transformer.cli import main as vanilla_transformer

        return vanilla_transformer(["train", recipe, "--output_dir", "model", "--push_to_hub", *flags])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
