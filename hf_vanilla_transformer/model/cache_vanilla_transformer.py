"""The argument and output that hold the keys and values of earlier tokens: `cache` since transformers 5.24.

Earlier releases call them `past_key_values`. The models accept both names on every release; from 5.24 on, the old name
warns, as it does in transformers.
"""

from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils.deprecation import deprecate_kwarg

CACHE = "cache" if hasattr(Seq2SeqLMOutput, "cache") else "past_key_values"  # the name in the installed release

# Decorates methods with an argument `cache`, so that they accept the old name as well. `version` is the release in
# which transformers removes that name; a release in the past turns the warning off.
accept_past_key_values = deprecate_kwarg(
    "past_key_values", version="5.40.0" if CACHE == "cache" else "5.0.0", new_name="cache"
)
