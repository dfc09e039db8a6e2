import json

import pytest
import sacrebleu
import torch

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.cli import main


def test_evaluate_prints_sacrebleu_scores_as_one_json_object(saved, capsys):
    status = main(["evaluate", saved.path, "--test_file", saved.test_file, "--bleu_tokenize", "none"])
    result = json.loads(capsys.readouterr().out)
    assert status == 0
    assert result["sentences"] == 4
    assert result["seconds"] > 0
    translations = translate(saved.model, saved.tokenizer, saved.sources)
    assert result["chrf"] == pytest.approx(sacrebleu.corpus_chrf(translations, [saved.references]).score)
    assert result["ter"] == pytest.approx(sacrebleu.corpus_ter(translations, [saved.references]).score)
    assert "tok:none" in result["signatures"]["bleu"]


def test_running_out_of_memory_prints_one_line(saved, capsys, monkeypatch):
    def out_of_memory(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr("hf_vanilla_transformer.inference.translator.Translator.translate", out_of_memory)
    assert main(["evaluate", saved.path, "--test_file", saved.test_file]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vanilla-transformer: ")]
    assert len(lines) == 1
    assert "Out of memory on the GPU: use smaller batches (--max_tokens" in lines[0]
