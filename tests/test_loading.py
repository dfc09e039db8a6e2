"""Untrusted models: their code never runs, and damaged files cause a one-line error."""

import ast
import base64
import errno
import json
import os
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from export_models import check_independence_of_files
from forked_python import forked_python
from peft import BOFTConfig, IA3Config, LoHaConfig, LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from small import write_moses
from transformers import GenerationConfig, MarianConfig, MarianMTModel

import hf_vanilla_transformer
from hf_vanilla_transformer import loading, train_tokenizer
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.inference.ensemble import Ensemble
from hf_vanilla_transformer.loading import load_model, load_tokenizer

PACKAGE = Path(hf_vanilla_transformer.__file__).parent
FOREIGN = """
from transformers import PreTrainedConfig
open({marker!r}, "w").close()
class ForeignConfig(PreTrainedConfig):
    model_type = "foreign"
"""


@pytest.fixture
def folder(small_model, tmp_path):
    """Return a folder with a model and its tokenizer."""
    path = tmp_path / "model"
    small_model(vocab_size=260, source_lang="en", target_lang="de").save_pretrained(path)
    train_tokenizer([""], 260).save_pretrained(path)
    return path


def change_weights(change):
    def damage(folder):
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def change_json(name, **changes):
    def damage(folder):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **changes}))

    return damage


change_config = partial(change_json, "config.json")
change_decoding = partial(change_json, "generation_config.json")


def nested(levels):
    return [nested(levels - 1)] if levels else []


def truncate_weights(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-500])


DAMAGES = {
    "truncated weights": truncate_weights,
    "empty weights": lambda folder: (folder / "model.safetensors").write_bytes(b""),
    "a missing tensor": change_weights(lambda weights: weights.pop("model.decoder.layers.1.fc1.weight")),
    "a tensor of the wrong shape": change_weights(
        lambda weights: weights.update({"model.decoder.layers.1.fc1.weight": torch.zeros(3, 3)})
    ),
    "a field of the wrong type": change_config(d_model="wide"),
    "a field out of range": change_config(dropout=7.0),
    "a config that is not an object": lambda folder: (folder / "config.json").write_text("[]"),
    "a different model type": change_config(model_type="bert"),
    "an unknown model type": change_config(model_type="foreign"),
    "a million layers": change_config(num_encoder_layers=10**6),
    "positions for 51 GB": change_config(max_position_embeddings=10**8),
    "a billion labels": change_config(num_labels=10**9),
    "a billion labels of a part": change_config(model_type="clip", text_config={"num_labels": 10**9}),
    "a model type that is a list": change_config(model_type=["vanilla_transformer"]),
    "a start token beyond the vocabulary": change_config(decoder_start_token_id=260),
    "a negative end token": change_config(eos_token_id=[2, -1]),
    "no padding token": change_config(pad_token_id=None),
    "half a language pair": change_config(language_pairs=["en"]),
    "attention that its configuration does not suit": change_config(output_attentions=True),
    "a nested config": change_config(extra=nested(500)),
    "a million beams": change_decoding(num_beams=10**6),
    "an end token beyond the vocabulary": change_decoding(eos_token_id=260),
    "a length beyond all positions": change_decoding(max_new_tokens=10**9),
    "a length penalty that is not a number": change_decoding(length_penalty=float("nan")),
    "damaged settings of decoding": change_decoding(exponential_decay_length_penalty=[1]),
    "an empty word to avoid": change_decoding(bad_words_ids=[[]]),
    "an adapter without a base model": lambda folder: (folder / "adapter_config.json").write_text(
        '{"base_model_name_or_path": null}'
    ),
    "settings that are only brackets": lambda folder: (folder / "generation_config.json").write_text("[" * 100_000),
    "a text as limit": change_json("tokenizer_config.json", model_max_length="long"),
    "a nested tokenizer": change_json("tokenizer_config.json", extra=nested(500)),
    "a damaged tokenizer": lambda folder: (folder / "tokenizer.json").write_text('{"model": 3}'),
}
COMMANDS = {
    "evaluate": ["evaluate", "MODEL", "--test_file", "TEXT"],
    "score": ["score", "MODEL", "--test_file", "TEXT"],
    "compare": ["compare", "MODEL", "MODEL", "--test_file", "TEXT"],
    "translate": ["translate", "MODEL"],
    "train": ["train", "--model_name_or_path", "MODEL", "--train_file", "TEXT", "--output_dir", "OUT", "--use_cpu"],
    "demo": ["demo", "MODEL"],
    "export": ["export", "MODEL", "OUT", "--format", "ctranslate2"],
}


def error_line(command: str, folder: Path, capsys, monkeypatch, tmp_path) -> str:
    """Run a command that must fail, and return its one-line error message."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    write_moses(tmp_path / "text", en=["a dog"] * 3, de=["a dog"] * 3)
    names = {"MODEL": str(folder), "TEXT": str(tmp_path / "text"), "OUT": str(tmp_path / "out")}
    assert main([names.get(word, word) for word in COMMANDS[command]]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vanilla-transformer")]
    assert len(lines) == 1
    return lines[0]


# Both verbs load a model in the same way, which a sample shows; the rest is slow
LOADED = [("evaluate", damage) for damage in DAMAGES]
LOADED += [
    pytest.param("train", damage, marks=[pytest.mark.slow] if number % 8 else [])
    for number, damage in enumerate(DAMAGES)
]


@pytest.mark.parametrize(("command", "damage"), LOADED)
def test_a_damaged_model_causes_a_one_line_error(damage, command, folder, capsys, monkeypatch, tmp_path):
    DAMAGES[damage](folder)
    assert str(folder) in error_line(command, folder, capsys, monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("a start token beyond the vocabulary", "in its config.json, decoder_start_token_id must be from 0 to 259"),
        ("an end token beyond the vocabulary", "in its generation_config.json, eos_token_id must be from 0 to 259"),
        ("a million beams", "in its generation_config.json, num_beams must be an integer from 1 to 1,000"),
        ("an adapter without a base model", "its adapter_config.json has no base_model_name_or_path"),
    ],
)
def test_the_error_of_a_damaged_setting_names_its_file(damage, message, folder):
    DAMAGES[damage](folder)
    with pytest.raises(OSError, match=f"{folder}: {message}"):
        load_model(str(folder))


def test_weights_that_cannot_be_read_are_not_said_to_be_missing(folder, monkeypatch):
    weights = folder / "model.safetensors"
    weights.chmod(0)
    # root may read every file
    if os.access(weights, os.R_OK):

        def refuse(file, *args):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)

        monkeypatch.setattr(loading, "open", refuse, raising=False)
    with pytest.raises(OSError, match=f"{folder}: .*Permission denied: '{weights}'"):
        load_model(str(folder))


@pytest.mark.parametrize("command", COMMANDS)
def test_incomplete_weights_are_rejected(command, folder, capsys, monkeypatch, tmp_path):
    DAMAGES["a missing tensor"](folder)
    line = error_line(command, folder, capsys, monkeypatch, tmp_path)
    assert "do not contain 1 of the model's tensors, for example model.decoder.layers.1.fc1.weight" in line
    assert not (tmp_path / "out" / "settings.yaml").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_different_model_type_causes_a_one_line_error(command, folder, capsys, monkeypatch, tmp_path):
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = MarianConfig(vocab_size=260, d_model=8, encoder_layers=1, decoder_layers=1, pad_token_id=0, **heads)
    MarianMTModel(config).save_pretrained(folder)
    assert "is a marian model" in error_line(command, folder, capsys, monkeypatch, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["translate", "evaluate", "demo", "train"])
def test_code_of_a_model_folder_never_runs(command, tmp_path):
    folder, marker = tmp_path / "foreign", tmp_path / "code has run"
    folder.mkdir()
    auto_map = {"AutoConfig": "code.ForeignConfig", "AutoModelForSeq2SeqLM": "code.ForeignModel"}
    (folder / "config.json").write_text(json.dumps({"model_type": "foreign", "auto_map": auto_map}))
    (folder / "code.py").write_text(FOREIGN.format(marker=str(marker)))
    words = [{"MODEL": str(folder), "OUT": str(tmp_path / "out")}.get(word, word) for word in COMMANDS[command]]
    run = subprocess.run(
        [forked_python(), "-m", "hf_vanilla_transformer", *words],
        **{"input": "y\ny\ny\nHello.\n", "capture_output": True, "text": True, "timeout": 100},
    )
    assert run.returncode == 1
    assert "[y/N]" not in run.stdout + run.stderr
    assert "is a foreign model, not a vanilla_transformer model" in run.stderr
    assert not marker.exists()


def test_every_auto_class_call_sets_trust_remote_code_to_false():
    """Otherwise transformers asks on stdin, which may contain the text to translate."""
    prompting = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            name = ast.unparse(node.func)
            values = [keyword.value for keyword in node.keywords if keyword.arg == "trust_remote_code"]
            if name.endswith(".from_pretrained") and ("auto" in name.lower() or "ExportedModel" in name):
                prompting += [f"{file.name}: {name}"] * ([ast.unparse(value) for value in values] != ["False"])
    assert prompting == []


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_folder_loads(folder, tmp_path):
    adapted = get_peft_model(load_model(str(folder)), LoraConfig(target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM"))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    source = torch.tensor([[5, 6, 2]])
    expected = adapted.eval().generate(input_ids=source, max_new_tokens=5)
    adapted.save_pretrained(tmp_path / "adapter")
    assert torch.equal(load_model(str(tmp_path / "adapter")).eval().generate(source, max_new_tokens=5), expected)


ELSEWHERE = {
    "megatron_config": {"megatron_config": {"x": 1}, "megatron_core": "payload"},
    "adapters": {"peft_type": "XLORA", "adapters": {"0": "../elsewhere"}},
    "shadow_model": {"peft_type": "SHADOW", "shadow_model": "../elsewhere"},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("field", ELSEWHERE)
def test_an_adapter_names_no_code_and_no_other_files(field, folder, tmp_path):
    adapted = get_peft_model(load_model(str(folder)), LoraConfig(target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM"))
    adapted.save_pretrained(tmp_path / "adapter")
    change_json("adapter_config.json", **ELSEWHERE[field])(tmp_path / "adapter")
    with pytest.raises(OSError, match=f"in its adapter_config.json, {field} names code or other files"):
        load_model(str(tmp_path / "adapter"))


@pytest.mark.filterwarnings("ignore")
def test_pickled_adapters_are_never_loaded(folder, tmp_path):
    adapted = get_peft_model(load_model(str(folder)), LoraConfig(target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM"))
    adapted.save_pretrained(tmp_path / "adapter", safe_serialization=False)
    with pytest.raises(OSError, match=r"it has no adapter_model\.safetensors, and other weights"):
        load_model(str(tmp_path / "adapter"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["one file", "several files", "an adapter", "half precision"])
def test_a_loaded_model_does_not_depend_on_its_files(kind, folder, tmp_path):
    """A new model is copied over one that is served."""
    loaded = load_model(str(folder))
    if kind == "several files":
        loaded.save_pretrained(tmp_path / kind, max_shard_size="20KB")
    elif kind == "an adapter":
        lora = LoraConfig(target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM", init_lora_weights=False)
        get_peft_model(loaded, lora).save_pretrained(tmp_path / kind)
    else:
        loaded.to(torch.bfloat16 if kind == "half precision" else torch.float32).save_pretrained(tmp_path / kind)
    check_independence_of_files(tmp_path / kind, load_model(str(tmp_path / kind)).eval())


BOMBS = {
    "config.json": "in its config.json, it has 5,0.. settings, more than 1,000; remove those",
    "generation_config.json": "in its generation_config.json, it has 5,0.. settings",
    "tokenizer_config.json": "in its tokenizer_config.json, it has 5,0.. settings",
}


@pytest.mark.parametrize("file", BOMBS)
def test_thousands_of_unknown_settings_are_refused_before_transformers_compares_them(file, folder):
    change_json(file, **{f"unknown_{i}": i for i in range(5000)})(folder)
    with pytest.raises(OSError, match=BOMBS[file]):
        (load_tokenizer if file.startswith("tokenizer") else load_model)(str(folder))


@pytest.mark.parametrize("file", BOMBS)
def test_half_of_a_character_in_settings_is_refused_before_they_are_saved_again(file, folder):
    change_json(file, unknown=["\ud800"])(folder)
    with pytest.raises(OSError, match=rf"in its {file}, it has half of a character, '\\ud800'; remove it"):
        (load_tokenizer if file.startswith("tokenizer") else load_model)(str(folder))


def test_settings_are_not_read_beyond_their_limit(folder):
    change_config(unknown="x" * loading.MAX_SETTINGS_BYTES)(folder)
    with pytest.raises(OSError, match=r"in its config\.json, larger than 4,194,304 bytes"):
        load_model(str(folder))


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
SPREAD = {"type": "Replace", "pattern": {"Regex": ""}, "content": "a" * 2000}
TABLE = base64.b64encode((0).to_bytes(4, "little") + b"x" * 2000 + b"\0").decode()
REPEATED = [{"Sequence": {"id": "A", "type_id": 0}}] * 2000
LONG_TOKEN = {"</s>": {"id": "</s>", "ids": [2] * 2000, "tokens": ["</s>"] * 2000}}


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("normalizer", {"type": "Sequence", "normalizers": [DOUBLE] * 33}),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [DOUBLE] * 3}] * 4}),
        ("normalizer", SPREAD),
        ("normalizer", {"type": "Prepend", "prepend": "a" * 2000}),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": TABLE}),
        ("decoder", {"type": "Sequence", "decoders": [DOUBLE] * 33}),
        ("post_processor", {"type": "TemplateProcessing", "single": REPEATED, "special_tokens": {}}),
        (
            "post_processor",
            {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "</s>", "type_id": 0}}],
                "special_tokens": LONG_TOKEN,
            },
        ),
    ],
)
def test_a_tokenizer_that_makes_a_text_a_thousand_times_as_long_is_refused(part, content, folder):
    change_json("tokenizer.json", **{part: content})(folder)
    with pytest.raises(OSError, match=f"its {part} can make a text .* times as long, more than 1,000 times"):
        load_tokenizer(str(folder))


@pytest.mark.parametrize("model", ["bpe", "unigram", "word", "char"])
def test_the_tokenizers_of_this_package_are_within_the_limit(model, tmp_path):
    train_tokenizer(["a dog"] * 9, 260, model, "nfkc").save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path))("a dog")["input_ids"]


@pytest.fixture
def adapter(folder, tmp_path):
    lora = LoraConfig(target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM")
    get_peft_model(load_model(str(folder)), lora).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 4_000_000}, "r must be at most 1,024, but is 4000000"),
        ({"rank_pattern": {"q_proj": 10**9}}, "rank_pattern must be at most 1,024"),
        ({"peft_type": "LOHA", "r": 4_000_000}, "r must be at most 1,024"),
        ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 10**9}, "num_virtual_tokens must be at most 100,000"),
        ({"target_modules": "(a+)+$"}, "target_modules must be names of modules or a short regular expression"),
        ({"exclude_modules": "(.|[a-z])*$"}, "exclude_modules must be names"),
        ({"modules_to_save": ["(?:.|[a-z])" * 20]}, "modules_to_save must be names"),
        ({"rank_pattern": {".*" * 20 + "x": 2}}, "rank_pattern must be names"),
        ({"target_modules": [f"module_{i}" for i in range(5000)]}, "target_modules must have at most 1,000 entries"),
        ({"trainable_token_indices": [2] * 5000}, "trainable_token_indices must have at most 1,000 entries"),
        ({"init_lora_weights": "pissa_niter_1000000000"}, "init_lora_weights must be a name"),
        ({"layer_replication": [[0, 2]] * 9}, "layer_replication names code or other files, or copies layers"),
    ],
)
def test_an_adapter_that_would_take_memory_or_time_beyond_its_model_is_refused(changes, message, adapter):
    change_json("adapter_config.json", **changes)(adapter)
    with pytest.raises(OSError, match=f"in its adapter_config.json, {re.escape(message)}"):
        load_model(str(adapter))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "config",
    [
        LoHaConfig(r=4, target_modules=["q_proj", "fc1"]),
        IA3Config(target_modules=["k_proj", "v_proj", "fc2"], feedforward_modules=["fc2"]),
        BOFTConfig(boft_block_size=4, target_modules=["q_proj"]),
    ],
    ids=lambda config: type(config).__name__,
)
def test_other_adapters_than_lora_load(config, folder, tmp_path):
    adapted = get_peft_model(load_model(str(folder)), config)
    adapted.save_pretrained(tmp_path / "adapter")
    assert load_model(str(tmp_path / "adapter"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("modules", [r".*encoder.*\.(q_proj|v_proj)", "all-linear", ["fc1", "q_proj"]])
def test_usual_ways_to_choose_the_modules_of_an_adapter_load(modules, folder, tmp_path):
    lora = LoraConfig(target_modules=modules, task_type="SEQ_2_SEQ_LM")
    get_peft_model(load_model(str(folder)), lora).save_pretrained(tmp_path / "adapter")
    assert load_model(str(tmp_path / "adapter"))


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
def test_attention_from_the_hub_is_overridden(key, folder):
    change_config(**{key: "kernels-community/flash-attn"})(folder)
    assert load_model(str(folder)).config._attn_implementation == "sdpa"


@pytest.mark.parametrize("changes", [{"return_dict": False}, {"return_dict": 0, "output_hidden_states": True}])
def test_results_have_names_whatever_the_config_says(changes, folder):
    change_config(**changes)(folder)
    model = load_model(str(folder))
    source = torch.tensor([[5, 6, 2]])
    assert model(input_ids=source, decoder_input_ids=source).logits.shape == (1, 3, 260)
    ensemble = Ensemble([model, model])
    assert torch.equal(ensemble.generate(source, max_new_tokens=5), model.generate(source, max_new_tokens=5))


@pytest.fixture
def sharded(small_model, tmp_path):
    """Return the folder of a model in several files."""
    small_model().save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    return tmp_path / "sharded"


def test_a_model_in_several_files_loads(sharded):
    assert load_model(str(sharded)).config.num_decoder_layers == 3


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            2,
            r"contain \d+ tensors that the model of its config.json does not have, for example model.decoder.layers.2",
        ),
        (4, r"do not contain \d+ of the model's tensors, for example model.decoder.layers.3"),
        (10**6, "num_decoder_layers must be at most 1,000, got 1,000,000"),
    ],
)
def test_other_layers_than_those_of_the_weights_are_an_error(layers, message, sharded):
    change_config(num_decoder_layers=layers)(sharded)
    with pytest.raises(OSError, match=message):
        load_model(str(sharded))


@pytest.mark.parametrize("name", ["../model/model.safetensors", "/etc/passwd", "x/../../y.safetensors"])
def test_a_shard_outside_the_folder_is_refused(name, sharded):
    change_json("model.safetensors.index.json", weight_map={"model.shared.weight": name})(sharded)
    with pytest.raises(OSError, match="which is outside the folder"):
        load_model(str(sharded))


def test_settings_of_decoding_that_models_have_are_accepted(folder):
    settings = {"num_beams": 5, "length_penalty": 0.6, "do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9}
    settings |= {"max_length": 64, "early_stopping": True, "bad_words_ids": [[5, 6]], "forced_eos_token_id": 2}
    settings |= {"no_repeat_ngram_size": 3, "suppress_tokens": [7], "renormalize_logits": True, "author": "me"}
    change_decoding(**settings)(folder)
    assert load_model(str(folder)).generation_config.bad_words_ids == [[5, 6]]


def test_defaults_of_transformers_are_accepted(folder):
    """Seq2SeqTrainer writes them into the settings of every model that it evaluates."""
    defaults = {
        name: value for name, value in GenerationConfig._get_default_generation_params().items() if value != 20
    }
    assert len(defaults) > 25
    change_decoding(**defaults, num_assistant_tokens=20)(folder)
    assert load_model(str(folder)).generation_config.top_k == 50


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_assistant_tokens", 5),
        ("num_assistant_tokens_schedule", "heuristic"),
        ("assistant_confidence_threshold", 0.2),
        ("cache_implementation", "static"),
        ("prompt_lookup_num_tokens", 3),
        ("prefill_chunk_size", 4),
        ("assistant_early_exit", 1),
        ("guidance_scale", 1.0),
        ("token_healing", False),
        ("exponential_decay_length_penalty", [3, 1.5]),
        ("top_h", 0.5),
    ],
)
def test_settings_that_translations_can_follow_or_that_do_not_change_them_are_accepted(name, value, folder):
    source = torch.tensor([[5, 6, 2], [7, 8, 2]])
    settings = {} if name in ("exponential_decay_length_penalty", "top_h") else {"num_beams": 1}
    expected = load_model(str(folder)).generate(source, max_new_tokens=9, **settings)
    change_decoding(**{name: value})(folder)
    output = load_model(str(folder)).generate(source, max_new_tokens=9, **settings)
    assert torch.equal(output, expected) == (name != "exponential_decay_length_penalty")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("diversity_penalty", 0.5),
        ("penalty_alpha", 0.6),
        ("stop_strings", ["a"]),
        ("guidance_scale", 2.0),
        ("exponential_decay_length_penalty", [3, 1e300]),
        ("exponential_decay_length_penalty", 3),
        ("num_beam_groups", True),
    ],
)
def test_settings_that_change_translations_and_cannot_be_followed_are_refused(name, value, folder):
    change_decoding(**{name: value})(folder)
    with pytest.raises(OSError, match=rf"in its generation_config.json, {name} (is not supported|must be)"):
        load_model(str(folder))


@pytest.mark.filterwarnings("ignore")
def test_settings_that_an_adapter_takes_from_its_base_are_reported_there(folder, tmp_path):
    adapted = get_peft_model(load_model(str(folder)), LoraConfig(target_modules=["q_proj"], task_type="SEQ_2_SEQ_LM"))
    adapted.save_pretrained(tmp_path / "adapter")
    change_decoding(num_assistant_tokens=20)(folder)
    assert load_model(str(tmp_path / "adapter")).generation_config.num_beams == 4
    change_decoding(guidance_scale=2.0)(folder)
    with pytest.raises(OSError, match=f"Cannot load {folder}: in its generation_config.json, guidance_scale is not"):
        load_model(str(tmp_path / "adapter"))


def test_an_intact_model_loads(folder):
    assert load_model(str(folder)).config.source_lang == "en"


def test_pickled_weights_are_never_loaded(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        load_model(str(folder))
