"""The space of drawn questions: what is listed is what is legal and worth listing, by trying all small numbers."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner import recommend
from planner.base.errors import LayoutError
from planner.hardware import load_cluster
from planner.layouts import Attention, Layouts, Precision, Recompute, Split
from planner.models import from_shape
from planner.schedules import get_schedule
from planner.search.request import Fixed, Request
from planner.search.space import _grids, whole_space
from planner.step.legality import legal
from tests.search.every_layout import filled_chunks

CLUSTER = load_cluster("dgx-a100-80gb")
MODEL = from_shape(family="llama", layers=6, hidden=512, ffn=1024, heads=8, kv_heads=4, vocab=32000, seq_len=512)
SCHEDULES = (
    "gpipe", "1f1b", "interleaved", "breadth-first", "modular", "layered", "zb-h1", "zb-v", "1f1b-v", "seq1f1b",
    "chimera", "vocab-1", "2bw",
)  # fmt: skip
COLUMNS = (
    "dp", "tp", "pp", "cp", "ep", "etp", "schedule", "virtual_stages", "sequence_slices", "micro_batch", "layer_split",
    "zero", "recompute", "sequence_parallel", "offload_optimizer", "offload_parameters", "ulysses", "recompute_layers",
    "offload_layers", "inner_ring",
)  # fmt: skip
SETTLED = {
    "tp": [(1,), (2,), (1, 4)], "pp": [(1,), (2,), (2, 4)], "cp": [(1,), (2,)], "ep": [(1,), (2, 4)], "etp": [(1,)],
    "dp": [(1, 2)], "virtual_stages": [(1,), (2, 3)], "micro_batch": [(1,), (2, 4)], "zero": [(1,), (0, 3)],
    "recompute": [(0,), (1, 2), (3,)], "sequence_parallel": [(False,), (True,)],
    "layer_split": [(Split.EVEN,), (Split.BALANCED, Split.ENDS), (Split.LAST, Split.PARAMETERS)],
    "ulysses": [(1, 2)], "recompute_layers": [(0, 1)], "offload_layers": [(0, 1), (2,)],
}  # fmt: skip


def splits_worth(model, pp: int, v: int, schedule, asked: Request) -> list[Split]:
    """How layers may lie: by cost or evenly, in a V or uneven virtual stages also with embedding and head as layers,
    uneven ones with a short last stage where that is settled; with one stage a rank whatever is settled."""
    settled, layers = asked.fixed.layer_split, model.num_layers
    if pp == 1:
        return [Split.EVEN]
    if v == 1:
        own = [Split.EVEN, Split.BALANCED] if asked.own_split is None else [asked.own_split]
        return list(settled or own)
    if not schedule.looped_placement:
        due = [Split.EVEN, Split.BALANCED, Split.ENDS]
    else:
        due = [Split.EVEN] if layers % (pp * v) == 0 else [Split.ENDS]
        if layers % (pp * v):
            filled = asked.fixed.virtual_stages or filled_chunks(model, pp)
            due += [Split.BALANCED] * (v in filled) + [Split.LAST] * bool(settled and Split.LAST in settled)
        elif settled:
            due.append(Split.BALANCED)
    return [split for split in due if settled is None or split in settled]


def modes_worth(model, asked: Request) -> list[Recompute]:
    """Flash kernels repeat the core by themselves; fine is for experts and latents, where the framework has it."""
    if asked.fixed.recompute:
        return list(asked.fixed.recompute)
    fine = asked.fine_recompute and (model.num_experts > 0 or model.kv_lora_rank > 0)
    modes = [Recompute.NONE, Recompute.FULL] + [Recompute.FINE] * fine
    return modes + [Recompute.SELECTIVE] * (asked.attention in (Attention.UNFUSED, Attention.FUSED))


def runs_worth(model, pp: int, asked: Request):
    """Schedules with virtual stages and slices of 1,024 tokens or more."""
    names = asked.fixed.schedule
    if pp == 1:
        names = [name for name in names if name in ("1f1b", "layered")] or names[:1]
    for name in names:
        schedule = get_schedule(name)
        most = 1 if pp == 1 and not schedule.one_layer_chunks else model.num_layers
        chunks = [schedule.chunks] if schedule.chunks else range(1, most + 1)
        slices = [k for k in (2, 4, 8, 16) if model.seq_len >= 1024 * k] if schedule.sliced else [1]
        yield from product([name], chunks, slices)


def degrees_worth(model, asked: Request):
    """Degrees that use all GPUs; context ranks have 256 tokens or more, experts are cut over tensor ranks or whole."""
    sizes = range(1, asked.gpus + 1)
    for dp, tp, pp, cp in product(sizes, repeat=4):
        if dp * tp * pp * cp != asked.gpus or model.num_heads % tp or asked.global_batch % dp:
            continue
        if pp > model.num_layers or (pp == 1 and asked.fixed.pipelined) or (cp > 1 and cp * 256 > model.seq_len):
            continue
        for ep, etp in product(sizes if model.num_experts else [1], {1, tp} if model.num_experts else [tp]):
            yield dp, tp, pp, cp, ep, etp


def exchanges_worth(model, tp: int, cp: int) -> tuple[int, ...]:
    """A ring of all context ranks; from 16,384 tokens on also the two widest exchanges of heads that are legal."""
    heads = max(model.num_kv_heads, tp)
    wide = [n for n in range(2, cp + 1) if cp % n == 0 and heads % (n * tp) == 0]
    return (1, *wide[-2:]) if model.seq_len >= 16_384 else (1,)


def brute_force(model, asked: Request) -> set[tuple[int, ...]]:
    """Every legal layout that is worth listing and within what is settled."""
    fixed, rows = asked.fixed, []

    def settled(name: str, usual):
        return usual if fixed.settled.get(name) is None else fixed.settled[name]

    others = [settled(name, (0,)) for name in ("recompute_layers", "offload_layers")]
    others.append(settled("inner_ring", (1,)))
    for degrees in degrees_worth(model, asked):
        dp, tp, pp, cp, *_ = degrees
        for run in runs_worth(model, pp, asked):
            sizes = [size for size in range(1, asked.global_batch // dp + 1) if asked.global_batch % (dp * size) == 0]
            rows += [
                (*degrees, *run, *row) for row in product(
                    sizes, splits_worth(model, pp, run[1], get_schedule(run[0]), asked),
                    range(4), modes_worth(model, asked), (0, 1) if tp > 1 else (0,),
                    (0, 1) if fixed.offload else (0,),
                    settled("offload_parameters", (0, 1) if fixed.offload and asked.offloads_parameters else (0,)),
                    settled("ulysses", exchanges_worth(model, tp, cp)), *others,
                )
            ]  # fmt: skip
    if not rows:
        return set()
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    table = Layouts.of(global_batch=asked.global_batch, precision=asked.precision, attention=asked.attention, **columns)
    ok = legal(model, CLUSTER, table)
    on_host = table.offload_optimizer | table.offload_parameters
    ok &= (table.zero == 0) | (table.dp * table.cp > 1) | on_host  # one rank shards nothing but with its host
    for name, values in fixed.settled.items():
        free = {"sequence_parallel": table.tp == 1, "layer_split": table.pp == 1}.get(name, False)
        if name != "schedule":
            ok &= np.isin(getattr(table, name), values) | free
    for name, value in fixed.excluded:
        ok &= getattr(table, name) != value
    columns["schedule"] = [fixed.schedule.index(name) for name in columns["schedule"]]
    legal_rows = zip(zip(*columns.values(), strict=True), ok.tolist(), strict=True)
    return {tuple(map(int, row)) for row, fits in legal_rows if fits}


def drawn(seed: int):
    """A model and a question of few GPUs."""
    rng = np.random.default_rng(seed)

    def pick(*values):
        return values[int(rng.integers(len(values)))]

    layers = pick(3, 4, 6, 7)
    model = replace(MODEL, num_layers=layers, num_dense_layers=layers, seq_len=pick(256, 512, 3072, 4096))
    if seed % 3 == 0:
        model = replace(model, num_experts=4, top_k=2, moe_ffn=512, num_dense_layers=pick(0, 1))
    model = replace(model, num_mtp_layers=pick(0, 0, 1))
    names = tuple(str(n) for n in rng.choice(SCHEDULES, 3, replace=False))
    held = rng.choice(list(SETTLED), pick(0, 1, 2, 3), replace=False)
    settled = {name: pick(*SETTLED[name]) for name in map(str, held)}
    if seed % 7 == 3:
        settled["offload_parameters"] = (True,) if seed % 2 else (False, True)
    if seed % 5 == 2:
        settled["inner_ring"] = (1, 2)
    named = "pp" not in settled and not {"1f1b", "layered", "modular"} & set(names)
    fixed = Fixed(
        settled=settled | {"schedule": names}, pipelined=named and pick(False, True), offload=pick(False, False, True),
        excluded=pick((), (), (("tp", 2),), (("zero", 1), ("recompute", 2))),
    )  # fmt: skip
    asked = Request(
        gpus=pick(2, 4, 6), global_batch=pick(4, 6, 8), precision=Precision.BF16,
        attention=pick(Attention.FLASH2, Attention.FLASH2, Attention.FUSED), fixed=fixed,
        fine_recompute=pick(False, True), own_split=pick(None, None, Split.PRODUCTS),
        offloads_parameters=seed % 3 == 1,
    )  # fmt: skip
    return model, asked


@pytest.mark.parametrize(("seed", "tokens"), [(seed, None) for seed in range(50)] + [(s, 16_384) for s in range(12)])
def test_a_drawn_question_s_space_is_what_brute_force_finds(seed, tokens):
    model, asked = drawn(seed)
    if tokens:
        model, asked = replace(model, seq_len=tokens), replace(asked, gpus=8)
    try:
        found = whole_space(model, CLUSTER, asked)
    except LayoutError:
        assert brute_force(model, asked) == set()
        return
    columns = [getattr(found, name).astype(int).tolist() for name in COLUMNS]
    rows = list(zip(*columns, strict=True))
    assert len(rows) == len(set(rows))
    assert set(rows) == brute_force(model, asked)


EMPTY = (33, 38, 50, 55, 73, 79, 129, 139, 147, 148, 149, 151, 177, 183, 208, 212)
"""Seeds of questions that have no legal layout."""


def is_empty(model, asked: Request) -> bool:
    """Whether a question has no legal layout: no grid of them, and nothing is asked of why."""
    return next(_grids(model, CLUSTER, asked, 100), None) is None


@pytest.mark.parametrize("seed", EMPTY)
def test_an_empty_space_names_a_conflict_of_which_nothing_can_be_left_out_and_the_nearest_number(seed):
    model, asked = drawn(seed)
    with pytest.raises(LayoutError) as error:
        whole_space(model, CLUSTER, asked)
    said, _, remedy = str(error.value).rpartition("; ")
    conflict = said.partition(":")[0].partition("global_batch")[2]
    names = [name for name in (*asked.fixed.settled, "excluded") if f"{name} " in conflict]

    def only(kept: list[str]) -> Request:
        fixed = Fixed(
            settled={name: asked.fixed.settled[name] for name in kept if name != "excluded"},
            pipelined=asked.fixed.pipelined and "schedule" in kept,
            excluded=asked.fixed.excluded if "excluded" in kept else (),
        )
        return replace(asked, fixed=fixed)

    assert is_empty(model, only(names))
    assert not any(is_empty(model, only([other for other in names if other != name])) for name in names)
    nearest_first = sorted(range(1, 20), key=lambda n: (abs(n - asked.gpus), n))
    near = next((n for n in nearest_first if not is_empty(model, replace(asked, gpus=n))), None)
    if near is not None:
        assert remedy == f"a legal number of GPUs near by is {near}"
    else:
        options = ", ".join(names).replace("excluded", "exclude")
        assert remedy == (f"leave out one of {options}" if len(names) > 1 else f"give another {names[0]}")


@pytest.mark.parametrize("schedule", ["zb-v", "v-half", "dualpipev", "zb-h1"])
def test_a_schedule_that_is_named_is_a_pipelines(schedule):
    with pytest.raises(LayoutError, match=f"schedule {schedule}, pp 1; leave out one of schedule, pp"):
        recommend("llama3-8b", "dgx-h100", gpus=8, batch=64, schedule=schedule, pp=1)
