# What the scripts share: messages, progress, environments. Sourced, never run.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Interpreters and pictures that outlive a clone.
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/dataloader-ft

say() {
  printf '[%s] %s\n' "${0##*/}" "$*" >&2
}

die() {
  say "$*"
  exit 1
}

# long WHAT COMMAND...: runs a long command; every ten seconds tells how long it has run
# and its latest line of output, and on failure its last twenty.
long() {
  local what=$1 begun=$SECONDS log
  shift
  say "$what"
  log=$(mktemp)
  if "$@" 2>&1 </dev/null | _progress "$log"; then
    ((SECONDS - begun < 5)) || say "  done in $((SECONDS - begun)) s"
    rm -f "$log"
  else
    tail -n 20 "$log" >&2
    say "failed after $((SECONDS - begun)) s: $what (all output: $log)"
    return 1
  fi
}

_progress() {
  local line latest="" begun=$SECONDS due=$((SECONDS + 10))
  while true; do
    if IFS= read -r -t 1 line; then
      printf '%s\n' "$line" >>"$1"
      latest=$line
    elif (($? <= 128)); then # the end of the output, not a read that timed out
      break
    fi
    if ((SECONDS >= due)); then
      ((${#latest} <= 60)) || latest=...${latest: -57} # compilers name the file last
      say "  $((SECONDS - begun)) s: $latest"
      due=$((SECONDS + 10))
    fi
  done
  cat >>"$1" # bash 3.2 cannot tell the two apart, so the rest comes without progress
}

# make_venv DIR PYTHON: an environment of that interpreter; another's is replaced.
make_venv() {
  local made_from
  made_from=$("$2" -c 'import os, sys
print(os.path.realpath(sys.executable), sys.version)')
  if [[ -x $1/bin/python && $(cat "$1/.made-from" 2>/dev/null) == "$made_from" ]]; then
    return
  fi
  [[ ! -e $1 || -e $1/pyvenv.cfg ]] || die "$1 exists and is no virtual environment"
  say "making $1 with Python ${made_from#* }"
  rm -rf "$1"
  "$2" -m venv "$1"
  # Dependency groups need pip 25.1.
  "$1/bin/python" -m pip install --quiet --upgrade "pip>=25.1"
  printf '%s\n' "$made_from" >"$1/.made-from"
}

# install_package VENV PIP-ARGUMENT...: this package, editable, and what pip is told.
# Only wheels of others: NumPy would else compile for ten minutes on 3.13t.
install_package() {
  local venv=$1 stamp
  shift
  stamp=$venv/.installed-$({
    printf '%s\n' "$@"
    kernels_wanted
    cat pyproject.toml
    grep '^__version__' dataloader/__init__.py
  } | checksum)
  [[ ! -e $stamp || $(kernels_built "$venv") != "$(kernels_wanted)" ]] || return 0
  long "installing the package and what it needs: $*" \
    "$venv/bin/python" -m pip install --only-binary :all: --editable . "$@"
  touch "$stamp"
  mkdir -p build
  kernels_wanted >"$(kernels_file "$venv")"
}

# Kernels lie beside their source, one file for each kind of interpreter. So another
# environment may have built them in another way since, which a note below build/ tells.
kernels_wanted() {
  {
    printf '%s\n' "${DATALOADER_NO_EXT:-}" "${DATALOADER_REQUIRE_EXT:-}" \
      "${DATALOADER_DEBUG_EXT:-}"
    cat setup.py dataloader/_fast/*.pyx
  } | checksum
}

kernels_file() {
  echo "build/kernels-$("$1/bin/python" -c 'import sysconfig
print(sysconfig.get_config_var("SOABI"))')"
}

kernels_built() {
  cat "$(kernels_file "$1")" 2>/dev/null || true
}

checksum() {
  cksum | cut -d ' ' -f 1
}

# torch_wanted ARGUMENT: prints what to install for --with-torch[=VERSION]; fails for
# any other argument.
torch_wanted() {
  case ${1:-} in
    --with-torch) echo torch ;;
    --with-torch=*) echo "torch==${1#*=}" ;;
    *) return 1 ;;
  esac
}

# free_threaded PYTHON: tells whether this is a build without the GIL.
free_threaded() {
  "$1" -c 'import sys, sysconfig
sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))'
}

# run_in VENV ARGUMENT...: becomes that environment's Python, without the GIL if it can.
run_in() {
  local venv=$1
  shift
  if free_threaded "$venv/bin/python"; then
    exec "$venv/bin/python" -X gil=0 "$@"
  fi
  exec "$venv/bin/python" "$@"
}
