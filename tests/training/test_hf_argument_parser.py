"""transformers' HfArgumentParser, with which example scripts read flags, takes the flags of this package."""

import dataclasses
import importlib
import json
import pickle
import pkgutil

import pytest
import yaml
from transformers import HfArgumentParser, Seq2SeqTrainingArguments
from transformers.debug_utils import DebugOption

import hf_vanilla_transformer
from hf_vanilla_transformer import VanillaTransformerTrainingArguments
from hf_vanilla_transformer.flags import _DETAILS, Decides
from hf_vanilla_transformer.training.arguments import DataArguments, ModelArguments, meaning

BOTH = [VanillaTransformerTrainingArguments, Seq2SeqTrainingArguments]


def all_flags():
    """Return every dataclass of flags in the package."""
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.walk_packages(hf_vanilla_transformer.__path__, "hf_vanilla_transformer.")
        if not module.name.endswith("__main__")
    ]
    kinds = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    own = {kind for kind in kinds if dataclasses.is_dataclass(kind) and kind.__module__.startswith("hf_vanilla")}
    return [kind for kind in own if any(flag in _DETAILS for flag in dataclasses.fields(kind))]


def test_every_dataclass_of_flags_can_be_parsed_and_shows_its_help():
    kinds = all_flags()
    assert len(kinds) > 30
    for kind in kinds:
        assert "usage" in HfArgumentParser(kind).format_help(), kind


def test_the_docstrings_of_dataclasses_explain_every_flag():
    for kind in all_flags():
        own = [flag for flag in dataclasses.fields(kind) if flag in _DETAILS]
        assert not [flag.name for flag in own if not flag.metadata.get("help")], kind
    assert "Adam's beta2 (section 5.3)." in HfArgumentParser(VanillaTransformerTrainingArguments).format_help()


@pytest.mark.parametrize("kind", BOTH)
def test_flags_of_a_script_have_their_values(kind, tmp_path):
    words = (
        f"--output_dir {tmp_path} --use_cpu --bf16 true --max-steps 7 --learning_rate 0.5 --warmup_steps 3 "
        "--lr_scheduler_type linear --report_to none --debug underflow_overflow --label_smoothing_factor 0.2 "
        "--eval_strategy steps --eval_steps 5 --save_steps 5 --load_best_model_at_end --metric_for_best_model loss "
        "--generation_num_beams 3 --seed 1 --data_seed 2 --predict_with_generate --save_total_limit 1"
    )
    model, data, args = HfArgumentParser((ModelArguments, DataArguments, kind)).parse_args_into_dataclasses(
        [*words.split(), "--train_file", "a", "b", "--d_model", "64", "--no_clean"]
    )
    assert (data.train_file, data.clean, model.d_model, model.d_ff) == (["a", "b"], False, 64, None)
    expected = {
        "bf16": True,
        "max_steps": 7,
        "learning_rate": 0.5,
        "warmup_steps": 3,
        "lr_scheduler_type": "linear",
        "report_to": [],
        "debug": [DebugOption.UNDERFLOW_OVERFLOW],
        "label_smoothing_factor": 0.2,
        "eval_steps": 5,
        "metric_for_best_model": "loss",
        "greater_is_better": False,
        "generation_num_beams": 3,
        "data_seed": 2,
        "save_total_limit": 1,
    }
    assert {name: getattr(args, name) for name in expected} == expected


@pytest.mark.parametrize("kind", BOTH)
def test_without_flags_the_defaults_hold(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (args,) = HfArgumentParser(kind).parse_args_into_dataclasses(["--use_cpu"])
    assert args.to_dict() == kind(use_cpu=True).to_dict()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("changes", [{}, {"max_steps": 3, "save_steps": 9, "weight_decay": 0.1}])
def test_arguments_survive_files_copies_and_pickles(kind, changes, tmp_path):
    args = kind(str(tmp_path), use_cpu=True, **changes)
    (tmp_path / "args.json").write_text(args.to_json_string())
    (tmp_path / "args.yaml").write_text(yaml.safe_dump(json.loads(args.to_json_string())))
    parser = HfArgumentParser(kind)
    copies = [
        *parser.parse_json_file(tmp_path / "args.json"),
        *parser.parse_yaml_file(tmp_path / "args.yaml"),
        *parser.parse_dict(args.to_dict()),
        dataclasses.replace(args),
        pickle.loads(pickle.dumps(args)),
    ]
    for copy in copies:
        assert json.loads(copy.to_json_string()) == json.loads(args.to_json_string())
    assert dataclasses.replace(args, max_steps=11).max_steps == 11


@dataclasses.dataclass
class ScriptArguments(VanillaTransformerTrainingArguments):
    """Arguments of a user's script."""

    max_tokens: int = 512
    domain: str = dataclasses.field(default="news", metadata={"help": "Where the text is from."})


class ParserOfDefaults(HfArgumentParser):
    """Take the defaults of flags from a mapping, as the parser of TRL does with its configuration files."""

    def parse(self, words, **defaults):
        self.set_defaults(**defaults)
        return self.parse_args_into_dataclasses(words)


def test_subclasses_of_the_arguments_and_of_the_parser_work(tmp_path):
    (args,) = ParserOfDefaults(ScriptArguments).parse(
        ["--output_dir", str(tmp_path), "--domain", "law"], use_cpu=True, max_steps=5, report_to="none"
    )
    assert (args.max_tokens, args.domain, args.max_steps) == (512, "law", 5)
    with pytest.raises(ValueError, match="generation_num_beams must be at least 1, got 0"):
        ParserOfDefaults(ScriptArguments).parse(["--generation_num_beams", "0"], use_cpu=True)
    assert meaning("max_tokens").decides is Decides.LEARNING


def test_values_that_the_command_line_refuses_are_refused_here_too(tmp_path):
    parser = HfArgumentParser(VanillaTransformerTrainingArguments)
    with pytest.raises(ValueError, match="label_smoothing_factor must be at least 0 and below 1, got 2"):
        parser.parse_args_into_dataclasses(["--label_smoothing_factor", "2", "--output_dir", str(tmp_path)])
    with pytest.raises(ValueError, match="per_device_train_batch_size has no effect here"):
        parser.parse_args_into_dataclasses(["--per_device_train_batch_size", "3", "--output_dir", str(tmp_path)])
