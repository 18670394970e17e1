#!/bin/bash
#SBATCH --job-name=sft
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8

: "${MBS:=1}"
SIF=/containers/megatron.sif
BINDS="-B /scratch -B $PROJECT"

TRAIN="--sft --sft-tokenizer-prompt-format nemotron-h-aligned \
 --tokenizer-type SFTTokenizer --tokenizer-model nvidia/aligned \
 --train-samples 128000 --seq-length 16384 --context-parallel-size 4 --tensor-model-parallel-size 2 \
 --micro-batch-size $MBS --global-batch-size 32 --eval-interval 250 --eval-iters 8 --split 98,2,0 \
 --data-path $PROJECT/sft/train.jsonl --trust-remote-code"

srun apptainer exec --nv $BINDS "$SIF" bash -c "
    cd /opt/megatron
    export CUDA_DEVICE_MAX_CONNECTIONS=1
    torchrun --nproc-per-node=8 pretrain_gpt.py $TRAIN
"
