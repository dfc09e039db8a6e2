"""Command-line flags as dataclasses: `option` declares a flag, `FlagParser` reads it, `Meaning` says what it does.

The docstring of a dataclass has the help of its flags. What a flag means for a resumed run, a model card or a model's
configuration is stored in its field and nowhere else. This module imports nothing slow, so that `--help` is fast.
"""

import argparse
import inspect
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from enum import Enum, auto
from functools import partial
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, ClassVar, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import UserError

Settings = dict[str, Any]  # flags by name, with values as a recipe holds them: text, numbers or lists of these

_Number = TypeVar("_Number", int, float)


class Decides(Enum):
    """What a flag decides in a training run, and so whether it may change when the same command resumes the run."""

    SIZES = auto()  # of the model: may not change
    LEARNING = auto()  # how it is trained, and on what: may not change
    LENGTH = auto()  # when training ends: may change unless the schedule depends on it
    SCORES = auto()  # of the validation: may change, but earlier validations are then not comparable
    NOTHING = auto()  # neither the model nor its scores: may change


@dataclass(frozen=True)
class Meaning:
    """What a flag of `train` means.

    Args:
        private: whether its value may reveal local paths or private text, and so never appears on a card.
        recorded: whether it belongs to the settings of a run, not only to a single launch.
        replaces: flags of a recipe or preset that no longer hold if this flag changes.
        content: the name under which the content of the text that it names is recorded. If it is, only a change of the
            content counts.
    """

    decides: Decides
    private: bool = False
    recorded: bool = True
    replaces: tuple[str, ...] = ()
    content: str | None = None


@dataclass(frozen=True)
class Details:
    """What a flag is, apart from what argparse is told; the arguments of `option` say more."""

    meaning: Meaning | None = None
    parse: Callable[[str], object] | None = None
    required: bool = False
    positional: bool = False


# Not in the metadata of a field, because transformers' HfArgumentParser passes all of that to argparse
_DETAILS: dict[Field[Any], Details] = {}


def details(flag: Field[Any]) -> Details:
    """Return the details of a field; one that `option` has not made has none."""
    return _DETAILS.get(flag, Details())


class Flags:
    """Base of the dataclasses of flags, whose docstrings say under "Args:" what each flag does: this is its `--help`.

    `TITLE`, if a class has one, is the heading of its flags there.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        _, _, text = inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:\n")
        for name, help in re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE):
            flag = vars(cls).get(name)
            if isinstance(flag, Field):
                # where transformers' HfArgumentParser reads it
                flag.metadata = MappingProxyType({"help": " ".join(help.split()), **flag.metadata})


def option(
    default: object = MISSING,
    meaning: Meaning | None = None,
    *,
    parse: Callable[[str], object] | None = None,
    required: bool = False,
    positional: bool = False,
    **settings: object,
) -> Any:
    """Return a dataclass field that is a flag; its type says which values it takes, and how many.

    Args:
        default: if missing, the flag is required.
        parse: converts each word to a value; raises `argparse.ArgumentTypeError`. By default the type does.
        required: whether it is required on the command line, although it has a default in Python.
        positional: whether it is given without its name.
        settings: `metavar`, `choices`, `nargs` and `const`, as in argparse, and `help` if that has to be computed.
    """
    flag: Any
    if isinstance(default, list):
        # each instance has a list of its own
        flag = field(default_factory=lambda: list(default), metadata=settings)
    else:
        flag = field(default=default, metadata=settings)
    _DETAILS[flag] = Details(meaning, parse, required, positional)
    return flag


def number(
    kind: type[_Number], rule: str, low: float = -math.inf, below: float = math.inf
) -> Callable[[str], _Number]:
    """Return a parser of finite numbers from `low` to just below `below`; `rule` says so in its errors."""

    def parse_number(text: str) -> _Number:
        try:
            value = kind(text)
        except ValueError:
            expected = "an integer" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {expected}, got {text!r}") from None
        # A comparison with NaN is false, so it would pass a test for what is out of range
        if not (math.isfinite(value) and low <= value < below):
            raise argparse.ArgumentTypeError(f"must be {rule}, got {text}")
        return value

    return parse_number


positive = number(int, "at least 1", low=1)
finite = number(float, "a finite number")
# math.ulp(0.0) is the smallest number above 0
positive_number = number(float, "a finite number above 0", low=math.ulp(0.0))
# NumPy takes no other seeds, and transformers seeds it too
numpy_seed = number(int, f"from 0 to {2**32 - 1}", low=0, below=2**32)

# The spellings that transformers' HfArgumentParser accepts, which recipes may use too
_BOOLEANS = dict.fromkeys(("true", "yes", "t", "y", "1"), True) | dict.fromkeys(("false", "no", "f", "n", "0"), False)


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return _BOOLEANS[text.lower()]


def _boolean_or_text(text: str) -> bool | str:
    return _BOOLEANS.get(text.lower(), text)


class _OneOrMore(argparse.Action):
    """Store a single word as it is, for types such as `str | list[str]`, and several as a list."""

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, values[0] if len(values) == 1 else values)


_Flags = TypeVar("_Flags", bound=Flags)


class FlagParser(argparse.ArgumentParser):
    """Turn command-line words into instances of dataclasses.

    `max_tokens: int` becomes `--max_tokens N`, which may also be written `--max-tokens N`; a list takes several words.
    A boolean that is false by default becomes `--flag`; one that is true, `--flag` and `--no_flag`.

    Args:
        types: the dataclasses.
        takes_recipe: whether booleans may have a value, as in `--bf16 true`, for the lines of recipes.
        hidden: flags that the help leaves out.
    """

    def __init__(
        self,
        types: Sequence[type[Flags]],
        *,
        prog: str,
        description: str,
        usage: str | None = None,
        takes_recipe: bool = False,
        hidden: Collection[str] = (),
    ):
        # without abbreviations: a flag that is added later could make them ambiguous
        formatter = partial(argparse.HelpFormatter, max_help_position=34, width=119)
        super().__init__(prog, usage, description, allow_abbrev=False, formatter_class=formatter)
        self.types = types
        self.flags: dict[str, Field[Any]] = {}
        self._takes_recipe = takes_recipe
        self._hidden = hidden
        self._unknown: list[str] = []  # words that are no flags
        titled: dict[str, argparse._ArgumentGroup] = {}
        for kind in types:
            hints = get_type_hints(kind)
            for flag in fields(kind):
                title = _title(kind, flag.name)
                if title and title not in titled:
                    titled[title] = self.add_argument_group(title)
                if flag.init:
                    self._add_flag(titled.get(title, self), flag, hints[flag.name])
        if "debug" not in self.flags:
            self.add_argument("--debug", action="store_true", help="show the traceback behind an error")

    def error(self, message: str) -> NoReturn:
        """Report wrong flags in one line, with exit status 2, instead of a page of usage."""
        if self._unknown:
            suggestion = _suggestion(self._unknown[0], (*self.flags, "help"), "--")
            message = f"unrecognized arguments: {' '.join(self._unknown)}{suggestion}"
        self.exit(2, f"{self.prog}: {message} (--help lists the flags)\n")

    def given(self, words: Sequence[str]) -> Settings:
        """Return the values of the flags that the words name; those of all others are the defaults of their fields."""
        words = [re.sub(r"^--[\w-]+", _with_underscores, word) for word in words]
        # before argparse says that a required flag is missing, whose name is only misspelt
        self._unknown = [word for word in words if self._is_unknown(word)]
        values, self._unknown = self.parse_known_args(words)
        if self._unknown:
            self.error("unrecognized arguments")
        return vars(values)

    def _is_unknown(self, word: str) -> bool:
        """Return whether a word has the form of a flag's name, but is none."""
        name = re.match(r"--\w[^\s=]*(?==|$)", word)
        return name is not None and name[0] not in self._option_string_actions

    def instances(self, values: Mapping[str, Any]) -> list[Any]:
        """Return an instance of each dataclass, with the defaults of its fields where there is no value.

        Raises:
            ValueError: if a dataclass refuses its values.
        """
        return [
            kind(**{flag.name: values[flag.name] for flag in fields(kind) if flag.name in values})
            for kind in self.types
        ]

    def _add_flag(self, group: "argparse._ArgumentGroup | FlagParser", flag: Field[Any], hint: object) -> None:
        """Add the argument of a field, unless its type cannot be written as words."""
        settings = _settings(hint, self._takes_recipe)
        if settings is None:
            return
        self.flags[flag.name] = flag
        metadata = flag.metadata
        own = details(flag)
        default = flag.default_factory() if flag.default_factory is not MISSING else flag.default
        settings |= {name: metadata[name] for name in ("nargs", "const", "choices", "metavar") if name in metadata}
        settings |= {"help": _help(metadata.get("help"), default), "default": argparse.SUPPRESS}
        if flag.name in self._hidden:
            settings["help"] = argparse.SUPPRESS
        if own.parse is not None:
            settings["type"] = own.parse
        if own.positional:
            if default is not MISSING:
                settings["nargs"] = "*"
            group.add_argument(flag.name, **settings)
            return
        if default is MISSING or own.required:
            settings["required"] = True
        choices = ",".join(map(str, settings.get("choices", ())))
        if settings.get("action") != "store_true" and not 0 < len(choices) < 48:
            # the last word of its name: --max_tokens TOKENS
            settings.setdefault("metavar", flag.name.rpartition("_")[2].upper())
        group.add_argument(f"--{flag.name}", **settings)
        if default is True:
            off: Settings = {"action": "store_false", "default": argparse.SUPPRESS, "help": f"Turn off --{flag.name}."}
            group.add_argument(f"--no_{flag.name}", dest=flag.name, **off)


def _with_underscores(name: re.Match[str]) -> str:
    """Return the name of a flag as in its dataclass; on the command line, it may have hyphens."""
    return f"--{name[0][2:].replace('-', '_')}"


def _help(help: str | None, default: object) -> str | None:
    """Return the help of a flag with its default, unless that says nothing, or the help names another."""
    says_nothing = default in ("", []) or any(default is value for value in (None, False, MISSING))
    return help if says_nothing or "(default" in str(help) else f"{help} (default: {default})"


def _title(kind: type[Flags], name: str) -> str:
    """Return the heading of a field: that of the first class in the order of inheritance that has it and a title."""
    for base in kind.__mro__:
        if "TITLE" in vars(base) and name in {flag.name for flag in fields(base)}:
            return vars(base)["TITLE"]
    return ""


def _settings(hint: object, takes_recipe: bool) -> dict[str, Any] | None:
    """Return the arguments of `add_argument` for a type, or None if it cannot be written as words."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    # of `float | list[float] | None`, the list decides
    lists = [get_args(kind)[0] for kind in kinds if get_origin(kind) is list]
    if lists:
        return {"type": lists[0], "nargs": "+"} | ({"action": _OneOrMore} if str in kinds else {})
    if bool in kinds:
        if not takes_recipe:
            return {"action": "store_true"}
        return {"type": _boolean_or_text if str in kinds else _boolean, "nargs": "?", "const": True}
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"type": str, "choices": [member.value for member in kind]}
        if get_origin(kind) is Literal and str not in kinds:
            return {"type": str, "choices": get_args(kind)}
    # the most general first: of `int | str`, every word is text
    for kind in (str, Path, int, float):
        if kind in kinds:
            return {"type": kind}
    return {"type": json.loads} if any(get_origin(kind) is dict for kind in kinds) else None


def values_of(flags: Flags, kind: type[Flags]) -> dict[str, Any]:
    """Return the values of those flags that a class declares or inherits, by name."""
    return {flag.name: getattr(flags, flag.name) for flag in fields(kind)}


def check_values(flags: Flags) -> None:
    """Check values by the `choices` and the parsers of their flags, since in Python no command line has done so.

    Raises:
        ValueError: if one is not allowed.
    """
    for flag in fields(flags):
        value = getattr(flags, flag.name)
        if value is None:  # not given
            continue
        choices = flag.metadata.get("choices", [value])
        if value not in choices:
            raise UserError(f"{flag.name} must be one of {', '.join(map(str, choices))}, got {value!r}.")
        parse = details(flag).parse or str
        for item in value if isinstance(value, list) else [value]:
            try:
                parse(str(item))
            except argparse.ArgumentTypeError as error:
                raise UserError(f"{flag.name} {error}.") from None


def _suggestion(word: str, names: Iterable[str], start: str = "") -> str:
    """Return the question whether a similar name was meant, or "" if there is none."""
    given = word.partition("=")[0].removeprefix(start).replace("-", "_")
    similar = get_close_matches(given, names, 1) if word.startswith(start) else []
    return f"; did you mean {start}{similar[0]}?" if similar else ""


def choose(
    names: Mapping[str, str], words: Sequence[str], *, prog: str, description: str, metavar: str, version: str = ""
) -> str:
    """Return the first word if it is one of `names`, which map to their help; otherwise end with the help or an error.

    Args:
        version: what `--version` prints.
    """
    parser = argparse.ArgumentParser(prog, description=description)
    if version:
        parser.add_argument("--version", action="version", version=version)
    choices = parser.add_subparsers(dest="name", required=True, metavar=metavar)
    for name, help in names.items():
        choices.add_parser(name, help=help, add_help=False)
    if words and words[0] not in (*names, "-h", "--help", *(["--version"] if version else [])):
        reason = _suggestion(words[0], names) or f"; choose one of {', '.join(names)}"
        parser.exit(2, f"{prog}: there is no {metavar} {words[0]!r}{reason} (--help explains them)\n")
    return parser.parse_args(words[:1]).name


def parse(
    kind: type[_Flags], words: Sequence[str], *, prog: str, description: str, epilog: str | None = None
) -> _Flags:
    """Return an instance of a dataclass from command-line words.

    A class that maps names to subclasses in `KINDS` becomes an instance of the one that the first word names.

    Raises:
        ValueError: if the dataclass refuses its values.
    """
    kinds: dict[str, type[_Flags]] = getattr(kind, "KINDS", {})
    if kinds:
        helps = {name: str(subclass.__doc__).partition("\n")[0] for name, subclass in kinds.items()}
        name = choose(helps, words, prog=prog, description=description, metavar="KIND")
        prog = f"{prog} {name}"
        description = helps[name]
        kind = kinds[name]
        words = words[1:]
    parser = FlagParser([kind], prog=prog, description=description)
    parser.epilog = epilog
    (instance,) = parser.instances(parser.given(words))
    return instance
