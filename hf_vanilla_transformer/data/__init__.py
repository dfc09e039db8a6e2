"""Parallel text, from files to batches of token ids.

Read `source.py` first, then `formats.py`, `cleaning.py`, `tokenizer.py` and `batching.py`. `mixture.py` uses several
sources at different rates; `shards.py` reads text larger than memory, which `corpus` has prepared; `phrases.py` reads
the built-in corpus.
"""
