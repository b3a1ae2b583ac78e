#!/bin/sh
# A job of any length in slots of ten minutes: `sbatch job.sh -- ./program arguments`.
#SBATCH --requeue --open-mode=append
#SBATCH --time=10 --signal=B:USR1@120
#SBATCH --gres=gpu:1
exec stasis slurm-run --every 5m "$@"
