#!/bin/sh
HERE=$(dirname "$0")
cfg="${HERE}/yaml-beside-script.yaml"
torchrun --nproc-per-node 8 "pretrain_gpt.py" --yaml-cfg "$cfg"
