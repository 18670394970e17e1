#!/bin/bash
# Launcher with options of its own.

set -euo pipefail

DATA=""
CACHE=/scratch/cache
SEQ=4096
GBS=512
MOCK=0
NODES=1
PASS=()

usage() {
    echo "usage: $0 --data PREFIX [--seq N] [--nodes N] [--mock] [-- MEGATRON OPTIONS]" >&2
    exit 1
}

while [[ $# -gt 0 ]]; do
    case $1 in
        -d|--data)
            DATA="$DATA $2"
            shift 2
            ;;
        --seq)
            SEQ="$2"; shift; shift ;;
        --nodes) NODES=$2; shift 2 ;;
        --gbs=*)
            GBS="${1#*=}"
            shift
            ;;
        --mock)
            MOCK=1
            shift
            ;;
        --)
            shift
            PASS+=("$@")
            break
            ;;
        -h | --help) usage ;;
        *)
            echo "unknown option $1"
            usage
            ;;
    esac
done

if [ "$MOCK" -eq 1 ]; then
    DATA_ARGS="--mock-data"
elif [[ -n "$DATA" ]]; then
    DATA_ARGS="--data-path $DATA --split 99,1,0"
else
    usage
fi

nohup torchrun --nnodes="$NODES" --nproc_per_node=8 pretrain_gpt.py \
    --seq-length $SEQ --micro-batch-size 1 --global-batch-size $GBS \
    --train-iters 1000 --eval-interval 100 --eval-iters 5 \
    --data-cache-path "$CACHE" $DATA_ARGS ${PASS[@]+"${PASS[@]}"} > train.log 2>&1 &
echo "started $!"
