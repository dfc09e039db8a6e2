"""Run transformers' own test suite on both model classes, with MarianMT as a control.

The control runs only those tests that our classes do not pass: they are skipped for a reason in the suite, and then
MarianMT must not pass them either. Of the tests that our classes pass, MarianMT cannot pass more.

The suite is part of transformers' source distribution, which pip downloads once into the user's cache. It runs in a
separate process (this file as a script), because it needs changes to transformers that must not affect other tests.
"""

import importlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.auto import modeling_auto

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "hf_vanilla_transformer")
SUITE = "transformers_suite"  # package name under which the suite is imported
MIN_PASSES = 90  # fewer would mean that the suite was not really run; 104 pass on transformers 5.24, as with MarianMT

COMMON_SIZES = {"vocab_size": 99, "d_model": 16, "max_position_embeddings": 50}
OURS = (
    VanillaTransformerConfig,
    (VanillaTransformerModel, VanillaTransformerForConditionalGeneration),
    {**COMMON_SIZES, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "d_ff": 32},
)
MARIAN = (
    transformers.MarianConfig,
    (transformers.MarianModel, transformers.MarianMTModel),
    {
        **COMMON_SIZES,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    },
)


def fetch_suite() -> Path:
    """Return the folder `tests` of the source distribution of the installed transformers, downloaded if necessary."""
    name = f"transformers-{transformers.__version__}"
    folder = CACHE / name / "tests"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        command += ["--dest", temporary, f"transformers=={transformers.__version__}"]
        pip = subprocess.run(command, capture_output=True, text=True)
        if pip.returncode:
            pytest.skip(f"pip cannot download the source of {name}: {pip.stderr.strip()[-200:]}")
        with tarfile.open(next(Path(temporary).glob("*.tar.gz"))) as archive:
            members = [member for member in archive if member.name.startswith(f"{name}/tests/")]
            # not an argument of extractall(), which Python 3.11 has only since 3.11.4
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(Path(temporary, "source"), members)
        Path(temporary, "source", name, "tests", "__init__.py").touch()
        Path(temporary, "source", name).replace(folder.parent)
    return folder


def stub(name: str, **contents) -> types.ModuleType:
    """Create and register a module that is missing from the source distribution."""
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    sys.modules[name] = module
    return module


def prepare(folder: Path) -> tuple[type, ...]:
    """Return transformers' `ModelTesterMixin`, an empty `GenerationTesterMixin`, and `ConfigTester`.

    The suite looks up our classes in transformers' static name mappings, which `register` does not change.
    """
    model_type = VanillaTransformerConfig.model_type
    modeling_auto.MODEL_MAPPING_NAMES[model_type] = VanillaTransformerModel.__name__
    generative = modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    generative[model_type] = VanillaTransformerForConditionalGeneration.__name__

    stub(SUITE).__path__ = [str(folder)]
    for package in ("exporters", "generation", "utils"):
        stub(f"{SUITE}.{package}").__path__ = []
    stub(f"{SUITE}.exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
    generation_tests = type("GenerationTesterMixin", (), {})
    stub(f"{SUITE}.generation.test_utils", GenerationTesterMixin=generation_tests)
    fields = {"output_hidden_states": True, "return_dict": False, "dtype": "float16", "chunk_size_feed_forward": 5}
    fields |= {"architectures": ["SomeModel"], "id2label": {0: "label"}, "problem_type": "regression"}
    stub(f"{SUITE}.utils.test_configuration_utils", config_common_kwargs=fields)
    return (
        importlib.import_module(f"{SUITE}.test_modeling_common").ModelTesterMixin,
        generation_tests,
        importlib.import_module(f"{SUITE}.test_configuration_common").ConfigTester,
    )


class ModelTester:
    """Small models and inputs, with the interface that `ModelTesterMixin` requires."""

    batch_size = 3
    seq_length = encoder_seq_length = decoder_seq_length = key_length = 7
    hidden_size, num_attention_heads, num_hidden_layers = 16, 4, 2
    is_training = True

    def __init__(self, config_class: type, sizes: dict):
        self.config_class, self.sizes = config_class, sizes

    def get_config(self):
        return self.config_class(**self.sizes)

    def prepare_config_and_inputs_for_common(self):
        config = self.get_config()
        ids = [torch.randint(3, config.vocab_size, (self.batch_size, self.seq_length)) for _ in range(2)]
        masks = [torch.ones_like(tokens) for tokens in ids]
        names = ("input_ids", "decoder_input_ids", "attention_mask", "decoder_attention_mask")
        return config, dict(zip(names, (*ids, *masks), strict=True))


def run(
    suite: tuple[type, ...], config_class: type, model_classes: tuple, sizes: dict, only: set[str] | None = None
) -> dict[str, str]:
    """Run all tests, or those named in `only`.

    Returns:
        For each test name "passed", "skipped: reason" or the traceback of its failure.
    """
    model_tests, generation_tests, config_tester = suite

    class Case(model_tests, generation_tests, unittest.TestCase):
        all_model_classes = model_classes
        is_encoder_decoder = True

        def setUp(self):
            self.model_tester = ModelTester(config_class, sizes)
            self.config_tester = config_tester(self, config_class=config_class, **sizes)

        def test_config(self):
            self.config_tester.run_common_tests()

    outcomes = {}
    for case in unittest.defaultTestLoader.loadTestsFromTestCase(Case):
        name = case._testMethodName
        if only is not None and name not in only:
            continue

        result = unittest.TestResult()
        try:
            case.run(result)
        except pytest.skip.Exception as skip:
            result.addSkip(case, str(skip))
        trace = "".join(text for _, text in (*result.failures, *result.errors))
        skipped = f"skipped: {result.skipped[0][1]}" if result.skipped else ""
        outcomes[name] = trace or skipped or "passed"
    return outcomes


@pytest.fixture(scope="module")
def outcomes() -> tuple[dict[str, str], dict[str, str]]:
    """Return the outcome of every test for our classes, and for MarianMT's of those that ours do not pass."""
    process = subprocess.run([sys.executable, __file__, fetch_suite()], capture_output=True, text=True, timeout=800)
    assert process.returncode == 0, process.stderr[-3000:]
    return tuple(json.loads(process.stdout.splitlines()[-1]))


def failures(results: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in results.items() if text != "passed" and not text.startswith("skipped")}


def test_no_test_of_transformers_fails(outcomes):
    ours, _ = outcomes
    failed = failures(ours)
    assert not failed, "\n".join(f"{name}\n{text}" for name, text in failed.items())


def test_every_test_that_marian_passes_is_passed(outcomes):
    _, marian = outcomes
    assert [name for name, text in marian.items() if text == "passed"] == []
    failed = failures(marian)
    assert not failed, f"the control fails: {failed}"


def test_most_tests_are_passed_and_not_skipped(outcomes):
    ours, marian = outcomes
    passes = sum(text == "passed" for text in ours.values())
    print(f"passed of {len(ours)}: {passes}; run with MarianMT: {len(marian)}")
    assert passes >= MIN_PASSES
    assert marian.keys() == {name for name, text in ours.items() if text != "passed"}


def main() -> None:
    suite = prepare(Path(sys.argv[1]))
    ours = run(suite, *OURS)
    others = {name for name, text in ours.items() if text != "passed"}
    print(json.dumps([ours, run(suite, *MARIAN, only=others)]))


if __name__ == "__main__":
    main()
