"""The name of `languages` under which the plugins still import it."""

from .languages import check_known as check_known
from .languages import probabilities as probabilities
