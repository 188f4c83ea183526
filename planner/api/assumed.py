"""The assumptions that an answer states, so that a reader sees at once what would change it."""

import numpy as np

from planner.base.units import GBIT, counted, format_bytes, gpus_text
from planner.choices.choice import value_text
from planner.choices.enumerations import names
from planner.choices.table import CHOICES, DEGREES
from planner.choices.training import training_text
from planner.costs.case import Case
from planner.costs.layer.expert_routing import dispatchers, own_imbalance
from planner.costs.layer.host_launches import graphed
from planner.costs.memory.bytes_per_parameter import gradient_bytes, reduced_bytes
from planner.costs.memory.fit_chance import kinds_of, unmeasured
from planner.costs.optimizer import offloaded_bytes
from planner.costs.placement import node_ranks
from planner.hardware import profile_names
from planner.layouts import Dispatcher, Layouts, OptimizerKind, Precision
from planner.question import as_it_has
from planner.report.tables import UNCOUNTED
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.legality import legal
from planner.step.pipelines import weight_copies

LONG = 32_768
"""Tokens of a sequence beyond which few trainings begin; a config.json's `max_position_embeddings` is often more."""
OPTIMIZERS = {
    OptimizerKind.ADAM: "Adam with fp32 moments",
    OptimizerKind.ADAM_BF16: "Adam with bf16 moments",
    OptimizerKind.ADAM_8BIT: "Adam with 8-bit moments",
    OptimizerKind.MUON: "Muon, Adam for embeddings, head and vectors",
    OptimizerKind.SGD: "SGD with momentum",
}
DISPATCH = {
    Dispatcher.PPMOE: "picking them on tensor ranks, without an exchange",
    Dispatcher.ALLTOALL: "plain all-to-all",
    Dispatcher.DEEPEP: "DeepEP, a copy to each node",
    Dispatcher.HYBRIDEP: "HybridEP, a copy to each node",
}
ALIKE = 1e-9
"""Relative difference of two estimates that are the same."""
WAITS = ", whole on every GPU until a step's last micro-batch"
FORMATS = {6.0: "fp32 beside bf16", 4.0: "fp32", 2.0: "16 bits", 1.0: "8 bits"}


def _format(size_bytes: float) -> str:
    return FORMATS.get(size_bytes, f"{size_bytes:g} bytes")


def _states(layouts: Layouts) -> str:
    if layouts.all_in_bf16[0]:
        return "weights, gradients and moments in bf16 alone, where small updates round away"
    return OPTIMIZERS[OptimizerKind(int(layouts.optimizer[0]))]


def assumed(setup: Setup, layouts: Layouts) -> tuple[str, ...]:
    """The assumptions of one layout's estimate on lengths, numbers, optimizer, network and experts; a phrase each.

    layouts: a table of one layout.
    """
    model, cluster, case = setup.model, setup.cluster, Case.of(setup, layouts)
    length = f"{int(model.seq_len):,} tokens per sequence"
    if int(model.seq_len) > LONG:
        length += " (longer than most trainings'; --seq-len sets it)"
    whole = float(case.device.element_bytes[0]) >= 4.0
    kept, sent = 4.0 if whole else float(gradient_bytes(case)[0]), float(reduced_bytes(case)[0])
    gradients = f"gradients kept in {_format(kept)}, reduced in {_format(sent)}{WAITS * int(case.scattering[0] < 1)}"
    speed = cluster.network.bandwidth_bytes_per_s / GBIT
    whose = "as asked" if int(layouts.grad_dtype[0]) or int(layouts.grad_reduce_dtype[0]) else setup.framework.name
    precision = Precision(int(layouts.precision[0])).name.lower()
    chunked = f"attention counted as whole, though most layers attend to chunks of {int(model.chunk):,} tokens"
    said = [
        length,
        *[chunked] * (0 < model.chunk < model.seq_len),
        f"products in {precision}",
        f"{gradients} ({whose})",
        _states(layouts),
    ]
    said += _kernels(setup, layouts)
    gpus, node = int(layouts.gpus[0]), cluster.gpus_per_node
    if gpus > node:
        if (each := int(node_ranks(cluster, gpus))) < node:
            said.append(f"{gpus // each} nodes with {each} of {node} GPUs each")
        elif gpus % node:
            said.append(f"{counted(gpus // node, 'whole node')} of {node} GPUs and {gpus_text(gpus % node)} of another")
        said.append(f"{cluster.nics_per_node} x {speed:g} Gb/s per node")
    if held := float(offloaded_bytes(model, layouts, weight_copies(layouts))[0]):
        room = cluster.host_memory_bytes
        of = "what its host has, which is not stated" if room is None else f"its host's {format_bytes(room)}"
        said.append(f"offloaded states take {format_bytes(held / -(-gpus // node))} per node, of {of}")
    if int(model.num_experts) and int(layouts.ep[0]) > 1:
        how = DISPATCH[Dispatcher(int(dispatchers(case)[0]))]
        usual = "usual on this hardware" if setup.framework.flex_dispatch else setup.framework.name
        said.append(f"tokens to experts by {how} ({'as asked' if int(layouts.dispatcher[0]) else usual})")
        busiest, own = (float(x[0]) for x in (layouts.expert_imbalance, own_imbalance(model, layouts.ep)))
        said.append(
            "experts evenly loaded, as benchmarks force them (left to itself a router loads the busiest rank "
            f"{own:.2g} times the mean: --expert-imbalance)"
            if busiest == 1.0 else f"the busiest experts' rank has {busiest:g} of the mean"
        )  # fmt: skip
    if setup.export is not None:
        from planner.exporters.plan_export import get_target

        target = get_target(setup.export)
        if made := target.left_to_code(layouts.row(0)):
            no_key = f"{target.title}'s {target.suffix[1:].upper()} has no key for that (export says how)"
            said.append(f"{', '.join(made)} made by the training code, for {no_key}")
    missing = unmeasured(kinds_of(setup, precision))
    if missing:
        said.append(
            f"memory with {', '.join(missing)} is measured by fewer than three publications, so more room is left"
        )
    if idle := without_effect(setup, layouts):
        said.append(f"without effect on this estimate: {', '.join(idle)}")
    return tuple(said)


def without_effect(setup: Setup, layouts: Layouts) -> tuple[str, ...]:
    """The choices of a layout, other than usual ones, with which it takes the time and memory that it takes without.

    Each is tried at its usual value, and at all values of an enumeration: what is said as the framework has it anyway
    has an effect where another word would. One whose usual value is illegal here has an effect. layouts: a table of
    one layout.
    """
    row, usual = layouts.row(0), as_it_has(setup, {})
    tried: dict[str, list[dict[str, object]]] = {}
    for name, choice in CHOICES.items():
        default = usual.get(name, choice.plain(choice.default))
        if name not in (*DEGREES, "global_batch") and row[name] != default:
            values = dict.fromkeys([default, *(names(choice.enumeration) if choice.enumeration else ())])
            tried[name] = [row | {name: value} for value in values if value != row[name]]
    of = np.repeat([*tried], [len(rows) for rows in tried.values()])
    table = Layouts.of_rows([row, *(one for rows in tried.values() for one in rows)])
    alike = ~(may := legal(setup.model, setup.cluster, table))
    found = estimate(setup, table.take(np.flatnonzero(may)))
    same = [np.isclose(x, x[0], rtol=ALIKE, atol=0.0) for x in (found.step_time_s, found.memory_bytes)]
    alike[may] = np.all(same, axis=0)
    usual_runs = {name: bool(may[1:][of == name][0]) for name in tried}
    return tuple(
        f"{CHOICES[name].typed} {value_text(row[name])}"
        for name, runs in usual_runs.items()
        if runs and alike[1:][of == name].all()
    )


def _kernels(setup: Setup, layouts: Layouts) -> list[str]:
    """What is assumed of slices, norms' kernels, CUDA graphs, torch.compile and adapters; a phrase each."""
    framework, said = setup.framework, list[str]()
    compiled = f"{framework.name}-compiled"
    if (slices := int(layouts.sequence_slices[0])) > 1:
        said.append(f"a sequence's {slices} slices take equal times (planner simulate --slices: other cuts)")
    if not layouts.fused_norm[0] and setup.model.rms_norm:
        said.append("norms of several kernels (--fused-norm: one)")
    if layouts.cuda_graphs[0]:
        replayed = f"layers replayed as CUDA graphs, {UNCOUNTED}"
        said.append(replayed if graphed(layouts)[0] else "no CUDA graphs: layers recomputed or offloaded have none")
    if framework.compiled_layers:
        by = "XLA" if framework.stack == "jax" else "torch.compile"
        said.append(f"layers compiled by {by} ({framework.name})")
    elif compiled in profile_names("frameworks"):
        said.append(f"layers not compiled (--framework {compiled} counts torch.compile)")
        if layouts.precision[0] >= Precision.FP8:  # pytorch/ao, issues 685 and 1297
            said.append("casts to fp8 as if compiled: without torch.compile torchao's make fp8 no faster than bf16")
    if train := int(layouts.train[0]):
        lacks = framework.stack == "megatron" and "nemo" not in (framework.name, *framework.bases)
        whose = ": Megatron-LM has none, --framework megatron-bridge does" * lacks
        how = f"adapters as Megatron-Bridge's beside frozen weights ({training_text(train)}{whose})"
        said.append(f"{how}, in no run that a fit uses")
    return said
