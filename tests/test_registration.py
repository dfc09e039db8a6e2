"""Registration with transformers' Auto classes, with a new process for each case."""

import subprocess
import sys

import pytest

AUTO = "from transformers import AutoConfig, AutoModelForSeq2SeqLM"
# one order for each way in which the import hook meets transformers; each costs a process that starts for seconds
IMPORT_ORDERS = [
    f"from hf_vanilla_transformer import noam; {AUTO}",
    *(
        pytest.param(order, marks=pytest.mark.slow)
        for order in (
            f"{AUTO}; import hf_vanilla_transformer",
            f"from transformers import AutoConfig; import hf_vanilla_transformer; {AUTO}",
            f"from hf_vanilla_transformer import TranslationPipeline; {AUTO}",
        )
    ),
]


def run_python(code: str) -> str:
    """Run `code` in a new process and return its output."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_never_imports_torch_or_transformers():
    names = "'torch', 'transformers', 'datasets'"
    code = f"import sys, hf_vanilla_transformer.cli; print([name for name in ({names}) if name in sys.modules])"
    assert run_python(code) == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("imports", IMPORT_ORDERS)
def test_auto_classes_build_the_model_for_any_import_order(imports):
    build = "AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model('vanilla_transformer', d_model=8, vocab_size=9))"
    # with the uploader, push_to_hub writes this package's card
    code = f"model = {build}; print(type(model).__name__, model.uploader.__name__)"
    assert run_python(f"{imports}\n{code}") == "VanillaTransformerForConditionalGeneration _upload"


def test_completion_shows_public_names_before_anything_slow_is_imported():
    names = "{'convert', 'translate'} <= {*dir(package)}"
    code = f"import sys, hf_vanilla_transformer as package; print({names}, 'torch' in sys.modules)"
    assert run_python(code) == "True False"
