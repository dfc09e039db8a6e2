"""Each loader is given files that bring code: it may refuse them or read the rest, but the code never runs."""

import ast
import io
import json
import pickle
import shutil
import sys
import tarfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from foreign_code import Code, module, pickled, tagged
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

import hf_vanilla_transformer
from hf_vanilla_transformer import convert, train_tokenizer
from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.data.source import HubDataset, TextFile
from hf_vanilla_transformer.files import read_yaml
from hf_vanilla_transformer.inference.exports import export_model, load_export
from hf_vanilla_transformer.loading import load_model, load_tokenizer
from hf_vanilla_transformer.sharing.convert import _origin
from hf_vanilla_transformer.training.recipes import read_recipe

LANGUAGES = ("en", "de")
AUTO_MAP = {
    "AutoConfig": "payload.call",
    "AutoTokenizer": ["payload.call", "payload.call"],
    "AutoModel": "payload.call",
}


@pytest.fixture(scope="module")
def model(small_model, tmp_path_factory):
    """The folder of a model with its tokenizer."""
    folder = tmp_path_factory.mktemp("foreign") / "model"
    small_model(vocab_size=260, source_lang="en", target_lang="de").save_pretrained(folder)
    train_tokenizer([""], 260).save_pretrained(folder)
    return folder


def change(file: Path, **changes) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def pickled_weights(folder, marker):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickled(marker))
    load_model(str(folder))


def pickled_index(folder, marker):
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    names = dict.fromkeys(load_file(folder / "other.safetensors"), "pytorch_model.bin")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (folder / "pytorch_model.bin").write_bytes(pickled(marker))
    load_model(str(folder))


def adapter(folder):
    adapted = get_peft_model(load_model(str(folder)), LoraConfig(target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM"))
    adapted.save_pretrained(folder.parent / "adapter")
    return folder.parent / "adapter"


def pickled_adapter(folder, marker):
    place = adapter(folder)
    (place / "adapter_model.safetensors").unlink()
    (place / "adapter_model.bin").write_bytes(pickled(marker))
    load_model(str(place))


def module_of_an_adapter(folder, marker):
    place = adapter(folder)
    mapping = {"parent_library": "payload", "base_model_class": "call"}
    change(place / "adapter_config.json", megatron_config={"x": 1}, megatron_core="payload", auto_mapping=mapping)
    load_model(str(place))


def module_of_a_mapped_adapter(folder, marker):
    place = adapter(folder)
    mapping = {"parent_library": "payload", "base_model_class": "call"}
    change(place / "adapter_config.json", auto_mapping=mapping)
    assert load_model(str(place))


def code_of_a_tokenizer(folder, marker):
    change(folder / "tokenizer_config.json", auto_map=AUTO_MAP, tokenizer_class="call", custom_object="payload.call")
    load_tokenizer(str(folder))


def code_of_a_configuration(folder, marker):
    change(folder / "config.json", auto_map=AUTO_MAP, custom_pipelines={"translation": {"impl": "payload.call"}})
    change(folder / "generation_config.json", custom_generate="payload.py")
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "payload.py", folder / "custom_generate" / "generate.py")
    assert load_model(str(folder))


def code_of_an_export(folder, marker):
    export_model(str(folder), folder.parent / "export", "ctranslate2")
    place = folder.parent / "export"
    for config in (
        place / "config.json",
        place / "vanilla_transformer" / "config.json",
        place / "tokenizer_config.json",
    ):
        change(config, auto_map=AUTO_MAP)
    shutil.copy(folder / "payload.py", place)
    shutil.copy(folder / "payload.py", place / "vanilla_transformer")
    load_export(str(place), "ctranslate2")


def code_of_a_marian_model(folder, marker):
    change(folder / "config.json", model_type="marian", auto_map=AUTO_MAP)
    convert.from_pretrained(folder)


def tags_of_a_recipe(folder, marker):
    (folder / "recipe.yaml").write_text(f"preset: {tagged(marker)}\n")
    with suppress(ValueError):
        read_recipe(str(folder / "recipe.yaml"), {"preset"})
    read_yaml(folder / "recipe.yaml")


def tags_of_a_card(folder, marker):
    (folder / "README.md").write_text(f"---\nlicense: {tagged(marker)}\n---\n")
    assert _origin(str(folder))["license"] is None


def tags_of_the_card_of_a_dataset(folder, marker):
    (folder / "README.md").write_text(f"---\nconfigs: {tagged(marker)}\n---\n")
    read_dataset(folder)


def read_dataset(folder, **columns):
    pq.write_table(pa.table({"en": ["a"], "de": ["b"], **columns}), folder / "train.parquet")
    for read in (list, HubDataset.pairs):
        with suppress(OSError, ValueError):
            read(HubDataset(LANGUAGES, str(folder)))


def extension_of_a_table(folder, marker):
    names = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickled(marker)}
    fields = [pa.field("en", pa.string()), pa.field("de", pa.string(), metadata=names)]
    file = folder / "text.parquet"
    pq.write_table(pa.table([["a"], ["b"]], pa.schema(fields)), file)
    assert list(TextFile(LANGUAGES, str(file))) == [{"source": "a", "target": "b"}]
    with pa.OSFile(str(folder / "data.arrow"), "wb") as sink:
        table = pa.table([["a"], ["b"]], pa.schema(fields))
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    read_dataset(folder)


def script_of_a_dataset(folder, marker):
    for name in (f"{folder.name}.py", "dataset.py"):
        shutil.copy(folder / "payload.py", folder / name)
    read_dataset(folder)


def pickles_of_a_dataset(folder, marker):
    place = folder / "set"
    place.mkdir()
    for name in ("train.pkl", "train.pickle", "train.pt", "train.npy"):
        (place / name).write_bytes(pickled(marker))
    with tarfile.open(place / "train.tar", "w") as archive:
        for name in ("0.pkl", "0.pickle", "0.pyd", "0.pth", "0.npy", "0.npz"):
            content = pickled(marker)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    for read in (list, HubDataset.pairs):
        with pytest.raises(DataError, match=r"has files of the format webdataset, which are not read; convert"):
            read(HubDataset(LANGUAGES, str(place)))


def objects_of_a_task(folder, marker):
    pytest.importorskip("hf_vanilla_transformer.plugins.corpus", reason="needs the plugin corpus")
    from hf_vanilla_transformer.plugins.corpus.deduplication import find_duplicates

    np.save(folder / "digests.npy", np.array([Code(marker)], object), allow_pickle=True)
    find_duplicates([folder / "digests.npy"], 0, 1, folder / "duplicates.npy")


LOADERS = [
    *(pickled_weights, pickled_index, pickled_adapter, module_of_an_adapter, module_of_a_mapped_adapter),
    *(code_of_a_tokenizer, code_of_a_configuration, code_of_an_export, code_of_a_marian_model),
    *(tags_of_a_recipe, tags_of_a_card, tags_of_the_card_of_a_dataset),
    *(extension_of_a_table, script_of_a_dataset, pickles_of_a_dataset, objects_of_a_task),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("datasets_cache")
@pytest.mark.parametrize("load", LOADERS, ids=lambda load: load.__name__)
def test_code_in_files_of_strangers_never_runs(load, model, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    marker = tmp_path / "code has run"
    shutil.copytree(model, folder)
    # where a name could find it: in the folder, in the current one, and among the modules
    (folder / "payload.py").write_text(module(marker))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    with suppress(OSError, ValueError):
        load(folder, marker)
    assert "payload" not in sys.modules
    assert not marker.exists()


def test_the_code_of_these_tests_would_run(tmp_path):
    marker = tmp_path / "marker"
    for run in (
        lambda: pickle.loads(pickled(marker)),
        lambda: exec(module(marker), {}),
        lambda: yaml.load(tagged(marker), yaml.UnsafeLoader),
    ):
        run()
        marker.unlink()


def test_nothing_in_the_package_runs_code_from_a_file():
    unsafe = {"pickle.load", "pickle.loads", "torch.load", "np.load", "yaml.load", "evaluate.load", "eval", "exec"}
    package = Path(hf_vanilla_transformer.__file__).parent
    calls = [
        f"{file.name}: {ast.unparse(node.func)}"
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in unsafe
    ]
    assert calls == []
