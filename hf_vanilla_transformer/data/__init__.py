"""Parallel text, from files to batches of token ids.

Read `readers.py` first, then `cleaning.py`, `tokenizer.py` and `batching.py`; `preparation.py` and `shards.py` are for
text larger than memory, `phrases.py`, `grammar.py` and `lexicon.py` generate the built-in corpus.
"""
