"""A command line or a launch script as its arguments. Nothing is executed: of the shell, quotes, comments, line ends,
arrays, plain variables, products and Slurm's comments are understood."""

import re
import shlex
from math import prod

from planner.base.errors import InputError, shown
from planner.choices.choice import number, whole

ASSIGNMENT = re.compile(
    r"(?:^|;)[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)="
    r"(\"[^\"\n]*\"|'[^'\n]*'|\$\{\w+:?-(?:\"[^\"\n]*\"|'[^'\n]*')\}|\$\(\([^()\n]*\)\)|[^\s;()'\"]*)"
    r"(?=[ \t]*(?:;|#|$))",
    re.MULTILINE,
)
ARITHMETIC = re.compile(r"\$\(\(([^()\n]*)\)\)")
FACTOR = re.compile("[0-9]{1,9}")
"""Of a product, which alone is understood in the shell's arithmetic."""
SLURM = re.compile(
    r"^#SBATCH[ \t]+(?:--(nodes|ntasks-per-node|gpus-per-node)[= ]|(-N)[ \t]*|--gres=gpu:(?:\w+:)?)([0-9]{1,6})[ \t]*$",
    re.MULTILINE,
)
COMMENT = re.compile(r"""(\\.\#*|'[^']*'|"(?:\\.|[^"\\])*")|(?<![^ \t\n;(])\#[^\n]*""", re.DOTALL)
"""A comment, or what can't begin one and is kept: an escaped character, a text in quotes."""
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^{}]*))?\}|([A-Za-z_]\w*))")
MOST = 10**9 - 1
MOST_PASSES = 5
"""Variables in the values of variables are followed so far."""


class Arguments:
    """Arguments by name, `--x` without its dashes, each with the words that follow it; the last of a name counts."""

    def __init__(self, words: dict[str, list[str]]) -> None:
        self.words = words

    def __contains__(self, name: str) -> bool:
        return name in self.words

    def text(self, name: str, default: str | None = None) -> str | None:
        """The value of an argument, or the default where it isn't given.

        Raises InputError if the argument has no value, or a variable of the shell that the text doesn't set.
        """
        if name not in self.words:
            return default
        if not self.words[name]:
            raise InputError(f"--{name} has no value; allowed: one")
        value = self.words[name][0]
        if "$" in value or "`" in value:
            raise InputError(f"--{name} is {shown(value)}; planner runs no shell: give the value itself")
        return value

    def number(self, name: str, default: int | None = None, least: int = 1) -> int | None:
        """The value of an argument as a whole number. Raises InputError if it is something else, or out of range."""
        text = self.text(name)
        return default if text is None else whole(f"--{name}", number(text), least=least, most=MOST)

    def real(self, name: str, default: float, most: float) -> float:
        """The value of an argument as a number from 0 up; the default where it isn't given.

        Raises InputError if it is something else, or out of range.
        """
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"([0-9]{1,9}\.?[0-9]{0,9}|\.[0-9]{1,9})([eE]-?[0-9]{1,2})?", text) or float(text) > most:
            raise InputError(f"--{name} is {shown(text)}; allowed: a number from 0 to {most:g}")
        return float(text)

    def needed(self, name: str) -> int:
        """A number that must be there. Raises InputError if it isn't there, or is no number."""
        value = self.number(name)
        if value is None:
            raise InputError(f"--{name} is missing; planner needs it (or, in planner estimate, a model named beside)")
        return value

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str | None:
        """The value of an argument, one of those allowed; None where it isn't given.

        Raises InputError for another value.
        """
        value = self.text(name)
        if value is not None:
            self._check(name, value, allowed)
        return value

    def each_of(self, name: str, allowed: tuple[str, ...]) -> list[str]:
        """The values of an argument, each one of those allowed; none where it isn't given.

        Raises InputError for another value, or if the argument has none.
        """
        self.text(name)
        values = " ".join(self.words.get(name, [])).split()  # of a shell's variable they are one word
        for value in values:
            self._check(name, value, allowed)
        return values

    def _check(self, name: str, value: str, allowed: tuple[str, ...]) -> None:
        """Raises InputError for a value that is not allowed."""
        if value not in allowed:
            raise InputError(f"--{name} is {shown(value)}; allowed: {', '.join(allowed)}")


def read_arguments(text: str) -> Arguments:
    """The arguments in a text: `--x value`, `--x=value`, `--x`, quoted or not, over several lines, in arrays.

    Raises InputError for a quote that isn't closed, or if there is no argument at all.
    """
    text = text.replace("\r\n", "\n")
    job = _slurm(text)
    text = COMMENT.sub(r"\1", text).replace("\\\n", " ")
    text = ARITHMETIC.sub(lambda match: re.sub(r"\s", "", match[0]), text)
    variables = {"SLURM_NNODES": job["nnodes"], "SLURM_JOB_NUM_NODES": job["nnodes"]} if "nnodes" in job else {}
    variables |= {  # X=${X:-8} is 8, for the environment says nothing
        name: re.sub(r"\$\{" + name + r":?-([^{}]*)\}", r"\1", value.strip("'\"")).strip("'\"")
        for name, value in ASSIGNMENT.findall(text)
    }
    text = re.sub(r"(?m)\b\w+\+?=\(", " ", text)
    try:
        words = shlex.split(text, comments=False, posix=True)
    except ValueError as error:
        raise InputError(f"the arguments can't be read: {str(error).lower()}") from None
    out: dict[str, list[str]] = {}
    current: list[str] = []
    for word in [inner for outer in words for inner in _unfolded(outer)]:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.rstrip(")").replace("_", "-")
            current = [_closed(_expanded(value, variables))] if equals else []
            out[name] = current
        else:
            current.append(_closed(_expanded(word, variables)))
    if not out:
        raise InputError("no argument of Megatron-LM is in the text; allowed: arguments such as --num-layers 32")
    return Arguments({name: [value] for name, value in job.items()} | out)


def _slurm(text: str) -> dict[str, str]:
    """Nodes and GPUs of each as Slurm's comments say them, under torchrun's names; one task a node says nothing."""
    said = {name or short or "gres": number for name, short, number in SLURM.findall(text)}
    tasks = said.get("ntasks-per-node", "1")
    each = said.get("gpus-per-node", said.get("gres", tasks if tasks != "1" else None))
    found = {"nnodes": said.get("nodes", said.get("-N")), "nproc-per-node": each}
    return {name: number for name, number in found.items() if number}


def _unfolded(word: str) -> list[str]:
    """The arguments in a string such as ARGS="--bf16 --swiglu", each a word; any other word alone."""
    if not re.match(r"\s*(?:\w+\+?=)?\s*--\w", word) or not re.search(r"\s", word):
        return [word]
    return re.sub(r"^\s*\w+\+?=", "", word).replace("\\", " ").split()


def _expanded(word: str, variables: dict[str, str]) -> str:
    """The word with the variables that the text sets, or their defaults."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(3)
        return variables.get(name, match.group(0) if match.group(2) is None else match.group(2).strip("'\""))

    def computed(match: re.Match[str]) -> str:
        factors = [variables.get(part, part) for part in match[1].split("*")]
        return str(prod(map(int, factors))) if all(map(FACTOR.fullmatch, factors)) and len(factors) < 9 else match[0]

    for _ in range(MOST_PASSES):
        longer = ARITHMETIC.sub(computed, VARIABLE.sub(value, word))
        if longer == word or len(longer) > 10_000:
            break
        word = longer
    return word


def _closed(word: str) -> str:
    """The word without a parenthesis that ends an array."""
    while word.endswith(")") and word.count(")") > word.count("("):
        word = word[:-1]
    return word
