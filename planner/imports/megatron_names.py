"""The arguments of Megatron-LM that are read, and those that change neither a step's time nor its memory by much."""

from planner.imports.megatron_model import MODEL_ARGUMENTS, NEWER_MODEL_ARGUMENTS

LAUNCHER = (
    "nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "rdzv-id", "rdzv-backend", "rdzv-endpoint",
)  # fmt: skip
ARGUMENTS = (
    *MODEL_ARGUMENTS,
    "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size", "cp-comm-type",
    "hierarchical-context-parallel-sizes", "expert-model-parallel-size",
    "expert-tensor-parallel-size", "sequence-parallel", "tp-comm-overlap", "num-layers-per-virtual-pipeline-stage",
    "num-virtual-stages-per-pipeline-rank", "pipeline-model-parallel-layout", "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers", "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split", "use-distributed-optimizer", "num-distributed-optimizer-instances",
    "use-megatron-fsdp", "use-torch-fsdp2", "torch-fsdp2-no-reshard-after-forward", "data-parallel-sharding-strategy",
    "overlap-grad-reduce", "overlap-param-gather", "optimizer-cpu-offload", "optimizer-offload-fraction",
    "cpu-offloading-num-layers", "moe-expert-capacity-factor",    "micro-batch-size", "global-batch-size",
    "recompute-activations", "recompute-granularity", "recompute-method", "recompute-num-layers", "recompute-modules",
    "attention-backend", "use-flash-attn", "no-masked-softmax-fusion", "transformer-impl", "bf16", "fp16", "fp8-format",
    "fp8-param-gather", "grad-reduce-in-bf16", "accumulate-allreduce-grads-in-fp32", "optimizer",
    "use-precision-aware-optimizer", "main-grads-dtype", "main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype",
    "moe-enable-deepep", "overlap-moe-expert-parallel-comm",
)  # fmt: skip
# Newer than the version whose names these are; the first in Megatron-Core 0.16.1.
NEWER = ("moe-flex-dispatcher-backend", "fp4-format", *NEWER_MODEL_ARGUMENTS)
# What changes neither a step's time nor its memory by much: data, learning rate, logs, checkpoints, kernels' detail.
NO_MATTER = (
    "data-", "train-", "valid-", "test-", "split", "mock-data", "vocab-file", "merge-file", "tokenizer-", "lr",
    "min-lr", "adam-", "weight-decay", "clip-grad", "seed", "init-method", "log-", "tensorboard-", "wandb-", "timing-",
    "save", "load", "no-save", "no-load", "ckpt-", "dist-ckpt", "async-save", "use-dist-ckpt", "eval-", "exit-",
    "distributed-", "num-workers", "no-create-attention-mask", "reset-", "eod-mask", "manual-gc", "no-manual-gc",
    "loss-scale", "initial-loss-scale", "min-loss-scale", "hysteresis", "use-mcore-models",
    "attention-dropout", "hidden-dropout", "glu-linear-offset", "softmax-type", "rope-type", "no-rope-fusion",
    "no-gradient-accumulation-fusion",
    "attention-softmax-in-fp32", "moe-grouped-gemm", "moe-token-dispatcher", "moe-aux-loss",
    "moe-router-load", "moe-router-dtype", "moe-z-loss", "moe-permute-fusion", "finetune", "override-opt", "no-bias-",
    "cross-entropy-", "microbatch-group-size", "fp8-recipe", "fp4-recipe", "fp8-amax", "fp8-margin", "dataloader-type",
    "local-rank", "no-async-tensor", "apply-layernorm-1p", "moe-router-",
    "profile", "rampup-batch-size", "sgd-", "start-weight", "end-weight", "use-checkpoint", "tiktoken", "ddp-",
)  # fmt: skip
