"""Towers before a language model: the search against every pair of layouts, and what the answer must be at its ends."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from planner.base.errors import LayoutError
from planner.costs.network.collectives import to_first_stage_s
from planner.hardware import load_cluster, load_framework
from planner.models import counts, from_shape
from planner.question import search_request
from planner.search.ranking import best_of
from planner.search.space import whole_space
from planner.search.towers import ALIKE, Tower, fastest
from planner.setup import Setup
from planner.step.estimate import estimate
from planner.step.passes import forward_s
from planner.step.step_costs import step_costs
from planner.step.timeline.step import simulate
from planner.step.timeline.timed import timed_estimate

CLUSTER = load_cluster("dgx-a100-80gb")
FRAMEWORK = load_framework("megatron-core")
GIB = 2.0**30
LANGUAGE = from_shape(family="llama", layers=8, hidden=2048, ffn=5632, heads=16, kv_heads=16, vocab=32000, seq_len=2048)
VISION = replace(
    from_shape(family="gpt", layers=4, hidden=1024, ffn=4096, heads=8, kv_heads=8, vocab=588, seq_len=1024),
    bidirectional=True, dropout=False,
)  # fmt: skip
PLAIN = {"virtual_stages": 1, "recompute": ["none", "selective"]}  # of which the search tries nothing beyond its grids


def asked(model=LANGUAGE, gpus=8, batch=16, towers=((VISION, 2),), frozen=False, **choices):
    """A setup, its request, and towers before it, as `planner towers` asks."""
    setup, request = search_request(Setup(model, CLUSTER, FRAMEWORK), gpus=gpus, batch=batch, **choices)
    every = [Tower.of(m, setup, request, n, frozen) for m, n in towers]
    return setup, request, every


def plain_table(tower):
    """Each layout of a tower: its columns, seconds forward and of the whole step, bytes by what they are."""
    layouts = whole_space(tower.setup.model, CLUSTER, tower.request)
    found = estimate(tower.setup, layouts)
    forward = forward_s(step_costs(tower.setup, layouts))
    m = found.memory
    return [
        {
            "row": layouts.row(i), "forward_s": float(forward[i]),
            "step_s": float(found.step_time_s[i]) - FRAMEWORK.host_step_s,
            "states": float(m.parameters_bytes[i] + m.gradients_bytes[i] + m.optimizer_bytes[i]),
            "parameters": float(m.parameters_bytes[i]), "activations": float(m.activations_bytes[i]),
            "buffers": float(m.buffers_bytes[i]), "rest": float(m.logits_bytes[i] + m.buffers_bytes[i]),
            "micro_batches": int(layouts.micro_batches[i]),
        }
        for i in range(len(layouts))
    ]  # fmt: skip


def own_ways(tower, hidden):
    """(seconds, bytes held while the language model works, most bytes while it works itself), a layout and way each."""
    outputs = tower.request.global_batch * tower.setup.model.seq_len * hidden * 2 / tower.request.gpus
    for x in plain_table(tower):
        if x["row"]["pp"] > 1 or x["row"]["schedule"] == "layered":
            continue
        if tower.frozen:
            yield x["forward_s"], x["parameters"] + outputs, x["parameters"] + outputs + x["buffers"]
            continue
        every = x["activations"] * x["micro_batches"]
        states = x["states"] + outputs
        yield x["forward_s"] + x["step_s"], states, states + x["activations"] + x["rest"]
        yield x["step_s"], states + every, states + every + x["rest"]


def by_brute_force(setup, request, towers):
    """Least seconds of layouts of their own, over every combination, phase by phase."""
    layouts = whole_space(setup.model, CLUSTER, request)
    found = timed_estimate(setup, layouts)
    m, room = found.memory, setup.cluster.accelerator.usable_bytes - FRAMEWORK.reserved_bytes
    states = m.parameters_bytes + m.gradients_bytes + m.optimizer_bytes
    work = m.activations_bytes + m.logits_bytes + m.buffers_bytes
    moved = sum(
        (1 if t.frozen else 2)
        * to_first_stage_s(
            CLUSTER, layouts, t.request.global_batch * t.setup.model.seq_len * float(setup.model.hidden) * 2
        )
        for t in towers
    )
    best = np.inf
    combinations = [[]]
    for tower in towers:
        combinations = [[*some, way] for some in combinations for way in own_ways(tower, setup.model.hidden)]
    for ways in combinations:
        held = sum(way[1] for way in ways)
        tower_phases = max(held - way[1] + way[2] for way in ways)
        fits = (states + work + held <= room) & (states + tower_phases <= room)
        seconds = found.step_time_s + moved + sum(way[0] for way in ways)
        best = min(best, float(np.min(seconds[fits], initial=np.inf)))
    return best


def uniform_by_brute_force(setup, request, tower):
    """Least seconds of one layout for all, over every pair."""
    layouts = whole_space(setup.model, CLUSTER, request)
    found = timed_estimate(setup, layouts)
    of_key = {}
    for x in plain_table(tower):
        row = x["row"] | {"micro_batch": x["row"]["micro_batch"] / tower.sequences}
        size = x["parameters"] + x["buffers"] if tower.frozen else x["states"] + x["activations"] + x["rest"]
        seconds = x["forward_s"] if tower.frozen else x["step_s"]
        of_key.setdefault(tuple(row[name] for name in ALIKE), []).append((seconds, size))
    best = np.inf
    for i in range(len(layouts)):
        row = layouts.row(i)
        for seconds, size in of_key.get(tuple(row[name] for name in ALIKE), []):
            if found.memory_bytes[i] + size <= setup.cluster.accelerator.usable_bytes:
                best = min(best, float(found.step_time_s[i]) + seconds)
    return best


@pytest.mark.parametrize("room", [6.0, 7.0, 9.0, 14.0, 60.0])
@pytest.mark.parametrize(("frozen", "images"), [(False, 2), (True, 2), (False, 16)])
def test_the_search_finds_what_every_pair_of_layouts_has(room, frozen, images):
    """With 2 images a tower keeps its activations, with 16 it goes forward again but in the largest room."""
    setup, request, towers = asked(
        batch=8 * images, towers=((VISION, images),), frozen=frozen, max_memory_gib=room, **PLAIN
    )
    own, uniform = fastest(setup, request, towers)
    assert own.step_s == pytest.approx(by_brute_force(setup, request, towers), rel=1e-12)
    assert own.memory_bytes <= setup.cluster.accelerator.usable_bytes
    assert own.towers[0][2] == (images == 16 and room < 60.0)
    least = uniform_by_brute_force(setup, request, towers[0])
    assert (np.inf if uniform is None else uniform.step_s) == pytest.approx(least, rel=1e-12)


def test_a_tower_that_works_with_more_than_the_language_model():
    """Where the tower's own work is the peak, the language model's states must leave it room."""
    long = replace(VISION, seq_len=16384, max_positions=16384)
    small = replace(LANGUAGE, num_layers=2, num_dense_layers=2, seq_len=256)
    for room in (6.0, 8.0, 12.0, 20.0):
        setup, request, towers = asked(small, towers=((long, 1),), max_memory_gib=room, **PLAIN)
        own, _ = fastest(setup, request, towers)
        assert own.step_s == pytest.approx(by_brute_force(setup, request, towers), rel=1e-12), room


@pytest.mark.parametrize("seed", [0, 2, 4, 5])
def test_drawn_questions_are_answered_as_by_brute_force(seed):
    """Layers that stages share unevenly, whose steps the closed form doesn't have, and virtual stages among them."""
    draw = random.Random(seed)
    layers, gpus = draw.choice([3, 5, 6, 7, 10]), draw.choice([4, 8, 16])
    language = replace(LANGUAGE, num_layers=layers, num_dense_layers=layers, vocab=draw.choice([32000, 128000]))
    vision = replace(VISION, seq_len=(tokens := draw.choice([256, 1024, 4096])), max_positions=tokens)
    setup, request, towers = asked(
        language, gpus, draw.choice([16, 32]), ((vision, draw.choice([1, 3, 8])),), draw.random() < 0.3,
        max_memory_gib=draw.choice([5.0, 7.0, 10.0, 30.0]), **draw.choice([PLAIN, {"recompute": "none"}]),
    )  # fmt: skip
    own, uniform = fastest(setup, request, towers)
    assert own.step_s == pytest.approx(by_brute_force(setup, request, towers), rel=1e-12)
    least = uniform_by_brute_force(setup, request, towers[0])
    assert (np.inf if uniform is None else uniform.step_s) == pytest.approx(least, rel=1e-12)


def test_two_towers_are_every_combination_of_both():
    audio = replace(VISION, num_layers=2, num_dense_layers=2, hidden=512, ffn=2048, head_dim=64, seq_len=512)
    for room in (7.0, 10.0):
        setup, request, towers = asked(
            gpus=2, batch=4, towers=((VISION, 1), (audio, 2)), max_memory_gib=4 * room, **PLAIN
        )
        own, _ = fastest(setup, request, towers)
        assert own.step_s == pytest.approx(by_brute_force(setup, request, towers), rel=1e-12), room


def test_a_tower_of_nothing_leaves_the_language_models_own_answer():
    nothing = replace(VISION, num_layers=1, num_dense_layers=1, hidden=64, ffn=64, num_heads=1, num_kv_heads=1,
                      head_dim=64, vocab=128, seq_len=64, max_positions=64)  # fmt: skip
    setup, request, towers = asked(towers=((nothing, 1),))
    own, _ = fastest(setup, request, towers)
    alone = best_of(setup, request)
    assert own.language.layouts.row(0) == alone.layouts.row(0)
    assert float(own.language.step_time_s[0]) == float(alone.step_time_s[0])
    assert own.step_s == pytest.approx(float(alone.step_time_s[0]), rel=0.05)
    assert own.step_s > alone.step_time_s[0]
    assert own.memory_bytes == pytest.approx(float(alone.memory_bytes[0]), rel=0.002)


@pytest.mark.parametrize("room", [6.0, 8.0, 60.0])
def test_frozen_is_never_slower_nor_larger_than_trained(room):
    trained, frozen = (
        fastest(*asked(frozen=frozen, batch=64, towers=((VISION, 8),), max_memory_gib=room))[0]
        for frozen in (False, True)
    )
    assert frozen.step_s < trained.step_s


def test_more_memory_and_fewer_images_are_never_slower():
    steps = [
        fastest(*asked(towers=((VISION, images),), max_memory_gib=room))[0].step_s
        for images, room in ((2, 60.0), (2, 10.0), (2, 7.0), (4, 7.0))
    ]
    assert steps == sorted(steps)


def test_memory_of_a_step_by_hand():
    """One GPU: 2 bytes a parameter, 4 a gradient, 12 of the optimizer, of both; then the larger of two phases."""
    vision = replace(VISION, vocab=640)  # which is not padded
    choices = {"micro_batch": 2, "recompute": "none", "zero": 0, "precision": "bf16"}
    setup, request, towers = asked(gpus=1, batch=4, towers=((vision, 3),), **choices)
    own, _ = fastest(setup, request, towers)
    tower_of, row, again = own.towers[0]
    states = 18 * (counts.total_params(LANGUAGE) + counts.total_params(vision))
    outputs = 4 * 3 * 1024 * 2048 * 2  # 12 images of 1,024 patches, as wide as the language model, 16 bits
    m, own_m = own.language.memory, tower_of.estimate.take([row]).memory
    language = float(m.activations_bytes[0] + m.logits_bytes[0] + m.buffers_bytes[0])
    tower = float(own_m.logits_bytes[0] + own_m.buffers_bytes[0])
    one = float(own_m.activations_bytes[0])
    kept = one * (1 if again else tower_of.estimate.layouts.micro_batches[row])
    largest = max(language + (0.0 if again else kept), tower + kept)
    assert own.memory_bytes == pytest.approx(FRAMEWORK.reserved_bytes + states + outputs + largest, rel=1e-12)
    assert own.to_language_s == 0.0


def test_outputs_come_to_the_first_stage_at_the_rate_of_an_all_to_all():
    """16 GPUs on two nodes, two stages of 4 x tp 2 with sequence parallelism: each of 8 ranks gets an eighth."""
    from planner.layouts import Layouts

    layouts = Layouts.of(dp=4, tp=2, pp=2, micro_batch=1, global_batch=16, sequence_parallel=True)
    size, network = 64e9, CLUSTER.network
    nic = network.bandwidth_bytes_per_s * CLUSTER.nics_per_node / CLUSTER.gpus_per_node * network.send_fraction
    over_network = size / 8 * (16 - 8) / 16 / nic
    start = 4 * (8 * CLUSTER.node_link.latency_s + np.log2(2) * network.latency_s)  # of each of 4 micro-batches
    assert to_first_stage_s(CLUSTER, layouts, size) == pytest.approx(over_network + start, rel=1e-12)
    half = replace(layouts, sequence_parallel=np.zeros(1, dtype=bool))  # each tensor rank gets all tokens
    assert to_first_stage_s(CLUSTER, half, size) == pytest.approx(2 * over_network + start, rel=1e-12)


def test_forward_passes_are_those_of_the_timeline():
    towers = asked()[2]
    layouts = whole_space(towers[0].setup.model, CLUSTER, towers[0].request)
    every = forward_s(step_costs(towers[0].setup, layouts))
    for i in range(0, len(layouts), 97):
        ran = simulate(towers[0].setup, layouts.take([i])).timeline
        seconds = np.where(ran.order.kind == 0, ran.end_s - ran.start_s, 0.0)
        by_rank = np.bincount(ran.order.rank, weights=seconds)
        assert by_rank.max() <= every[i] * (1 + 1e-9)
        if layouts.pp[i] == 1:
            assert by_rank.max() == pytest.approx(every[i], rel=1e-9)


def test_no_room_for_both():
    setup, request, towers = asked(max_memory_gib=3.0)
    with pytest.raises(LayoutError, match="fit"):
        fastest(setup, request, towers)
