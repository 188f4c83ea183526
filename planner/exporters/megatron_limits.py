"""What Megatron-Core 0.16.1 and Transformer Engine stop at by the model: kept out of a search, and of an export.

Read in Transformer Engine 2.9, attention/dot_product_attention/context_parallel.py (attn_forward_func_with_cp), and in
Megatron-Core, transformer/transformer_config.py and transformer/moe/moe_layer.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from planner.base.errors import LayoutError
from planner.costs.shapes import is_latent
from planner.exporters.nearest import Job, Nearest
from planner.layouts import Dispatcher, Layouts
from planner.models import Transformer
from planner.search import Fixed
from planner.search.request import Broken, divisors
from planner.step.legality import first_broken

WINDOWS = "sliding windows over context ranks run by exchanged heads alone, ulysses cp"
LATENT = "latent attention over context ranks takes a ring, ulysses below cp"
BIASED = "experts with biases are whole on a tensor rank, etp 1"
SPREAD = "experts are trained under tensor parallelism with sequence parallelism only"


def linear_biases(model: Transformer) -> bool:
    """Whether products have biases beyond those of queries, keys and values: `add_bias_linear`."""
    return bool(model.output_bias or model.mlp_bias or model.expert_bias)


def impossible(model: Transformer) -> Broken:
    """The rules of a model, each with the function that says where a table of layouts breaks it."""
    table: tuple[tuple[Any, str, Callable[[Layouts], Any]], ...] = (
        (model.num_window_layers, WINDOWS, lambda x: (x.cp > 1) & (x.ulysses != x.cp)),
        (is_latent(model), LATENT, lambda x: (x.cp > 1) & (x.ulysses == x.cp)),
        (model.num_experts and linear_biases(model), BIASED, lambda x: x.etp > 1),
        (model.num_experts, SPREAD, lambda x: (x.tp > 1) & ~x.sequence_parallel & (x.dispatcher != Dispatcher.PPMOE)),
    )
    return tuple((text, broken) for applies, text, broken in table if applies)


def of_model(fixed: Fixed, model: Transformer) -> Fixed:
    """What of a search's choices runs of a model; an exchange of heads is looked for where a ring can't be."""
    if model.num_window_layers and fixed.ulysses is None:
        fixed = replace(fixed, settled={**fixed.settled, "ulysses": tuple(divisors(model.num_kv_heads))})
    return fixed.without(*impossible(model))


def adapt(nearest: Nearest) -> None:
    """The nearest layout that runs. Raises LayoutError for windows where heads can't be exchanged over all ranks."""
    setup = nearest.setup
    remedy = {
        WINDOWS: ("ulysses", nearest.row["cp"]), LATENT: ("ulysses", 1), BIASED: ("etp", 1),
        SPREAD: ("sequence_parallel", True),
    }  # fmt: skip
    for text, broken in impossible(setup.model):
        if broken(nearest.layouts)[0]:
            key, value = remedy[text]
            nearest.change(key, value, text)
            if first_broken(setup.model, setup.cluster, nearest.layouts)[0]:
                key = "cp" if key == "ulysses" else key
                raise nearest.refuse(key, f"can't run it: {text}", "recommend with --framework megatron")


def check_rules(job: Job) -> None:
    """Raises LayoutError for the first divisibility rule of Megatron-LM, beyond planner's own, that is broken."""
    m, row, gpus = job.model, job.row, int(job.layouts.gpus[0])
    tp, pp, cp, ep, etp = row["tp"], row["pp"], row["cp"], row["ep"], row["etp"]
    feed_forward = [n for n in (m.ffn, m.moe_ffn) if n]
    table = [
        (f"attention heads {m.num_heads} divisible by tp {tp}", m.num_heads % tp == 0),
        (f"query groups {m.num_kv_heads} a multiple or a divisor of tp {tp}",
         m.num_kv_heads % tp == 0 or tp % m.num_kv_heads == 0),
        (f"feed-forward size {min(feed_forward)} divisible by tp {tp}", all(n % tp == 0 for n in feed_forward)),
        (f"hidden size {m.hidden} divisible by tp {tp}", m.hidden % tp == 0),
        (f"sequence {m.seq_len} divisible by 2 * cp {cp}", cp == 1 or m.seq_len % (2 * cp) == 0),
        (f"sequence {m.seq_len} divisible by tp {tp} * cp {cp}",
         not row["sequence_parallel"] or m.seq_len % (tp * cp) == 0),
        (f"experts {m.num_experts} divisible by ep {ep}", m.num_experts % ep == 0),
        (f"{gpus} GPUs divisible by expert tp {etp} * ep {ep} * pp {pp}", gpus % (etp * ep * pp) == 0),
        (f"global batch {row['global_batch']} divisible by micro-batch {row['micro_batch']} * dp {row['dp']}",
         row["global_batch"] % (row["micro_batch"] * row["dp"]) == 0),
    ]  # fmt: skip
    for text, kept in table:
        if not kept:
            raise LayoutError(f"Megatron-LM needs {text}")
