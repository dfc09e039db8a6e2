"""Print the paper's Table 3 next to this package's configurations and parameter counts, as Markdown.

python scripts/study/table3.py
"""

import torch
from published import TABLE_3

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration, paper_config
from hf_vanilla_transformer.training.presets import preset

COLUMNS = ("num_encoder_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "dropout")


def main() -> None:
    names = ["", "N", "d_model", "d_ff", "h", "d_k", "d_v", "dropout", "smoothing", "steps", "positions"]
    names += ["PPL (paper)", "BLEU (paper)", "M parameters (paper)", "M parameters (ours)", "ours / paper"]
    # 6 FLOP per parameter, because a source token and a target token together use each parameter once
    names += ["training GFLOP per token pair"]
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for name, published in TABLE_3.items():
        config, training = paper_config(name), preset(name).training
        with torch.device("meta"):
            millions = VanillaTransformerForConditionalGeneration(config).num_parameters() / 1e6
        cells = [name, *(getattr(config, column) for column in COLUMNS)]
        cells += [training.get("label_smoothing_factor", 0.1), f"{training.get('max_steps', 100_000):,}"]
        cells += [config.position_embedding, f"{published.perplexity:.2f}", published.bleu, published.millions or ""]
        cells += [f"{millions:.1f}", f"{millions / published.millions:.3f}" if published.millions else ""]
        cells += [f"{6 * millions / 1000:.2f}"]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
