"""Give an exported file to the framework that reads it: python benchmarks/oracle/read_file.py FRAMEWORK FILE GPUS.

deepspeed: its configuration, with the batch and ZeRO checks that `deepspeed.initialize` makes of it. accelerate: the
file as `accelerate launch` reads it, and the plugin of FSDP that the launched script makes of it.
"""

from __future__ import annotations

import os
import sys


def deepspeed(path: str, gpus: int) -> str:
    """DeepSpeed's stage and batch of the file."""
    from deepspeed.runtime import config as read

    read.dist.get_rank, read.dist.get_world_size = lambda *_: 0, lambda *_: gpus
    config = read.DeepSpeedConfig(path)
    return f"stage {config.zero_optimization_stage}, batch {config.train_batch_size}"


def accelerate(path: str, gpus: int) -> str:
    """Accelerate's kind of training and processes, and its plugin's settings."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    arguments = launch_command_parser().parse_args(["--config_file", path, "script.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    assert arguments.num_processes == gpus, (arguments.num_processes, gpus)
    os.environ |= {key: str(value) for key, value in prepare_multi_gpu_env(arguments).items()}
    if arguments.use_fsdp:
        from accelerate.utils import FullyShardedDataParallelPlugin

        plugin = FullyShardedDataParallelPlugin()
        return f"{gpus} processes, FSDP {plugin.fsdp_version}, reshard {plugin.reshard_after_forward}"
    return f"{gpus} processes, without sharding"


if __name__ == "__main__":
    print("read:", {"deepspeed": deepspeed, "accelerate": accelerate}[sys.argv[1]](sys.argv[2], int(sys.argv[3])))
