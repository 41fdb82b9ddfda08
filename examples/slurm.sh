#!/usr/bin/env bash
# A run on the nodes of a Slurm job: Ray on all of them, the controller on the first. When the job's time is nearly up,
# the run writes a checkpoint and ends; submit the same script again and it goes on. Home directories are taken to be
# shared between the nodes, as is usual: Ray's nodes find each other's token there.
#
#   sbatch examples/slurm.sh run.yaml /shared/runs/first
#
#SBATCH --job-name=scalerl
#SBATCH --nodes=10
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@600
#SBATCH --requeue
set -euo pipefail
settings=$1 run=$2
port=${RAY_PORT:-6379}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# Without a token whoever reaches the port could run anything here.
export RAY_AUTH_MODE=token
ray get-auth-token --generate >/dev/null

# A step of its own on each node keeps Ray running until the job ends; --block makes its life that of the step.
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port="$port" --block &
until (: >"/dev/tcp/$head/$port") 2>/dev/null; do sleep 1; done
if ((SLURM_JOB_NUM_NODES > 1)); then
  others=$((SLURM_JOB_NUM_NODES - 1))
  srun --nodes="$others" --ntasks="$others" --exclude="$head" ray start --address="$head:$port" --block &
fi

if [[ -f $run/config.yaml ]]; then
  command=(scalerl resume "$run")
else
  command=(scalerl train "$settings" engines.launch=ray --out "$run")
fi
# This script runs on the first node, and it is what Slurm signals: hand that on, and wait for the checkpoint.
export RAY_ADDRESS="$head:$port"
"${command[@]}" &
controller=$!
trap 'kill -TERM $controller' TERM
wait "$controller" || wait "$controller"
