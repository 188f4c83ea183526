"""Hugging Face Accelerate: the YAML of `accelerate launch --config_file`, FSDP version 2.

Keys read in accelerate 1.15.0: commands/config/config_args.py, commands/config/cluster.py, commands/launch.py.
Its strings are in double quotes: nothing in it is read as a tag or an anchor.
"""

from typing import Any

import numpy as np

from planner.base.arrays import Bools
from planner.exporters.file_text import comments, quoted
from planner.exporters.nearest import Job, Nearest
from planner.exporters.target import Target, launch_shape
from planner.layouts import Layouts, Recompute
from planner.search import Fixed

PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": "no", "tf32": "no"}

SYNC = "gradient_accumulation_kwargs sync_each_batch=True"
COUNTED = f"; every GPU keeps all gradients meanwhile, which is counted ({SYNC}: profile transformers-sync)"
ASKED = f", and {SYNC}, else every GPU keeps all gradients, unsharded"
REPLICAS = "replicas beside tensor or context ranks must be sharded, zero 2 or 3"  # parallelism_config.py


def replicated_beside(x: Layouts) -> Bools:
    """Where a layout breaks that."""
    return np.asarray((x.zero == 0) & (x.tp * x.cp > 1) & (x.dp * x.cp > 1))


class Accelerate(Target):
    """Accelerate over PyTorch's FSDP; micro-batch and accumulation belong to the training script."""

    name = "accelerate"
    title = "Accelerate"
    profile = "transformers"
    others = ("torchtitan",)
    family = "pytorch"
    version = "1.15.0"
    unwritten = ("nvfp4",)
    suffix = ".yaml"
    chooses_gradients = False
    equal_nodes = True
    bf16_states = True
    adapters = "adapters are the training code's own, such as peft's"
    runs = Fixed(
        pp=(1,), ep=(1,), zero=(0, 2, 3), schedule=("1f1b",), ulysses=(1,), recompute_layers=(0,), offload_layers=(0,),
        offload_parameters=(False,), sequence_parallel=(False,), recompute=(Recompute.NONE, Recompute.FULL),
        never=((REPLICAS, replicated_beside),),
    )  # fmt: skip

    def writes(self, name: str, value: Any) -> bool:
        """Neither the format in which gradients are kept nor in which they are summed: mixed_precision chooses."""
        return super().writes("grad_dtype" if name == "grad_reduce_dtype" else name, value)

    def adapt(self, nearest: Nearest) -> None:
        """FSDP over dp x cp, tensor and context parallelism."""
        row = nearest.row
        nearest.change("ulysses", 1, "it has no exchange of heads")
        nearest.change("capacity_factor", 0.0, "no key drops tokens")
        nearest.activations_stay("no key moves activations")
        nearest.change("recompute_layers", 0, "it recomputes every layer or none")
        if row["pp"] > 1:
            raise nearest.refuse("pp", "has no pipeline", "recommend with --framework accelerate")
        if row["ep"] > 1:
            remedy = "torchtitan has it (--to torchtitan), or recommend with --framework accelerate"
            raise nearest.refuse("ep", "has no expert parallelism", remedy)
        nearest.schedules(("1f1b",))
        if row["tp"] > 1 and row["dp"] * row["cp"] == 1:
            nearest.change("zero", 0, "one replica has nothing to shard")
            given = f"give Accelerator(parallelism_config=ParallelismConfig(tp_size={row['tp']}))"
            nearest.note(f"tp {row['tp']}: the launcher has it beside FSDP alone; {given}")
        if row["tp"] > 1:
            nearest.note(f'tp {row["tp"]}: load the model with tp_plan="auto" and accelerator.torch_device_mesh')
        if row["zero"] == 1:
            nearest.change("zero", 2, "FSDP shards gradients with the optimizer's state")
        if replicated_beside(nearest.layouts)[0]:
            nearest.change("zero", 2, REPLICAS)
        for key in ("grad_dtype", "grad_reduce_dtype"):
            nearest.change(key, "framework", "no key for it; Accelerate chooses the format by mixed_precision")
        nearest.own_heads()
        nearest.change("sequence_parallel", False, "no key for it; a model's tensor-parallel plan (tp_plan) has none")
        nearest.change("etp", row["tp"], "a model's tensor-parallel plan splits its experts")
        if row["offload_optimizer"]:
            nearest.change("offload_fraction", 1.0, "it moves all or nothing")
            nearest.note("offload_optimizer: fsdp_offload_params keeps parameters and gradients in host memory too")
        if row["recompute"] == "selective":
            nearest.change("recompute", "none", "fsdp_activation_checkpointing recomputes whole layers or nothing")
        nearest.whole_layers("fsdp_activation_checkpointing recomputes whole layers or nothing")
        if row["precision"] == "nvfp4":
            nearest.change("precision", "bf16", "mixed_precision has no such value")
        if row["precision"] == "tf32":
            nearest.note("precision tf32: no key for it; exported as mixed_precision no, PyTorch's setting decides")
        if row["main_dtype"] == "bf16":
            nearest.change("precision", "bf16", "beside mixed_precision no the model's own format is the products'")
            nearest.note("main_dtype bf16: load the model with dtype=torch.bfloat16")
        accumulated = row["global_batch"] // (row["micro_batch"] * row["dp"])
        # Transformers, trainer.py: else all backward passes but the last are under no_sync, where FSDP shards nothing.
        whole = COUNTED if nearest.setup.framework.defers_scatter else ASKED
        whole *= accumulated > 1 and row["zero"] > 1
        nearest.note(
            f"micro_batch {row['micro_batch']}: the training script's; give it per_device_train_batch_size="
            f"{row['micro_batch']} and gradient_accumulation_steps={accumulated}{whole}"
        )
        if (kernel := row["attention"]).startswith("flash"):
            hopper = nearest.setup.cluster.accelerator.efficiency.name == "hopper"
            own = "flash_attention_2" if kernel != "flash3" else "flash_attention_3" if hopper else "sdpa"
            how = "sdpa" if row["cp"] > 1 else own
            if how == "sdpa":  # PyTorch takes cuDNN's by itself from cuDNN 9.15 on, else flash (cuda/sdp_utils.cpp)
                backend = "CUDNN" if kernel == "flash3" else "FLASH"
                how += f" and train inside torch.nn.attention.sdpa_kernel(SDPBackend.{backend}_ATTENTION)"
            shifted = "; context ranks want labels that the script has shifted (shift_labels)" * (row["cp"] > 1)
            nearest.note(f"attention {kernel}: the model's; load it with attn_implementation={how}{shifted}")

    def render(self, job: Job) -> str:
        """The YAML. One GPU has FSDP too where it shares its states with the host."""
        row = job.row
        gpus = int(job.layouts.gpus[0])
        self.check_gpus(job.cluster, gpus)
        nodes, each, _ = launch_shape(job.cluster, gpus)
        sharded = row["zero"] > 0 or row["offload_optimizer"]
        top: dict[str, Any] = {
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "FSDP" if sharded else "MULTI_GPU" if nodes * each > 1 else "NO",
            # It would upcast a model that was loaded in bf16 to fp32 (utils/fsdp_utils.py).
            "mixed_precision": "no" if row["main_dtype"] == "bf16" else PRECISIONS[row["precision"]],
            "num_machines": nodes,
            "num_processes": nodes * each,
            "machine_rank": 0,
            "main_training_function": "main",
            "rdzv_backend": "static",
            "same_network": True,
            "use_cpu": False,
        }
        if sharded:
            top["fsdp_config"] = {
                "fsdp_version": 2,
                "fsdp_reshard_after_forward": row["zero"] == 3,
                "fsdp_offload_params": row["offload_optimizer"],
                "fsdp_activation_checkpointing": row["recompute"] == "full",
                "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "fsdp_state_dict_type": "SHARDED_STATE_DICT",
                "fsdp_cpu_ram_efficient_loading": True,
            }
            if row["tp"] * row["cp"] * row["dp_replicate"] > 1:
                top["parallelism_config"] = {
                    "parallelism_config_dp_replicate_size": row["dp_replicate"],
                    "parallelism_config_dp_shard_size": row["dp"] // row["dp_replicate"],
                    "parallelism_config_tp_size": row["tp"],
                    "parallelism_config_cp_size": row["cp"],
                }
        return "\n".join([*comments(job.head), *USAGE, *_yaml(top), ""])


USAGE = ["# accelerate launch --config_file THIS your_script.py; on several machines give --machine_rank,",
         "# --main_process_ip and --main_process_port."]  # fmt: skip


def _yaml(table: dict[str, Any], indent: str = "") -> list[str]:
    """Mappings of plain values, one a line."""
    lines = []
    for key, value in table.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:", *_yaml(value, indent + "  ")]
        else:
            plain = str(value).lower()  # numbers, true and false
            lines.append(f"{indent}{key}: {quoted(value) if isinstance(value, str) else plain}")
    return lines
