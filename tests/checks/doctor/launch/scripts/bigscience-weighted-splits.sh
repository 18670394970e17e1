#!/bin/bash
#SBATCH --job-name=tr11-176B-ml
#SBATCH --partition=gpu_p5
#SBATCH --nodes=24
#SBATCH --ntasks-per-node=1          # crucial - only 1 task per dist per node!
#SBATCH --cpus-per-task=64           # number of cores per tasks
#SBATCH --gres=gpu:8                 # number of gpus

set -x -e

variant=main

DATA_OUTPUT_PATH=$WORKSHOP_SCRATCH/checkpoints/tr11-176B-ml
CHECKPOINT_PATH=$DATA_OUTPUT_PATH/checkpoints/$variant
LOGS_PATH=$DATA_OUTPUT_PATH/logs/$variant
mkdir -p $LOGS_PATH

REPO=/gpfs/code/Megatron-DeepSpeed
TRAIN_DATA_PATH=$REPO/data/train-splits.txt
VALID_DATA_PATH=$REPO/data/valid-splits.txt
RATIOS_PATH=$REPO/data/ratios.json
python $REPO/tools/load_ratios.py --dataset-ratios-path $RATIOS_PATH --split train --output-ratio-file $TRAIN_DATA_PATH
python $REPO/tools/load_ratios.py --dataset-ratios-path $RATIOS_PATH --split valid --output-ratio-file $VALID_DATA_PATH

# testing for potential faulty nodes
# srun --jobid $SLURM_JOB_ID bash -c 'python -c "import torch, socket; print(socket.gethostname())"'

MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST)
MASTER_PORT=6000

GPUS_PER_NODE=8
NNODES=$SLURM_NNODES

TP_SIZE=4
PP_SIZE=12

MICRO_BATCH_SIZE=2  # was MBS=1 till GBS=784
GLOBAL_BATCH_SIZE=2048  # 4.2M tokens

SEQ_LEN=2048
TRAIN_SAMPLES=220_000_000  # 450B tokens

GPT_ARGS=" \
    --pp-partition-method 'type:transformer|embedding' \
    --num-layers 70 \
    --seq-length $SEQ_LEN \
    --max-position-embeddings $SEQ_LEN \
    --micro-batch-size $MICRO_BATCH_SIZE \
    --rampup-batch-size 192 16 9_765_625 \
    --global-batch-size $GLOBAL_BATCH_SIZE \
    --train-samples $TRAIN_SAMPLES \
    --tokenizer-type PretrainedFromHF \
    --tokenizer-name-or-path workshop/tokenizer-250k \
    --bf16 \
    --seed 42 \
    --kill-switch-path $REPO/kill-switch \
    --pad-vocab-size-to 250880 \
    "

OUTPUT_ARGS=" \
    --log-interval 1 \
    --eval-interval 1000 \
    --eval-iters 1 \
    --log-validation-ppl-to-tensorboard \
    "

config_json="./ds_config.$SLURM_JOB_ID.json"

export LAUNCHER="python -u -m torch.distributed.run \
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT \
    --rdzv_backend c10d \
    --max_restarts 0 \
    --tee 3 \
    "

export CMD=" \
    $REPO/pretrain_gpt.py \
    --tensor-model-parallel-size $TP_SIZE \
    --pipeline-model-parallel-size $PP_SIZE \
    $GPT_ARGS \
    $OUTPUT_ARGS \
    --save $CHECKPOINT_PATH \
    --train-weighted-split-paths-path $TRAIN_DATA_PATH \
    --valid-weighted-split-paths-path $VALID_DATA_PATH \
    --num-workers 2 \
    --data-impl mmap \
    --deepspeed \
    --deepspeed_config ${config_json} \
    "

echo $CMD

# srun error handling:
# --wait=60: wait 60 sec after the first task terminates before terminating all remaining tasks
# --kill-on-bad-exit=1: terminate a step if any task exits with a non-zero exit code
SRUN_ARGS=" \
    --wait=60 \
    --kill-on-bad-exit=1 \
    "

clear; srun $SRUN_ARGS --jobid $SLURM_JOB_ID bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee -a $LOGS_PATH/main_log.txt

echo "END TIME: $(date)"
