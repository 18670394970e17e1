#!/bin/bash
#SBATCH --nodes=2
# Options on the command line are ignored beside --yaml-cfg.

MASTER=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)

srun --ntasks-per-node=1 torchrun --nnodes=2 --nproc_per_node=8 --rdzv_endpoint=$MASTER:6000 \
    pretrain_gpt.py \
    --yaml-cfg yaml-sections.yaml --seq-length 128
