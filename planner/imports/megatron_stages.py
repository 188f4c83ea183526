"""The pipeline's stages that Megatron-LM's arguments describe: how many, and the layers of each."""

from dataclasses import replace

from planner.base.errors import InputError, LayoutError
from planner.choices.pipeline_layout import PipelineLayout, parse_pipeline_layout, pipeline_layout_text
from planner.exporters.target import stage_layers
from planner.imports.arguments import Arguments
from planner.layouts import Layouts, Split
from planner.setup import Setup
from planner.step.splits import has_short_last, shared_by_ends

LAYOUT = "pipeline-model-parallel-layout"


def virtual_stages(a: Arguments, layers: int, pp: int) -> int:
    """Virtual stages of each pipeline rank. Raises LayoutError if the pipeline's ranks can't share the layers so."""
    layout = a.text(LAYOUT)
    if layout is not None:
        stages = len(_given(layout).layers)
        if stages % pp:
            raise LayoutError(f"--{LAYOUT} has {stages} stages; allowed: a multiple of pp {pp}")
        return stages // pp
    v, each = a.number("num-virtual-stages-per-pipeline-rank"), a.number("num-layers-per-virtual-pipeline-stage")
    if v is None and each is not None:
        more = ("account-for-embedding-in-pipeline-split" in a) + ("account-for-loss-in-pipeline-split" in a)
        if (layers + more) % (pp * each):
            raise LayoutError(f"{layers + more} layers aren't a multiple of pp {pp} * {each} layers a virtual stage")
        v = (layers + more) // (pp * each)
    return (v or 1) if pp > 1 else 1


def split_so(profile: Setup, layouts: Layouts, stages: list[int]) -> Layouts:
    """The layout with so many layers on each virtual stage: a split of ours that has them, or stage by stage."""
    pp, layers, v = int(layouts.pp[0]), int(profile.model.num_layers), int(layouts.virtual_stages[0])
    heads = int(profile.model.output_heads)
    possible = [Split.EVEN, Split.ENDS, Split.LAST] if v > 1 else list(Split)
    if layers % (pp * v) and v > 1:
        possible.remove(Split.EVEN)
    if not has_short_last(layers, pp * v):
        possible.remove(Split.LAST)
    if v > 1 and not shared_by_ends(layers, pp * v, heads):
        possible.remove(Split.ENDS)
    for split in possible:
        kind = replace(layouts, layer_split=layouts.layer_split * 0 + split)
        if stage_layers(profile, kind) == stages:
            return kind
    modules = [0] * (len(stages) - 1) + [int(profile.model.num_mtp_layers)]
    row = layouts.row(0) | {"layer_split": "even", "pipeline_layout": pipeline_layout_text(stages, modules)}
    return Layouts.of_rows([row])


def _given(layout: str) -> PipelineLayout:
    """The stages of `--pipeline-model-parallel-layout`."""
    try:
        return parse_pipeline_layout(layout)
    except InputError as error:
        raise InputError(str(error).replace("pipeline_layout", f"--{LAYOUT}", 1)) from None


def run_stages(a: Arguments, layers: int, pp: int, v: int) -> list[int] | None:
    """Layers of each virtual stage, where the arguments say in numbers something else than equal stages."""
    first, last = a.number("decoder-first-pipeline-num-layers"), a.number("decoder-last-pipeline-num-layers")
    embedding, loss = ("account-for-embedding-in-pipeline-split" in a), ("account-for-loss-in-pipeline-split" in a)
    if pp == 1 or LAYOUT in a or not (first or last or embedding or loss):
        return None
    if embedding or loss:
        each = (layers + embedding + loss) // (pp * v)
        stages = [each - embedding, *[each] * (pp * v - 2), each - loss]
    else:
        middle = pp - (first is not None) - (last is not None)
        rest = layers - (first or 0) - (last or 0)
        if rest < 0 or (middle == 0 and rest) or (middle and rest % middle):
            raise LayoutError(
                f"{rest} layers between the first and the last stage aren't a multiple of {middle} stages"
            )
        between = [rest // middle] * middle if middle else []
        ranks = [*([] if first is None else [first]), *between, *([] if last is None else [last])]
        if odd := [n for n in ranks if n % v]:
            raise LayoutError(f"a rank has {odd[0]} layers; allowed: a multiple of its {v} virtual stages")
        stages = [n // v for n in ranks] * v
    if sum(stages) != layers:
        raise LayoutError(f"the pipeline's stages have {sum(stages)} layers in all; allowed: the model's {layers}")
    return stages
