#!/bin/bash
set -e
ENV=$1
MEGATRON_PATCH_PATH=$2
export CUDA_DEVICE_MAX_CONNECTIONS=1
if [ $ENV == dsw ]; then
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
MASTER_ADDR=localhost
MASTER_PORT=$(shuf -n 1 -i 10000-65535)
NNODES=1
NODE_RANK=0
GPUS_PER_NODE=`python -c "import torch; print(torch.cuda.device_count())"`

elif [ $ENV == dlc ]; then

NNODES=${WORLD_SIZE}
NODE_RANK=${RANK}
GPUS_PER_NODE=${KUBERNETES_CONTAINER_RESOURCE_GPU}

fi

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT"

BATCH_SIZE=$3
GLOBAL_BATCH_SIZE=$(( ${BATCH_SIZE} * 8 ))
SEQ_LEN=$4
TP=$5
TE=$6
DATASET_PATH=${7}
VALID_DATASET_PATH=${8}
TRAIN_ITERS=${9}
TASK=${10}
OUTPUT_BASEPATH=${11:-/mnt/output}

if [ $TE = true ]; then
    te_options=" \
		    --transformer-impl transformer_engine"

elif [ $TE = false ]; then
    te_options=" \
		    "
fi

if [ "$TASK" != pretrain ]
then
    dataset_options=" \
        --train-data-path ${DATASET_PATH} \
        --valid-data-path ${VALID_DATASET_PATH} \
        --dataloader-type cyclic \
        --dataset LLama-SFT"
    NAME=finetune-tp-${TP}
else
    dataset_options="--data-path ${DATASET_PATH} --split 98,2,0"
    NAME=pretrain-tp-${TP}
fi

megatron_options="  \
        --save ${OUTPUT_BASEPATH}/checkpoint/${NAME} \
        --lr-decay-style linear \
        --weight-decay 0.0 \
        --train-iters ${TRAIN_ITERS} \
        --micro-batch-size ${BATCH_SIZE} \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --seq-length ${SEQ_LEN} \
        --eval-interval 100000 \
        --eval-iters 10 \
        --tensor-model-parallel-size ${TP} \
        --pipeline-model-parallel-size 1 \
        --DDP-impl local \
        --seed 1234 \
        --num-workers 0 \
        --extra-vocab-size 0 \
        --patch-tokenizer-type LLamaTokenizer
        "

run_cmd="torchrun $DISTRIBUTED_ARGS ${MEGATRON_PATCH_PATH}/examples/llama/finetune_llama.py
 ${megatron_options} ${dataset_options} ${te_options}"

echo ${run_cmd}
eval ${run_cmd} "2>&1 | tee run.log"
set +x
