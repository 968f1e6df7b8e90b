#!/usr/bin/env bash
# What is to be run on a GPU, in pieces of under ten minutes, unattended and without a network.
#
#   benchmarks/gpu.sh prepare           here: fills .gpu/ with MNIST's decoded cache and with wheels
#                                       (WHEELS: names to fetch, WHEELS_PYTHON: for which version)
#   benchmarks/gpu.sh bench OUT PIECE   there: kernels checked and timed (PIECE likelihood, warp), the
#                                       step by part (128, 1024: its batch), seeds at once (seeds)
#   benchmarks/gpu.sh train PRESET OUT [FLAGS]
#                                       there: trains configs/mnist.py:PRESET for SECONDS_TO_TRAIN
#                                       (480), saves, and resumes when it is called again
#   benchmarks/gpu.sh report PRESET OUT there: curve, exported parameters, table and figures to OUT
#   benchmarks/gpu.sh classify CONFIG:PRESET OUT [FLAGS]
#                                       there: trains configs/CONFIG.py:PRESET, of a model that is
#                                       trained with labels, as `train` does; then its report, and
#                                       that on the affine set, to OUT
#   benchmarks/gpu.sh viewpoint OUT [FLAGS]
#                                       there: the viewpoint report on MNIST, for as many calls as
#                                       its ten runs take
#
# Everything below runs/ and .gpu/ must stay on the machine between the pieces of one training.
set -euo pipefail
cd "$(dirname "$0")/.."
export SCAE_JAX_CACHE="${SCAE_JAX_CACHE:-$PWD/.gpu/cache}" PYTHONUNBUFFERED=1
python="${PYTHON:-python3}"

install_wheels() {
  if compgen -G ".gpu/wheels/*.whl" >/dev/null; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade \
      --target .gpu/site .gpu/wheels/*.whl
    export PYTHONPATH="$PWD/.gpu/site${PYTHONPATH:+:$PYTHONPATH}"
  fi
}

# Runs a command for SECONDS_TO_TRAIN; success where only its time was up, and it had saved.
for_a_while() {
  local code=0
  timeout --foreground --signal=TERM "${SECONDS_TO_TRAIN:-480}" "$@" || code=$?
  # 124: `timeout` had sent the signal on which train.py saves.
  [ "$code" = 0 ] || [ "$code" = 124 ] || return "$code"
  finished=$((code == 0))
}

case "${1:-}" in
prepare)
  mkdir -p .gpu/cache .gpu/wheels
  "$python" - <<'END'
import os
from scae_jax.data.sources import load_dataset

load_dataset("mnist", os.environ.get("TFDS_DATA_DIR", ""), os.environ["SCAE_JAX_CACHE"])
END
  if [ -n "${WHEELS:-}" ]; then
    # shellcheck disable=SC2086  # several names
    "$python" -m pip download -q --no-deps --only-binary=:all: \
      --python-version "${WHEELS_PYTHON:-3.12}" --implementation cp --platform manylinux_2_28_x86_64 \
      --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d .gpu/wheels $WHEELS
  fi
  du -sh .gpu
  ;;
bench)
  install_wheels
  out="$2" piece="$3"
  mkdir -p "$out"
  case "$piece" in
  likelihood)
    "$python" -m benchmarks.likelihood --block=64,128,256 --out="$out/likelihood-gpu.json"
    ;;
  warp)
    "$python" -m benchmarks.warp --out="$out/warp-gpu.json"
    ;;
  seeds)
    "$python" -m benchmarks.seeds --steps=100 --out="$out/seeds-gpu.json"
    ;;
  *)
    step=("$python" -m benchmarks.step --batch="$piece" --steps=100)
    "${step[@]}" --out="$out/step-gpu-$piece.json"
    "${step[@]}" --whole --model=part_decoder.likelihood=fused \
      --out="$out/step-gpu-$piece-fused.json"
    "${step[@]}" --whole --model=compute_dtype=bfloat16 --out="$out/step-gpu-$piece-bfloat16.json"
    ;;
  esac
  ;;
train)
  install_wheels
  preset="$2" out="$3"
  mkdir -p "$out"
  for_a_while "$python" train.py \
    --config="configs/mnist.py:$preset" --config.train.keep_checkpoints=100 "${@:4}"
  cp "runs/mnist-$preset/metrics.jsonl" "$out/metrics-$preset.jsonl"
  ;;
report)
  install_wheels
  preset="$2" out="$3" run="runs/mnist-$2"
  mkdir -p "$out"
  "$python" -m results.curve "$run" "$out" --max_examples=10000
  "$python" evaluate.py --workdir="$run"
  "$python" -m results.export "$run" "$out/pretrained-$preset" --dtype=float16
  "$python" -m results.summarize "$out/table-$preset" "$run"
  tar -C "$run" -czf "$out/evaluation-$preset.tar.gz" evaluation
  ;;
classify)
  install_wheels
  config="${2%%:*}" preset="${2#*:}" out="$3" run="runs/${2/:/-}"
  mkdir -p "$out"
  for_a_while "$python" train.py --config="configs/$config.py:$preset" "${@:4}"
  cp "$run/metrics.jsonl" "$out/metrics-$config-$preset.jsonl"
  if [ "$finished" = 1 ]; then
    "$python" evaluate.py --workdir="$run" --dataset=affine_mnist
    tar -C "$run" -czf "$out/evaluation-$config-$preset.tar.gz" evaluation
  fi
  ;;
viewpoint)
  install_wheels
  mkdir -p "$2"
  for_a_while "$python" -m results.viewpoint mnist "$2" "${@:3}"
  ;;
*)
  sed -n '2,20p' "$0"
  exit 2
  ;;
esac
