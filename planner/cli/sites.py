"""`planner sites`: a training on several sites with slow links between them."""

import re
from typing import Annotated, Any

from planner.base.errors import InputError, shown
from planner.base.units import parse_number
from planner.choices.choice import parsed
from planner.cli import assumed as a
from planner.cli import options as o
from planner.cli.choices import searches
from planner.cli.unfold import positional


def _gpus(text: str) -> tuple[int, ...]:
    """GPUs of each site: 3x256, or 256,256,128."""
    from planner.api.sites import MOST_SITES

    out: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(?:(0*[1-9][0-9]{0,3})x)?(0*[1-9][0-9]{0,8})", part.strip())
        if found is None or int(found[1] or 1) > MOST_SITES:
            allowed = f"GPUs of each of at most {MOST_SITES:,} sites, such as 3x256 or 256,256,128"
            raise InputError(f"--sites is {shown(text)}; allowed: {allowed}")
        out += [int(found[2])] * int(found[1] or 1)
    return tuple(out)


@positional
@searches
@a.assumes()
def command(
    model: o.Model,
    place: o.Place,
    size: o.StepBatch,
    *,
    sites: Annotated[str, o.asks("--sites", "GPUs of each site, such as 3x256 or 256,256,128.")],
    gbit: Annotated[str, o.asks("--gbit", "Gb/s of each site's link to the others: one, or one per site.")] = "10",
    latency_ms: Annotated[float, o.asks("--latency-ms", "Between the farthest two sites, one way.")] = 30.0,
    sync_every: Annotated[int, o.asks("--sync-every", "DiLoCo's steps between exchanges.")] = 100,
    shares: Annotated[int | None, o.asks("--shares", "Streaming DiLoCo's shares; else of three layers each.")] = None,
    bits: Annotated[int, o.asks("--bits", "Bits of an outer gradient: 32, 16, 8 or 4.")] = 32,
    overlap_steps: Annotated[float, o.asks("--overlap-steps", "Steps behind which a share travels.")] = 1.0,
    top_k: Annotated[float, o.asks("--top-k", "Share of gradients that top-k sends, 1e-6 to 0.5.")] = 0.001,
    rank: Annotated[int | None, o.asks("--rank", "PowerSGD's rank; else a quarter of the width.")] = None,
    replica_law: Annotated[
        str,
        o.asks("--replica-law", "What seldom exchanges add to the loss: charles-2025, rahman-2026 or a file."),
    ] = "charles-2025",
    aim: a.Aim,
    json: o.Json = False,
    given: dict[str, float | None],
    **choices: Any,
) -> None:  # fmt: skip
    """Days and dollars on sites with slow links: one site alone, every step (gradients compressed or not),
    DiLoCo, Streaming DiLoCo, a pipeline.

    Example: planner sites llama2-7b --cluster dgx-h100 --sites 4x64 --gbit 1 --global-batch 1024

    Exit code 1 where no way ends.
    """
    from planner.api.sites import training_on_sites
    from planner.training_time.sites import least_batch

    setup = place.setup(model)
    gpus = _gpus(sites)
    batch = size.sequences(setup.model.seq_len, sum(gpus), least_batch(gpus))
    allowed = "Gb/s, one for all sites or one per site, as 10,1"
    rates = parsed("--gbit", gbit, lambda text: tuple(parse_number(part, float) for part in text.split(",")), allowed)
    with o.working("searching every way to divide the training"):
        answer = training_on_sites(
            setup, aim.goal(setup.model), given, sites=gpus, gbit=rates, latency_ms=latency_ms,
            batch=batch, sync_every=sync_every, shares=shares, bits=bits, overlap_steps=overlap_steps,
            replica_law=replica_law, top_k=top_k, rank=rank, exact_tokens=aim.loss is None, **choices,
        )  # fmt: skip
    o.show(answer, json)
