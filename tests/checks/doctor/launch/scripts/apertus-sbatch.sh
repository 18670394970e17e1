#!/bin/bash

#SBATCH --time=48:00:00
#SBATCH --job-name=swiss-70b
#SBATCH --output=logs/%x-%j.out
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=36 
#SBATCH --signal=SIGUSR2@600  # Send SIGUSR2 600 seconds before hitting the time limit to save a checkpoint and exit.
#SBATCH --no-requeue	# Prevent Slurm to requeue the job if the execution crashes

echo "START TIME: $(date)"

## Configure these variables according to your setup. ##
DATAROOT=/capstor/tokens
MEGATRON_LM_DIR=/iopsstor/$USER/Megatron-LM
DATASET_CACHE_DIR=/iopsstor/$USER/datasets/cache

# Stage 1.
DATASETS=(
	$DATAROOT/finemath-3plus-merge
	$DATAROOT/starcoder-extras-merge
	$DATAROOT/fineweb-2-merge/euro-high
)

# Stage 2.
# DATASETS=(
# 	$DATAROOT/finemath-3plus-merge
# 	$DATAROOT/clean-wikipedia
# )

DATASETS=$(IFS=','; echo "${DATASETS[*]}")

GBS=1024 # Global batch size # NOTE(me) was 512 with half of the nodes
SEQ_LEN=4096 # Sequence length
CHECKPOINT_STEPS=250

## Debugging ##
LOG_NCCL=false  # Log NCCL_DEBUG=info.
NSYS_PROFILER=false  # Turn on the NSYS profiler.
MOCK_DATA=false  # Set to `true` to use mock data to benchmark the architecture.

EXP_NAME=70b-$SLURM_NNODES-nodes
EXP_DIR=$MEGATRON_LM_DIR/logs/$EXP_NAME
DEBUG_DIR=$EXP_DIR/debug/$SLURM_JOB_ID

export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT=32100
export WORLD_SIZE=$SLURM_NPROCS

ulimit -c 0

## Megatron Args. ## 
NETWORK_SIZE_ARGS=(
	--num-layers 80
	--ffn-hidden-size 43008  # xielu
	--max-position-embeddings $SEQ_LEN
	--untie-embeddings-and-output-weights
)

TRAINING_ARGS=(
	--micro-batch-size 1
	--global-batch-size $GBS
	--rampup-batch-size 512 512 1072164864 # Double the batchsize at ~4392B tokens in.
	--train-samples 3662109375 
	--dataloader-type single
	--manual-gc
	--trigger-path $EXP_DIR/triggers
)

INITIALIZATION_ARGS=(
	--seed 28
	--init-method-std 0.008944
)

CHECKPOINTING_ARGS=(
	--save $EXP_DIR/checkpoints
	--async-save
)
# raise_all
MIXED_PRECISION_ARGS=(
	--bf16
)

DISTRIBUTED_ARGS=(
	--tensor-model-parallel-size 4
	--pipeline-model-parallel-size 8
	--sequence-parallel
	--context-parallel-size 1
)

TOKENIZER_ARGS=(
	--tokenizer-type HuggingFaceTokenizer
	--tokenizer-model alehc/swissai-tokenizer
)

DATA_ARGS=(
	--split 100,0,0
	--seq-length $SEQ_LEN
	--reset-position-ids  # crossDocAttn
	--eod-mask-loss  # crossDocAttn
	--num-workers 32
	--num-dataset-builder-threads 4
)

mkdir -p $DEBUG_DIR

if [ -f $EXP_DIR/triggers/exit ]; then
   echo "[$(date)] Detected exit trigger in $EXP_DIR/triggers/exit, cancelling pending jobs"
   scancel --jobname $SLURM_JOB_NAME
fi

export PYTHONPATH=$MEGATRON_LM_DIR

# Data Args
if [ "$MOCK_DATA" = true ]; then
  DATA_ARGS="${DATA_ARGS[@]} --mock-data"
else
  DATA_ARGS="${DATA_ARGS[@]} --data-path $(python3 $MEGATRON_LM_DIR/scripts/tools/create_data_config.py -p $DATASETS) --data-cache-path $DATASET_CACHE_DIR"
fi

CMD_PREFIX="numactl --membind=0-3"

TRAINING_CMD="python3 $MEGATRON_LM_DIR/pretrain_gpt.py \
    ${NETWORK_SIZE_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${INITIALIZATION_ARGS[@]} \
    ${CHECKPOINTING_ARGS[@]} \
    ${MIXED_PRECISION_ARGS[@]} \
    ${DISTRIBUTED_ARGS[@]} \
    ${TOKENIZER_ARGS[@]} \
    $DATA_ARGS"

# WANDB Logging
if [ -n "$WANDB_API_KEY" ]; then
  echo "[$(date)] WANDB API key detected. Enabling WANDB logging."
  TRAINING_CMD="$TRAINING_CMD \
    --wandb-save-dir $EXP_DIR/logging \
    --wandb-exp-name $EXP_NAME-$SLURM_JOB_ID"
else
  export WANDB_MODE=disabled
fi

# NCCL Debug
if [ "$LOG_NCCL" = true ]; then
  CMD_PREFIX="NCCL_DEBUG=INFO NCCL_DEBUG_FILE=$DEBUG_DIR/nccl-info-\$SLURM_PROCID.txt $CMD_PREFIX"
fi

# NSYS profiler
if [ "$NSYS_PROFILER" = true ]; then
    NSYS_LAUNCHER="nsys profile -s none --trace='nvtx,cudnn,cublas,cuda' --output=$DEBUG_DIR/nsys-trace-procid-\$SLURM_PROCID.nsys-rep --force-overwrite true"
    TRAINING_CMD="$NSYS_LAUNCHER $TRAINING_CMD --profile"
fi

# Save sbatch script
cp $0 $DEBUG_DIR/slurm-script.sh

echo -e "\nCMD: $CMD_PREFIX $TRAINING_CMD" >> compute_environment.txt
printf '=%.0s' {1..100} >> compute_environment.txt

srun -lu bash -c 'echo $(hostname) $(nvidia-smi | grep -o "|\\s*[0-9]*MiB")' > memory_logging.txt

srun --cpus-per-task $SLURM_CPUS_PER_TASK \
	-lu bash -c "RANK=\$SLURM_PROCID LOCAL_RANK=\$SLURM_LOCALID TRITON_HOME=/workspace/triton_home_cache/cache_\$SLURM_PROCID $CMD_PREFIX $TRAINING_CMD"

echo "END TIME: $(date)"
