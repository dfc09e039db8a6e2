"""The name of `formats` under which corpora still import `identify`."""

from .formats import identify as identify
