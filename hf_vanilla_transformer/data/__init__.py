"""Parallel text, from files to batches of token ids.

Read `readers.py` first, then `cleaning.py`, `tokenizer.py` and `batching.py`. `preparation.py` and `shards.py` handle
text larger than memory; `phrases.py`, with `sentences.py`, `grammar.py` and `lexicon.py`, generates the built-in
corpus.
"""
