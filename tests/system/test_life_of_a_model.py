"""A model lives as people let it live: trained by their own script, adapted, merged, scored, exported, shared, served.

Its translations are the same at each station, and none ends after 20 tokens, the limit that transformers' trainer
writes into the settings of a model that has none.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import sacrebleu
from clean_process import run_python
from datasets import Dataset
from hub_endpoint import hub_environment, local_hub, run_command
from live_server import request, text
from peft import AutoPeftModelForSeq2SeqLM, LoraConfig, get_peft_model
from server_process import serving
from small import write_moses
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    pipeline,
)

from hf_vanilla_transformer import (
    Translator,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
)
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.phrases import splits

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")]

BEAMS = 2


class Text(NamedTuple):
    """Sentences of three phrases: most translations have more than 20 tokens."""

    en: list[str]
    de: list[str]


def long_sentences(split: str, count: int) -> Text:
    phrases = splits()[split][: 3 * count]
    threes = [phrases[start : start + 3] for start in range(0, len(phrases), 3)]
    sides: list[list[str]] = []
    for side in ("en", "de"):
        # the server would translate sentences that end one by one
        parts = [[getattr(phrase, side).rstrip(".?!") for phrase in three] for three in threes]
        sides.append([", ".join(three) + "." for three in parts])
    return Text(*sides)


def fine_tune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    learning_rate: float,
    steps: int,
) -> Seq2SeqTrainer:
    """Train as the example scripts of transformers do, with translations at each evaluation."""

    def rows(pairs: Text) -> Dataset:
        columns = tokenizer(pairs.en, text_target=pairs.de)
        return Dataset.from_dict({name: columns[name] for name in ("input_ids", "labels")})

    def chrf(prediction) -> dict[str, float]:
        ids = np.where(prediction.predictions < 0, tokenizer.pad_token_id, prediction.predictions)
        outputs = tokenizer.batch_decode(ids, skip_special_tokens=True)
        return {"chrf": sacrebleu.corpus_chrf(outputs, [validation.de]).score}

    validation = long_sentences("validation", 8)
    args = Seq2SeqTrainingArguments(
        str(folder),
        per_device_train_batch_size=32,
        learning_rate=learning_rate,
        warmup_steps=20,
        max_steps=steps,
        eval_strategy="steps",
        eval_steps=steps // 4,
        save_steps=steps // 4,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="chrf",
        predict_with_generate=True,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Seq2SeqTrainer(
        model,
        args,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        train_dataset=rows(long_sentences("train", 4_000)),
        eval_dataset=rows(validation),
        processing_class=tokenizer,
        compute_metrics=chrf,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
    )
    trainer.train()
    return trainer


def translate_with_generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sources: list[str]
) -> list[str]:
    batch = tokenizer(sources, return_tensors="pt", padding=True)
    return tokenizer.batch_decode(model.generate(**batch, num_beams=BEAMS), skip_special_tokens=True)


@pytest.fixture(scope="module")
def sources() -> list[str]:
    return long_sentences("test", 6).en


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """The folder of a model that `Seq2SeqTrainer` trained from nothing."""
    folder = tmp_path_factory.mktemp("life")
    text = long_sentences("train", 4_000)
    tokenizer = train_tokenizer(text.en + text.de, 500)
    sizes = {"d_model": 64, "d_ff": 128, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2}
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), source_lang="en", target_lang="de", dropout=0.0, **sizes
    )
    model = VanillaTransformerForConditionalGeneration(config)
    trainer = fine_tune(model, tokenizer, folder / "run", 3e-3, 240)
    trainer.predict(trainer.eval_dataset)
    trainer.save_model(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="module")
def merged(trained, sources) -> tuple[Path, list[str]]:
    """The folder of the model after an adapter was trained and merged, and the translations of the adapted model."""
    folder = trained.parent
    tokenizer = AutoTokenizer.from_pretrained(trained)
    base = AutoModelForSeq2SeqLM.from_pretrained(trained)
    before = translate_with_generate(base.eval(), tokenizer, sources)
    settings = LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, target_modules=["q_proj", "v_proj", "fc1"])
    trainer = fine_tune(get_peft_model(base, settings), tokenizer, folder / "lora", 1e-2, 20)
    trainer.save_model(str(folder / "adapter"))
    adapted = AutoPeftModelForSeq2SeqLM.from_pretrained(folder / "adapter").eval()
    expected = translate_with_generate(adapted, tokenizer, sources)
    assert expected != before
    adapted.merge_and_unload().save_pretrained(folder / "merged")
    tokenizer.save_pretrained(folder / "merged")
    return folder / "merged", expected


def test_no_translation_ends_at_the_limit_of_another_tool(merged, sources):
    folder, expected = merged
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert max(len(tokenizer(translation)["input_ids"]) for translation in expected) > 21


def test_the_saved_model_translates_alike_through_each_interface(merged, sources, tmp_path, capsys, monkeypatch):
    folder, expected = merged
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert translate_with_generate(AutoModelForSeq2SeqLM.from_pretrained(folder), tokenizer, sources) == expected
    translator = pipeline("translation", str(folder), device="cpu")
    assert [out["translation_text"] for out in translator(sources, num_beams=BEAMS)] == expected
    ours = Translator.load(str(folder)).translate(sources, num_beams=BEAMS)
    assert [translation.text for translation in ours] == expected
    # the adapter, not merged, by the command line
    [sources_file] = [write_moses(tmp_path / "text", en=sources)]
    with open(f"{sources_file}.en") as lines:
        monkeypatch.setattr("sys.stdin", lines)
        assert (
            main(["translate", str(folder.parent / "adapter"), "--num_beams", str(BEAMS), "--dtype", "float32"]) == 0
        )
    assert capsys.readouterr().out.splitlines() == expected


def test_evaluate_scores_these_translations(merged, tmp_path, sources, capsys):
    folder, expected = merged
    references = long_sentences("test", 6).de
    test_file = write_moses(tmp_path / "test", en=sources, de=references)
    flags = ["--test_file", str(test_file), "--num_beams", str(BEAMS), "--dtype", "float32"]
    assert main(["evaluate", str(folder), *flags]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(expected, [references]).score, abs=0.01)


def test_an_export_translates_alike(merged, sources, tmp_path):
    pytest.importorskip("ctranslate2")
    folder, expected = merged
    assert main(["export", str(folder), str(tmp_path / "export"), "--format", "ctranslate2"]) == 0
    translator = Translator.load(str(tmp_path / "export"), "ctranslate2")
    assert [translation.text for translation in translator.translate(sources, num_beams=BEAMS)] == expected


def test_the_uploaded_model_translates_alike_without_this_package(merged, sources, tmp_path):
    folder, expected = merged
    code = f"""
import json, sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
model = AutoModelForSeq2SeqLM.from_pretrained("you/life", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("you/life", trust_remote_code=True)
batch = tokenizer({sources!r}, return_tensors="pt", padding=True)
print(json.dumps(tokenizer.batch_decode(model.generate(**batch, num_beams={BEAMS}), skip_special_tokens=True)))
"""
    with local_hub() as server:
        run_command(["push", folder, "you/life"], tmp_path / "home", **hub_environment(server))
        result = run_python(code, tmp_path / "home2", **hub_environment(server, None))
    assert json.loads(result.stdout.splitlines()[-1]) == expected


def test_the_server_translates_alike(merged, sources, tmp_path):
    folder, expected = merged
    with serving(folder, tmp_path / "log", "--num_beams", str(BEAMS), "--dtype", "float32") as process:
        answer = request(process.port, "POST", "/translate", text(sources))
    assert answer.body["translatedText"] == expected
