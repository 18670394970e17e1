#!/bin/bash

# Your SBATCH commands here if using SLURM.

# Please launch this script from megatron-lm root.

export CUDA_DEVICE_MAX_CONNECTIONS=1

DEBUG=0

if [[ $BATCH -eq 0 ]]; then
    DATETIME=`date +'%y-%m-%d-%H-%M-%S'`
    MODEL_NAME="vlm-72b-${DATETIME}"
else
    MODEL_NAME="vlm-72b"
fi

WORKSPACE="/scratch/vlm"
SOURCE=`pwd`
OUTPUT="${WORKSPACE}/output/${MODEL_NAME}"

DATA_TRAIN="${SOURCE}/examples/multimodal/pretrain_blend.yaml"

if [[ $DEBUG -eq 1 ]]; then
    MBZ=1
    BZ=1
    NW=0
    EXTRA_ARGS=""
else
    MBZ=1
    BZ=2048
    NW=8
    EXTRA_ARGS=""
fi

SEQ_LEN=256     # Image embeddings sequence length.
DECODER_SEQ_LEN=512     # Language model sequence length.

OPTIONS=" \
    --use-checkpoint-args \
    --tokenizer-type MultimodalTokenizer \
    --tokenizer-model Qwen/Qwen2-72B-Instruct \
    --tokenizer-prompt-format qwen2p0 \
    --tensor-model-parallel-size 8  \
    --pipeline-model-parallel-size 1  \
    --num-workers ${NW} \
    --seq-length ${SEQ_LEN} \
    --decoder-seq-length ${DECODER_SEQ_LEN} \
    --train-samples 122880000 \
    --micro-batch-size ${MBZ} \
    --global-batch-size ${BZ} \
    --eval-iters 10 \
    --eval-interval 500 \
    --data-path ${DATA_TRAIN} \
    --prompt-path ${SOURCE}/examples/multimodal/prompts.json \
    --save ${OUTPUT} \
    --split 100,0,0 \
    --dataloader-type external \
    ${EXTRA_ARGS} \
    --vision-model-type internvit \
    --pixel-shuffle
"

# Interactive or batch mode
if [[ $BATCH -eq 0 ]]; then
    torchrun --nproc_per_node 8 examples/multimodal/train.py ${OPTIONS}
else
    run_cmd="python -u ${SOURCE}/examples/multimodal/train.py ${OPTIONS}"

    DATETIME=`date +'date_%y-%m-%d_time_%H-%M-%S'`

    srun -l --verbose \
    --container-image vlm.sqsh \
    --container-mounts "/scratch:/scratch" \
    --output=${WORKSPACE}/%x_%j_$DATETIME.log \
    sh -c "${run_cmd}"

    set +x
fi
