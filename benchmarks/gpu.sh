#!/usr/bin/env bash
# What is to be run on a GPU, in calls of under ten minutes, unattended and without a network.
#
#   gpu.sh prepare                  here: fills .gpu/ with MNIST's decoded cache (TFDS_DATA_DIR says
#                                   where MNIST is), with wheels (WHEELS: names, WHEELS= for none;
#                                   WHEELS_PYTHON: for which version) and with the commit
#   gpu.sh bench OUT PIECE...       there: kernels checked and timed (PIECE likelihood, warp), the
#                                   step by part (128, 1024: its batch), seeds at once (seeds)
#   gpu.sh train RUN CONFIG:PRESET OUT [FLAGS]
#                                   there: trains configs/CONFIG.py:PRESET in runs/RUN and saves;
#                                   goes on when it is called again. Another RUN for other FLAGS
#   gpu.sh save RUN OUT [COUNT]     there: the newest checkpoint of runs/RUN, or COUNT of them, with
#                                   config, metrics and points of the curve, in pieces to OUT
#   gpu.sh restore RUN [FOLDER]     there: puts back what `save` wrote, from FOLDER (.gpu/saved);
#                                   leaves a run that is there as it is
#   gpu.sh report RUN OUT [FLAGS]   there: report, exported parameters and table, then the curve,
#                                   which goes on when it is called again (FLAGS: --steps=1000,2000);
#                                   of several seeds at once the best is exported, by held-out loss
#   gpu.sh classify RUN CONFIG:PRESET OUT [FLAGS]
#                                   there: as train, of a model that is trained with labels; once it
#                                   is finished, also its reports, the one on the affine set too
#   gpu.sh viewpoint OUT [FLAGS]    there: the viewpoint report on MNIST, for as many calls as its
#                                   ten runs take
#
# A call ends by itself: SECONDS_TO_RUN (480) after its start what runs is told to save, and
# SECONDS_TO_KILL (60) later it is killed. Code 0: finished, or its time was up and something is
# saved. PYTHON (python3; in `prepare` .venv/bin/python if that is there) is what runs all.
#
# What comes to OUT is metrics, and NAME.tar.gz.aa, .ab, ... of 15 MiB each; unpack by
# `cat NAME.tar.gz.* | tar -xz`. At most 8 files of 16 MiB, 64 MiB together, come back (`save`
# refuses more than MOST_MIB, 62); the checkout with what is carried must stay below 64 MiB. A
# checkpoint takes 12 bytes a parameter and seed: 41 MiB for one seed of mnist:official, which fits
# both ways, beside the checkout (6 MiB) and .gpu/ (13 MiB). Five seeds at once, 203 MiB, fit
# neither way: train and report them while one machine is warm, or each seed as a RUN of its own
# (--config.train.seed=N).
#
# Carry .gpu in every call. That replaces .gpu there, .gpu/cache too, so calls keep what they make
# in runs/, which stays while the machine is warm: 30 s after a call, 30 minutes in all. Prepare
# again after each commit. A session of 30 minutes, one `run` a line:
#
#   bash benchmarks/gpu.sh bench $OUT likelihood 128 warp
#   bash benchmarks/gpu.sh train official mnist:official $OUT && \
#     bash benchmarks/gpu.sh save official $OUT
#   bash benchmarks/gpu.sh report official $OUT
#
# In the next session, or where the machine was lost, `rm -f .gpu/saved/*` and
# `cp FILES_AT/save-* .gpu/saved/` here, and the second line is
#
#   bash benchmarks/gpu.sh restore official && \
#     bash benchmarks/gpu.sh train official mnist:official $OUT && \
#     bash benchmarks/gpu.sh save official $OUT
set -euo pipefail
cd "$(dirname "$0")/.."
made=runs/.gpu
export SCAE_JAX_CACHE="${SCAE_JAX_CACHE:-$PWD/.gpu/cache}" PYTHONUNBUFFERED=1
python="${PYTHON:-python3}"
failed=0

usage() {
  awk 'NR > 1 { if (!/^#/) exit; print }' "$0"
  exit 2
}

# Before anything else there: wheels, where compiled programs are kept, and the commit, with -dirty
# where a file is not what it was when `prepare` ran.
begin() {
  export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$PWD/$made/compiled}"
  mkdir -p "$made"
  if compgen -G ".gpu/wheels/*.whl" >/dev/null; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade \
      --target "$made/site" .gpu/wheels/*.whl
    export PYTHONPATH="$PWD/$made/site${PYTHONPATH:+:$PYTHONPATH}"
  fi
  if [ -f .gpu/commit ]; then
    SCAE_JAX_COMMIT="$(cat .gpu/commit)"
    if ! awk '{ print $3 }' .gpu/sums | xargs cksum 2>/dev/null | cmp -s - .gpu/sums; then
      SCAE_JAX_COMMIT="${SCAE_JAX_COMMIT%-dirty}-dirty"
    fi
    export SCAE_JAX_COMMIT
  fi
}

# Runs a command until the time of this call is up; 124 is then its code, for `timeout` has sent the
# signal on which train.py saves, also if it had to be killed.
in_time() {
  local end="${SECONDS_TO_RUN:-480}" code=0
  local left=$((end - SECONDS))
  if [ "$left" -le 0 ]; then
    echo "no time is left for: $*" >&2
    return 124
  fi
  timeout --foreground --signal=TERM --kill-after="${SECONDS_TO_KILL:-60}" "$left" "$@" || code=$?
  # Before its time, 137 is of a process that was killed for its memory.
  if [ "$code" = 137 ] && [ "$SECONDS" -ge "$end" ]; then
    code=124
  fi
  return "$code"
}

# A command whose failure costs the exit code, and nothing that comes after it.
stage() {
  in_time "$@" || failed=1
}

# Steps that have a checkpoint in a run, or in any of a folder of runs; the newest is the last.
steps_of() {
  [ -d "$1" ] || return 0
  find "$1" -type d -path '*/checkpoints/*' -prune |
    sed -n 's|.*/checkpoints/\([0-9][0-9]*\)$|\1|p' | sort -n
}

# Whether a code of `in_time` is a success: 0, or 124 where something, the other argument, is saved.
succeeded() {
  [ "$1" = 0 ] || { [ "$1" = 124 ] && [ -n "$2" ]; }
}

# pack NAME OUT FOLDER FILE...: those of a folder's files that are there, in pieces.
pack() {
  local name="$1" out="$2" folder="$3" file found=()
  for file in "${@:4}"; do
    [ ! -e "$folder/$file" ] || found+=("$file")
  done
  rm -f "$out/$name".tar.gz.*
  [ "${#found[@]}" != 0 ] || return 0
  tar -C "$folder" -czf - "${found[@]}" | split -b 15m - "$out/$name.tar.gz."
}

# The newest step of a run; ends where there is none.
newest_of() {
  local step
  step="$(steps_of "runs/$1" | tail -n 1)"
  if [ -z "$step" ]; then
    echo "runs/$1 has no checkpoint: train or restore it first" >&2
    exit 1
  fi
  echo "$step"
}

# train_run RUN CONFIG:PRESET OUT [FLAGS]; its code is that of train.py, or 124.
train_run() {
  local folder="runs/$1" config="${2%%:*}" preset="${2#*:}" out="$3" code=0 step
  in_time "$python" train.py --config="configs/$config.py:$preset" --workdir="$folder" \
    "${@:4}" || code=$?
  # Also of a training that failed: they may say why.
  [ ! -f "$folder/metrics.jsonl" ] || cp "$folder/metrics.jsonl" "$out/metrics-${1//\//-}.jsonl"
  step="$(steps_of "$folder" | tail -n 1)"
  echo "$folder: newest checkpoint ${step:-none}, code $code"
  if [ "$code" = 0 ]; then
    mkdir -p "$folder/report"
    echo "$step" >"$folder/report/evaluated" # train.py ends with the report
  fi
  return "$code"
}

case "${1:-} $#" in
"prepare 1")
  if [ -z "${PYTHON:-}" ] && [ -x .venv/bin/python ]; then
    python=.venv/bin/python
  fi
  mkdir -p .gpu/cache .gpu/wheels .gpu/saved
  rm -f .gpu/commit .gpu/sums .gpu/wheels/*.whl
  if commit="$(git describe --always --dirty --abbrev=12)"; then
    echo "$commit" >.gpu/commit
    git ls-files '*.py' '*.sh' '*.toml' | xargs cksum >.gpu/sums
  fi
  "$python" - <<'END'
import os
from scae_jax.data.sources import load_dataset

load_dataset("mnist", os.environ.get("TFDS_DATA_DIR", ""), os.environ["SCAE_JAX_CACHE"])
END
  wheels="${WHEELS-ml_collections beartype}"
  if [ -n "$wheels" ]; then
    # shellcheck disable=SC2086  # several names
    "$python" -m pip download -q --no-deps --only-binary=:all: -c requirements.txt \
      --python-version "${WHEELS_PYTHON:-3.12}" --implementation cp \
      --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
      --platform manylinux2014_x86_64 -d .gpu/wheels $wheels
  fi
  du -sh .gpu
  ;;
"bench 1" | "bench 2" | "train "[123] | "save "[12] | "restore 1" | "report "[12] | \
  "classify "[123] | "viewpoint 1")
  usage
  ;;
"bench "*)
  begin
  out="$2"
  mkdir -p "$out" "$made/bench"
  # measure NAME MODULE [FLAGS]; packs all there is so far, so that it comes back whatever follows.
  measure() {
    rm -f "$made/bench/$1.json"
    stage "$python" -m "benchmarks.$2" "${@:3}" --out="$made/bench/$1.json"
    pack bench "$out" "$made" bench
  }
  for piece in "${@:3}"; do
    case "$piece" in
    likelihood)
      # A process each: a kernel that breaks the device's memory breaks no other.
      for block in 64 128 256; do
        measure "likelihood-gpu-$block" likelihood --block="$block"
      done
      ;;
    warp) measure warp-gpu warp ;;
    seeds) measure seeds-gpu seeds --steps=100 ;;
    *[!0-9]*) usage ;;
    *)
      step=(step --batch="$piece" --steps=100)
      measure "step-gpu-$piece" "${step[@]}"
      measure "step-gpu-$piece-fused" "${step[@]}" --whole --model=part_decoder.likelihood=fused
      measure "step-gpu-$piece-bfloat16" "${step[@]}" --whole --model=compute_dtype=bfloat16
      for method in gather_products products; do
        measure "step-gpu-$piece-$method" "${step[@]}" --whole --model="part_decoder.warp=$method"
      done
      ;;
    esac
  done
  ;;
"train "*)
  begin
  run="$2" out="$4" code=0
  mkdir -p "$out"
  train_run "$run" "$3" "$out" --config.train.keep_checkpoints=100 "${@:5}" || code=$?
  succeeded "$code" "$(steps_of "runs/$run")" || failed="$code"
  ;;
"save "*)
  run="$2" out="$3" name="save-${2//\//-}"
  mkdir -p "$out"
  newest_of "$run" >/dev/null
  mapfile -t steps < <(steps_of "runs/$run" | tail -n "${4:-1}")
  pack "$name" "$out" "runs/$run" config.json data.json metrics.jsonl \
    "report/curve-${run##*/}.json" "${steps[@]/#/checkpoints/}"
  bytes=$(cat "$out/$name".tar.gz.* | wc -c)
  echo "$name: steps ${steps[*]}, $((bytes >> 20)) MiB"
  if [ "$bytes" -gt $((${MOST_MIB:-62} << 20)) ]; then
    rm -f "$out/$name".tar.gz.*
    echo "more than ${MOST_MIB:-62} MiB do not come back; save fewer checkpoints or seeds" >&2
    exit 1
  fi
  ;;
"restore "*)
  run="$2" folder="${3:-.gpu/saved}" name="save-${2//\//-}"
  if [ -n "$(steps_of "runs/$run")" ]; then
    echo "runs/$run is there, with step $(newest_of "$run")"
    exit 0
  fi
  if ! compgen -G "$folder/$name.tar.gz.*" >/dev/null; then
    echo "$folder has no $name.tar.gz.*: put there what save wrote, and carry it" >&2
    exit 1
  fi
  rm -rf "$made/restored"
  mkdir -p "$made/restored"
  cat "$folder/$name".tar.gz.* | tar -C "$made/restored" -xzf -
  rm -rf "runs/$run"
  mkdir -p "$(dirname "runs/$run")"
  mv "$made/restored" "runs/$run"
  echo "runs/$run is restored, with step $(newest_of "$run")"
  ;;
"report "*)
  begin
  run="runs/$2" out="$3" name="report-${2//\//-}" code=0
  step="$(newest_of "$2")"
  mkdir -p "$out" "$run/report"
  if [ "$(cat "$run/report/evaluated" 2>/dev/null)" != "$step" ]; then
    rm -f "$run/report/evaluated"
    if in_time "$python" evaluate.py --workdir="$run"; then
      echo "$step" >"$run/report/evaluated"
    else
      failed=1
    fi
  fi
  stage "$python" -m experiments.export "$run" "$run/report/pretrained" --dtype=float16
  stage "$python" -m experiments.summarize "$run/report/table" "$run"
  # Twice: a call that is killed in the curve has brought the rest.
  pack "$name" "$out" "$run" config.json metrics.jsonl evaluation report
  in_time "$python" -m experiments.curve "$run" "$run/report" --max_examples=10000 "${@:4}" || code=$?
  succeeded "$code" "$(compgen -G "$run/report/curve-*.json" || true)" || failed="$code"
  pack "$name" "$out" "$run" config.json metrics.jsonl evaluation report
  ;;
"classify "*)
  begin
  run="$2" out="$4" code=0
  mkdir -p "$out"
  train_run "$run" "$3" "$out" "${@:5}" || code=$?
  succeeded "$code" "$(steps_of "runs/$run")" || failed="$code"
  if [ "$code" = 0 ]; then
    stage "$python" evaluate.py --workdir="runs/$run" --dataset=affine_mnist
  fi
  pack "evaluation-${run//\//-}" "$out" "runs/$run" config.json evaluation
  ;;
"viewpoint "*)
  begin
  code=0
  mkdir -p "$2"
  in_time "$python" -m experiments.viewpoint mnist "$2" "${@:3}" || code=$?
  succeeded "$code" "$(steps_of runs/viewpoint-mnist)" || failed="$code"
  ;;
*)
  usage
  ;;
esac
exit "$failed"
