"""Write a model as a package of Argos Translate, the engine of LibreTranslate's server.

python scripts/benchmarks/argos.py MODEL FOLDER

Argos Translate tokenises with Moses and segments with subword-nmt's BPE, so MODEL must have been trained with
`--tokenizer_model subword-nmt` on text that Moses has tokenised. Its weights become those of the export to CTranslate2
in int8. FOLDER is for the variable ARGOS_PACKAGES_DIR.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from hf_vanilla_transformer.data.subword_codes import END
from hf_vanilla_transformer.inference.exports import export_model
from hf_vanilla_transformer.loading import load_config, load_tokenizer
from hf_vanilla_transformer.plugins.ctranslate2.ctranslate2_runtime import FORMAT

VOCABULARY = "shared_vocabulary.json"  # in a model of CTranslate2
JOINER = "@@"  # of subword-nmt, at the end of symbols that do not end a word


def write_package(model: str, folder: Path) -> None:
    """Write the package of `model` to a new folder in `folder`, and one for the other direction, which is not used.

    Raises:
        SystemExit: if its tokenizer does not segment as subword-nmt.
    """
    tokenizer = load_tokenizer(model)
    bpe = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    if bpe.get("end_of_word_suffix") != END:
        sys.exit(f"{model} was not trained with --tokenizer_model subword-nmt.")
    config = load_config(model)
    package = folder / f"{config.source_lang}_{config.target_lang}"
    export_model(model, str(package / "model"), FORMAT.name, "int8")
    special = set(tokenizer.all_special_tokens)

    def as_in_argos(token: str) -> str:
        if token in special:
            return token
        return token.removesuffix(END) if token.endswith(END) else token + JOINER

    vocabulary = package / "model" / VOCABULARY
    tokens = [as_in_argos(token) for token in json.loads(vocabulary.read_text(encoding="utf-8"))]
    vocabulary.write_text(json.dumps(tokens), encoding="utf-8")
    settings = package / "model" / "config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "add_source_eos": True}))
    codes = ["#version: 0.2", *(" ".join(merge) for merge in bpe["merges"])]
    (package / "bpe.model").write_text("\n".join(codes) + "\n", encoding="utf-8")
    _write_metadata(package, config.source_lang, config.target_lang)
    # With a single package, LibreTranslate would look for more on the web before it starts
    back = shutil.copytree(package, folder / f"{config.target_lang}_{config.source_lang}")
    _write_metadata(back, config.target_lang, config.source_lang)


def _write_metadata(package: Path, source: str | None, target: str | None) -> None:
    languages = {"from_code": source, "from_name": source, "to_code": target, "to_name": target}
    (package / "metadata.json").write_text(json.dumps({**languages, "package_version": "1.0"}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a model")
    parser.add_argument("folder", type=Path, help="folder for the package")
    args = parser.parse_args()
    write_package(args.model, args.folder)


if __name__ == "__main__":
    main()
