"""The flags of `translate`, for standard input and for files."""

from dataclasses import dataclass, fields
from typing import ClassVar

from ..flags import numpy_seed, option, positive
from .runner_flags import RunnerFlags
from .shared_flags import BackendFlags, DecodingFlags, DtypeFlags, ModelsFlags


@dataclass(kw_only=True)
class FileFlags(RunnerFlags):
    """The flags of `translate` for files."""

    TITLE: ClassVar[str] = "files instead of stdin, in tasks that resume and run in parallel"

    input_files: list[str] | None = option(
        "files or patterns such as 'corpus/*.jsonl.zst': text, .jsonl (or .gz, .zst) or .parquet", None, metavar="FILE"
    )
    output_dir: str | None = option("folder for the translations, which train --train_file reads", None)
    output_format: str = option("jsonl for pairs, txt for translations only", "jsonl", choices=("jsonl", "txt"))
    scores: bool = option("add the score of each translation to the pairs", False)
    nbest: int = option("write this many translations of each line", 1, parse=positive)
    shard_lines: int = option("lines per task", 10_000, parse=positive)

    def __post_init__(self):
        changed = [f"--{flag.name}" for flag in fields(FileFlags) if getattr(self, flag.name) != flag.default]
        if changed and not self.input_files and not self.output_dir:
            raise ValueError(f"{', '.join(sorted(changed))} can only be used with --input_files.")
        if bool(self.input_files) != bool(self.output_dir):
            raise ValueError("--input_files and --output_dir belong together; without them, stdin is translated.")


@dataclass(kw_only=True)
class TranslateArguments(ModelsFlags, BackendFlags, DtypeFlags, DecodingFlags, FileFlags):
    """The flags of `translate`."""

    do_sample: bool = option("sample tokens instead of searching for the best", False)
    top_k: int | None = option("sample only from this many tokens (default: all)", None, parse=positive)
    seed: int = option("seed of the sampling", 42, parse=numpy_seed)
    split_sentences: bool = option("cut each line into sentences, for paragraphs and long lines", False)
