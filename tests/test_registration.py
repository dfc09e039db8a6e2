"""Registration with transformers' Auto classes, each case in a process of its own."""

import subprocess
import sys

import pytest

OURS = [
    f"model.{name}_vanilla_transformer"
    for name in ("configuration", "layers", "fast_search", "generation", "modeling", "pipeline")
]


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_waits_for_neither_torch_nor_transformers():
    names = "'torch', 'transformers', 'datasets'"
    code = f"import sys, hf_vanilla_transformer.cli; print([name for name in ({names}) if name in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.parametrize(
    "imports",
    [
        "import hf_vanilla_transformer; from transformers import AutoConfig, AutoModelForSeq2SeqLM",
        "from transformers import AutoConfig, AutoModelForSeq2SeqLM; import hf_vanilla_transformer",
        "from transformers import AutoConfig; import hf_vanilla_transformer; "
        "from transformers import AutoModelForSeq2SeqLM",
        "from hf_vanilla_transformer import noam; from transformers import AutoConfig, AutoModelForSeq2SeqLM",
        *(
            f"import hf_vanilla_transformer.{name}; from transformers import AutoConfig, AutoModelForSeq2SeqLM"
            for name in (*OURS, "sharing.export", "sharing.convert", "training.run")
        ),
        "from hf_vanilla_transformer import VanillaTransformerModel; from transformers import AutoConfig; "
        "from transformers import AutoModelForSeq2SeqLM",
    ],
)
def test_the_auto_classes_know_the_model_in_any_order_of_imports(imports):
    build = "AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model('vanilla_transformer', d_model=8, vocab_size=9))"
    assert python(f"{imports}\nprint(type({build}).__name__)") == "VanillaTransformerForConditionalGeneration"
