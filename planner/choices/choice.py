"""A row of the table of choices: the kind, the default, the range and the words of one choice."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from planner.base.errors import InputError, shown
from planner.base.units import parse_count, parse_length
from planner.choices.enumerations import choice, names

LARGEST = 10_000_000
T = TypeVar("T")


class Codec(NamedTuple):
    """How a text is held as a number that formulas take apart: read raises InputError; allowed in words."""

    read: Callable[[str], int]
    write: Callable[[int], str]
    allowed: str


@dataclass(frozen=True)
class Choice:
    """One choice of a layout: a row of `planner.choices.table.CHOICES`.

    kind: int (a whole number), float, bool (a flag), str (a schedule's name, a pipeline's layout), or an enumeration.
    default: what a layout has where nothing is said. derived: what it has instead in a command that takes a layout,
    in words, where that depends on the model, the cluster or the other choices; empty where it is the default.
    least, most: the range of a number. says: the sentence that `--help` shows.
    short: how a line of text writes it: "mb" for "mb 2"; empty where it writes nothing, or the value alone. also:
    another name of its option; `--why` and `--not` know it too.
    settled: a user can hold a search to some values of it. shared: all layouts of a search have one value of it, which
    the user may give. tie: its rank among the columns that tell equally good
    layouts apart, from 1; 0 for those that don't.
    tried: the values that a search combines with every layout, unless told otherwise. axis: on which axis of its
    grids, from 1 (choices that share one are listed together); 0 for what a grid's rows or the question have.
    pipelined: it means something in a pipeline alone. depends: the framework or other choices say which values are
    worth trying. follows: it changes with others, and is not worth a word beside them.
    always: a line of text shows it at its default too. apart: layouts that differ in it are different answers, not
    twins. risks: how many unusual choices it counts as where it is not at its default; 2 where no measured run has it.
    parse: reads a text that is more than a name, and raises InputError if it is none. codec: how a text that layouts
    hold as a number is read and written; its default is the number.
    of_layer: what a layer, the embedding or the head costs for one micro-batch may depend on it. of_rank: what a
    rank's parameters are, and what moving them takes, may.
    """

    name: str
    kind: type
    default: Any
    says: str
    short: str = ""
    also: str = ""
    tie: int = 0
    settled: bool = True
    shared: bool = False
    derived: str = ""
    axis: int = 0
    of_layer: bool = True
    of_rank: bool = True
    tried: tuple[Any, ...] = ()
    pipelined: bool = False
    depends: bool = False
    follows: bool = False
    always: bool = False
    apart: bool = False
    risks: int = 0
    parse: Callable[[str], object] | None = None
    codec: Codec | None = None
    least: int = 1
    most: int = LARGEST

    @property
    def enumeration(self) -> type[IntEnum] | None:
        """The enumeration that it is of, if it is of one."""
        return self.kind if issubclass(self.kind, IntEnum) else None

    @property
    def typed(self) -> str:
        """Its name as a user types it."""
        return self.name.replace("_", "-")

    @property
    def plain_kind(self) -> type:
        """The kind of its value in a file or a record: int, float, bool or str."""
        return str if self.enumeration else self.kind

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.enumeration:
            return ", ".join(names(self.enumeration))
        if self.codec:
            return self.codec.allowed
        between = f"number from {self.least} to {self.most}"
        words = {bool: "true or false", str: "a text", int: f"a whole {between}", float: f"a {between}"}
        return words[self.kind]

    def coded(self, value: Any) -> Any:
        """A user's value as a layout's array holds it; a text stays one.

        Raises InputError if the value is of another kind, out of range, or no layout of a pipeline; UnknownNameError
        for a name that the enumeration has not.
        """
        if self.enumeration:
            return choice(self.enumeration, word(self.name, value), self.name)
        if self.codec:
            return self.codec.read(word(self.name, value))
        if self.kind is int:
            return whole(self.name, value, least=self.least, most=self.most)
        if self.kind is float:
            return real(self.name, value, least=self.least, most=self.most)
        if self.parse and value:
            self.parse(word(self.name, value))
        return flag(self.name, value) if self.kind is bool else word(self.name, value)

    def plain(self, code: Any) -> Any:
        """A layout's value as records and files write it."""
        if self.codec:
            return self.codec.write(int(code))
        if self.enumeration:
            return self.enumeration(code).name.lower()
        return bool(code) if self.kind is bool else code


def number(text: str) -> int | str:
    """A whole number that a user wrote; what is none, or far out of any range, stays text for `whole` to refuse."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST)) + 1 else text


def parsed(name: str, text: str, parse: Callable[[str], T], allowed: str) -> T:
    """A value as people write it, such as 128k. Raises InputError if the text is none; the message names the field."""
    try:
        return parse(str(text))
    except ValueError:
        raise InputError(f"{name} is {shown(text)}; allowed: {allowed}") from None


def tokens(name: str, text: str) -> float:
    """A number of tokens, such as 300B. Raises InputError if the text is none; the message names the field."""
    return parsed(name, text, parse_count, "a number of tokens, such as 4M")


def length(name: str, text: str) -> int:
    """Tokens of a sequence, such as 128k. Raises InputError if the text is none; the message names the field."""
    return parsed(name, text, parse_length, "a whole number of tokens, such as 4096, 128k or 1M")


def whole(name: str, value: Any, *, least: int = 1, most: int = LARGEST) -> int:
    """A whole number in range. Raises InputError if the value is none; the message names the field."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or not least <= value <= most:
        raise InputError(f"{name} is {shown(value)}; allowed: a whole number from {least} to {most}")
    return int(value)


def real(name: str, value: Any, *, least: float, most: float, unit: str = "") -> float:
    """A number in range. Raises InputError if the value is none; the message names the field, and the range's unit."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InputError(f"{name} is {shown(value)}; allowed: a number from {least:g} to {most:g}{unit}")
    return float(value)


def word(name: str, value: Any) -> str:
    """A name as text, such as "1f1b". Raises InputError if the value is something else; the message names the field."""
    if not isinstance(value, str):
        raise InputError(f"{name} is {shown(value)}; allowed: a name in quotes")
    return value


def switch(text: str) -> bool | str:
    """A flag that a user wrote, such as on or false; what is none stays text for `flag` to refuse."""
    if text in ("on", "true", "yes", "1"):
        return True
    return False if text in ("off", "false", "no", "0") else text


def flag(name: str, value: Any) -> bool:
    """True or False. Raises InputError if the value is something else; the message names the field."""
    if not isinstance(value, bool):
        allowed = "on or off" if isinstance(value, str) else "True or False"
        raise InputError(f"{name} is {shown(value)}; allowed: {allowed}")
    return value


def option_words(option: str, value: Any) -> list[str]:
    """An option with its value on a command line: `--tp 2,4`, `--no-sequence-parallel`, `--exclude cp`."""
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    if option == "--exclude":
        return [word for text in value for word in (option, text)]
    return [option, ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]


def value_text(value: Any) -> str:
    """A choice's value as people write it: on, full, 8."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value.name.lower() if isinstance(value, IntEnum) else str(value) or "none"
