"""Names as people write them: `Llama 3.1 8B`, `llama-3.1-8b` and `meta-llama/Llama-3.1-8B-Instruct` are one."""

import re
from collections.abc import Callable, Collection, Iterable

# What hubs add to a model's name without changing its sizes: its maker; how it was tuned, its context, its release, its
# format.
MAKER = re.compile(r"^nvidia[-_ ]")
ENDING = re.compile(
    r"[-_ .](base|chat|hf|instruct|it|pt|pretrain|pretrained|bf16|fp8|nvfp4|\d+k|v?\d{4}|v\d+(\.\d+)*)$"
)


def same_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that differs by case, separators, an owner before it or a hub's endings behind it; or None.

    The one with the fewest endings taken away: `deepseek-v3-base` is `deepseek-v3`.
    """
    by_letters = {_letters(k): k for k in known}
    text = MAKER.sub("", name.strip().lower().rsplit("/", 1)[-1][:200])
    while (found := by_letters.get(_letters(text))) is None:
        shorter = ENDING.sub("", text)
        if shorter == text:
            return None
        text = shorter
    return found


def network_name(text: str) -> str:
    """The profile's name of what people call a network: `100GbE` is `ethernet-100g`, `HDR` is `infiniband-hdr`."""
    word = _letters(text.strip())
    ethernet, infiniband = re.fullmatch(r"(\d+)gbe", word), re.fullmatch(r"(?:ib)?([ehnx]dr)", word)
    if ethernet:
        return f"ethernet-{ethernet[1]}g"
    return f"infiniband-{infiniband[1]}" if infiniband else text


def servers_of(gpu: str, known: Collection[str], has: Callable[[str], object]) -> list[str]:
    """The cluster that has this GPU: `h100` is `dgx-h100`, `rtx 4090` is `rtx-4090-server`; or all that may be meant.

    has: a cluster's GPU, asked where no cluster's name has the words: `h100-sxm`. Servers that a GPU's maker sells
    (DGX, HGX) come before others. `a100` is two of them, so all that are named by it are given.
    """
    wanted = set(re.split(r"[-_ ]+", gpu.strip().lower()))
    if all(len(word) < 4 and word.isdigit() for word in wanted):
        return []
    having = [name for name in known if wanted <= set(name.split("-"))]
    having = having or [name for name in known if _letters(str(has(name))) == _letters(gpu.strip())]
    own = [name for name in having if name.startswith(("dgx-", "hgx-"))]
    return own if len(own) == 1 else having


def _letters(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())
