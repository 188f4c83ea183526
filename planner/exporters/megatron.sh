#!/usr/bin/env bash
@HEAD@

set -euo pipefail

# Run it from a checkout of Megatron-LM. It trains on mock data until DATA_PATH names a preprocessed dataset:
#   DATA_PATH=/data/my_text_document TOKENIZER_TYPE=HuggingFaceTokenizer TOKENIZER_MODEL=/models/mine bash SCRIPT
# On several nodes, on each: MASTER_ADDR=first-node NODE_RANK=0 (1, 2, ...) bash SCRIPT
# Learning rate, iterations and intervals are yours: planner does not choose them. More arguments: after SCRIPT.

@CONNECTIONS@
NNODES=${NNODES:-@NODES@}
GPUS_PER_NODE=${GPUS_PER_NODE:-@GPUS_PER_NODE@}

@ARGUMENTS@

OPTIMIZER_ARGS=(
  --lr "${LR:-1.0e-4}" --min-lr "${MIN_LR:-1.0e-5}" --train-iters "${TRAIN_ITERS:-100}"
  --lr-decay-style cosine --lr-warmup-fraction 0.01 --clip-grad 1.0 --weight-decay 0.1
)

if [[ -n "${DATA_PATH:-}" ]]; then
  DATA_ARGS=(
    --data-path "$DATA_PATH" --split 99,1,0
    --tokenizer-type "${TOKENIZER_TYPE:?set it, such as HuggingFaceTokenizer}"
    --tokenizer-model "${TOKENIZER_MODEL:?set it: the path or name of the tokenizer}"
  )
else
  DATA_ARGS=(--mock-data --tokenizer-type NullTokenizer --vocab-size @VOCAB@)
fi

SAVE_ARGS=()
if [[ -n "${CHECKPOINT_PATH:-}" ]]; then
  SAVE_ARGS=(--save "$CHECKPOINT_PATH" --load "$CHECKPOINT_PATH" --save-interval "${SAVE_INTERVAL:-1000}")
fi

torchrun --nnodes "$NNODES" --nproc-per-node "$GPUS_PER_NODE" --node-rank "${NODE_RANK:-0}" \
  --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
  "${PRETRAIN:-pretrain_gpt.py}" "${MODEL_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${TRAINING_ARGS[@]}" \
  "${OPTIMIZER_ARGS[@]}" "${DATA_ARGS[@]}" ${SAVE_ARGS[@]+"${SAVE_ARGS[@]}"} \
  --eval-interval 1000 --eval-iters 0 --log-interval 10 --log-throughput "$@"
