"""The model: configuration, layers, decoding and pipeline.

Read `modeling_vanilla_transformer.py` first, the encoder and decoder of Figure 1. `layers_vanilla_transformer.py` has
attention (equation 1), positions and the layers; `generation_vanilla_transformer.py` the length penalty and limit;
`fast_search_vanilla_transformer.py` greedy and beam search; `graphs_vanilla_transformer.py` the CUDA graphs of their
steps; `loss_vanilla_transformer.py` the loss in training;
`cache_vanilla_transformer.py` the name of the cache, which depends on the release of transformers;
`errors_vanilla_transformer.py` the error for what users give; `text_rules_vanilla_transformer.py` which text can be
translated. These files, `configuration_vanilla_transformer.py` and `pipeline_vanilla_transformer.py` are copied into
every saved model, so they import each other only as siblings.
"""
