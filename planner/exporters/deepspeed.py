"""DeepSpeed: the JSON that `deepspeed.initialize` reads.

Keys read in deepspeed 0.19.8: runtime/config.py, runtime/zero/config.py, runtime/tensor_parallel/config.py. JSON has no
comments; DeepSpeed leaves keys that it doesn't know alone, so what must be said stands under "comment".
"""

import json
from typing import Any

import numpy as np

from planner.base.arrays import Bools
from planner.base.errors import one_line
from planner.exporters.nearest import Job, Nearest, gradient_formats
from planner.exporters.target import OPTIMIZERS, Target
from planner.layouts import GradDtype, Layouts, OptimizerKind, Precision
from planner.search import Fixed

IN_BF16_STATES = "bf16_master_weights_and_grads needs ZeRO"  # runtime/config.py
UNSHARDED = "offload_optimizer needs ZeRO"
OWN_ADAM = "updates states on the host by its own Adam"
IN_BF16 = "bf16 without ZeRO adds gradients up in bf16 alone"
STATES = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}


def added_in_bf16(x: Layouts) -> Bools:
    """Where a layout's gradients would be."""
    return np.asarray((x.precision == Precision.BF16) & (x.grad_dtype != GradDtype.BF16) & (x.zero == 0))


class DeepSpeed(Target):
    """DeepSpeed's configuration; the model, its pipeline stages and its experts are Python of the user's own."""

    name = "deepspeed"
    title = "DeepSpeed"
    profile = "transformers-deepspeed"
    family = "deepspeed"
    version = "0.19.8"
    unwritten = ("fp8", "nvfp4")
    suffix = ".json"
    optimizers = OPTIMIZERS
    adapters = "adapters are the training code's own, such as peft's"
    offloads_parameters = True
    bf16_states = True
    runs = Fixed(
        schedule=("1f1b",), cp=(1,), ulysses=(1,), sequence_parallel=(False,), dp_replicate=(1,), recompute_layers=(0,),
        offload_layers=(0,), never=(
            (IN_BF16_STATES, lambda x: x.all_in_bf16 & (x.zero == 0)),
            (UNSHARDED, lambda x: x.offload_optimizer & (x.zero == 0)), (IN_BF16, added_in_bf16),
            (OWN_ADAM, lambda x: x.offload_optimizer & (x.optimizer != OptimizerKind.ADAM)),
        ),
    )  # fmt: skip

    def left_to_code(self, row: dict[str, Any]) -> list[str]:
        """Stages with the tensor ranks in them, and experts' ranks."""
        return [f"{name} {row[name]}" for name in ("pp", *(["tp"] * (row["pp"] > 1)), "ep") if row[name] > 1]

    def adapt(self, nearest: Nearest) -> None:
        """1F1B, ZeRO, AutoTP; what is Python's to say is noted."""
        row = nearest.row
        if row["cp"] > 1:
            raise nearest.refuse("cp", "has no ring over the sequence", "recommend with --cp 1")
        nearest.schedules(("1f1b",))
        if row["etp"] < row["tp"]:
            raise nearest.refuse("etp", "has no experts whole on a tensor rank", "give etp the value of tp, or tp 1")
        nearest.change("capacity_factor", 0.0, "no key for it; deepspeed.moe.layer.MoE takes capacity_factor")
        nearest.activations_stay("cpu_checkpointing moves all layers' inputs or none")
        nearest.change("fused_norm", nearest.setup.framework.unstated.fused_norm, "no key; norms are the model's own")
        nearest.change("recompute_layers", 0, "no key leaves some layers of a stage alone")
        nearest.change("sequence_parallel", False, "AutoTP keeps whole sequences")
        nearest.change("dp_replicate", 1, "no key shards gradients or states over some of the replicas")
        if row["precision"] in ("fp8", "nvfp4"):
            nearest.change("precision", "bf16", "no key for it")
        if row["precision"] == "tf32":
            nearest.note("precision tf32: no key for it; exported as fp32, PyTorch's setting decides")
        if row["offload_optimizer"] and row["zero"] == 0:
            nearest.change("zero", 1, UNSHARDED)
        if row["main_dtype"] == "bf16" and row["zero"] == 0:
            nearest.change("zero", 1, IN_BF16_STATES)
        if row["precision"] == "bf16" and gradient_formats(nearest.setup, Layouts.of_rows([row]))[0] == "fp32":
            nearest.change("zero", max(row["zero"], 1), IN_BF16)
        if row["zero"] < 3:
            nearest.change("offload_fraction", 1.0, "the ratio of offload_optimizer is ZeRO 3's alone")
        nearest.change("pipeline_layout", "", "PipelineModule splits the layers itself")
        if row["pp"] > 1:
            method = "uniform" if row["layer_split"] == "even" else "parameters"
            nearest.note(
                f"pp {row['pp']}: the JSON has no key that makes stages; build the model as a PipelineModule with "
                f"num_stages={row['pp']}, partition_method={method!r}"
            )
        if row["tp"] > 1 and row["pp"] > 1:
            topology = f"PipeModelDataParallelTopology(num_pp={row['pp']}, num_mp={row['tp']}, num_dp={row['dp']})"
            nearest.note(
                f"tp {row['tp']}: AutoTP splits no PipelineModule; give it topology={topology} and layers that are "
                "tensor-parallel themselves, such as Megatron-DeepSpeed's"
            )
        elif row["tp"] > 1:
            nearest.note(
                f"global_batch {row['global_batch']}: micro-batch and accumulation steps make it; without an mpu "
                f"DeepSpeed counts tensor ranks as replicas, and says {row['global_batch'] * row['tp']}"
            )
        if row["optimizer"] != "adam" and row["offload_optimizer"]:
            raise nearest.refuse("optimizer", OWN_ADAM, "recommend with adam")
        if row["optimizer"] != "adam":
            nearest.note(f"optimizer {row['optimizer']}: no key for it; give deepspeed.initialize its own, optimizer=")
        if row["offload_optimizer"]:
            nearest.note("offload_optimizer: give it deepspeed.ops.adam.DeepSpeedCPUAdam; it refuses torch's own")
        nearest.own_heads()
        if row["ep"] > 1:
            nearest.note(f"ep {row['ep']}: no key for it; give ep_size={row['ep']} to deepspeed.moe.layer.MoE")
        if row["recompute"] in ("selective", "fine"):
            parts = "the attention core" if row["recompute"] == "selective" else "norms and activations"
            nearest.note(f"recompute {row['recompute']}: no key for it; recompute {parts} in the model's own code")
        elif row["recompute"] == "full" and row["pp"] == 1:
            nearest.note("recompute full: no key turns it on; call deepspeed.checkpointing.checkpoint on each layer")
        if row["attention"] != "flash2":
            nearest.note(f"attention {row['attention']}: no key for it; the model chooses its kernel")

    def render(self, job: Job) -> str:
        """The JSON object."""
        row = job.row
        config: dict[str, Any] = {
            "comment": [one_line(sentence) for sentence in job.head],
            # Tensor ranks count as replicas in it, unless an mpu tells them apart (runtime/config.py).
            **({"train_batch_size": row["global_batch"]} if row["tp"] == 1 or row["pp"] > 1 else {}),
            "train_micro_batch_size_per_gpu": row["micro_batch"],
            "gradient_accumulation_steps": int(job.layouts.micro_batches[0]),
            "gradient_clipping": 1.0,
            "bf16": {"enabled": row["precision"] == "bf16"} | (STATES if row["main_dtype"] == "bf16" else {}),
            "fp16": {"enabled": row["precision"] == "fp16"},
            **_gradients(job),
            "zero_optimization": _zero(job),
            **({"zero_allow_untested_optimizer": True} if row["optimizer"] != "adam" and row["zero"] > 0 else {}),
        }
        if row["tp"] > 1 and row["pp"] == 1:
            config["tensor_parallel"] = {"autotp_size": row["tp"]}
        if row["pp"] > 1:
            config["pipeline"] = {"activation_checkpoint_interval": 1 if row["recompute"] == "full" else 0}
        return json.dumps(config, indent=2) + "\n"


def _gradients(job: Job) -> dict[str, Any]:
    """The number formats of gradients in bf16 training; else DeepSpeed's own."""
    if job.row["precision"] != "bf16":
        return {}
    kept, sent = job.gradients
    return {"data_types": {"grad_accum_dtype": kept}, "communication_data_type": sent}


def _zero(job: Job) -> dict[str, Any]:
    """Sharding, and whether its traffic overlaps as the profile assumes."""
    row, f = job.row, job.framework
    zero: dict[str, Any] = {"stage": row["zero"]}
    if row["zero"] > 0:
        reduced = f.overlap_grad_reduce_pipelined if row["pp"] > 1 else f.overlap_grad_reduce
        zero |= {"overlap_comm": reduced > 0, "reduce_scatter": True, "contiguous_gradients": True}
    if row["offload_optimizer"]:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if row["offload_fraction"] < 1:
            zero["offload_optimizer"]["ratio"] = row["offload_fraction"]
    if row["offload_parameters"]:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return zero
