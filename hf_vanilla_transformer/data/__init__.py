"""Parallel text, from files to batches of token ids.

Read `source.py` first, then `cleaning.py`, `tokenizer.py` and `batching.py`. `shards.py` reads text larger than
memory, which `corpus` has prepared; `phrases.py` reads the built-in corpus.
"""
