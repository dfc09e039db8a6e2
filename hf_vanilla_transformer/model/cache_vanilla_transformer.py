"""The argument and output that holds the keys and values of earlier tokens: `cache` since transformers 5.24.

Earlier releases call it `past_key_values`. The models accept both names on every release.
"""

from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils.deprecation import deprecate_kwarg

CACHE = "cache" if hasattr(Seq2SeqLMOutput, "cache") else "past_key_values"  # the installed release's name

# Decorates methods with an argument `cache`, so that the old name works too. Like transformers, it warns only where
# the old name is deprecated: `version` is the release that removes it; one that is already installed means no warning.
accept_past_key_values = deprecate_kwarg(
    "past_key_values", version="5.40.0" if CACHE == "cache" else "5.0.0", new_name="cache"
)
