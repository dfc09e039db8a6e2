"""The model itself: configuration, layers, decoding and pipeline.

The six files `*_vanilla_transformer.py` travel with a saved model, so they import each other only as siblings. Read
`modeling_vanilla_transformer.py` first; `loading.py` loads models and tokenizers safely for the other folders.
"""
