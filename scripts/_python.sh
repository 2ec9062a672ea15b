# Finds or makes the interpreters that the scripts run on. Sourced, never run.

# usable PYTHON free|gil: it runs (a pyenv shim may not), is of that kind and not too
# old, can make environments, and has its headers if kernels must be compiled.
usable() {
  "$1" - "$2" >/dev/null 2>&1 <<'PY'
import ensurepip, os, ssl, sys, sysconfig, venv, zlib
free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
headers = os.path.join(sysconfig.get_path("include"), "Python.h")
required = os.environ.get("DATALOADER_REQUIRE_EXT", "") not in ("", "0")
sys.exit(
    sys.version_info < (3, 11)
    or free != (sys.argv[1] == "free")
    or (required and not os.path.exists(headers))
)
PY
}

# first_usable free|gil CANDIDATE...: prints the first that is usable.
first_usable() {
  local kind=$1 candidate
  shift
  for candidate in "$@"; do
    if usable "$candidate" "$kind"; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# set_up VENV PIP-ARGUMENT...: readies an environment for work.
set_up() {
  find_python
  make_venv "$1" "$python"
  install_package "$@"
}

# find_python: sets `python` to the interpreter for work, free-threaded if there is one
# or one can be had.
find_python() {
  local step
  if [[ -n ${PYTHON:-} ]]; then
    python=$(command -v "$PYTHON") || die "PYTHON=$PYTHON is not there"
    say "interpreter: $python (from \$PYTHON)"
    return
  fi
  for step in from_path_new from_uv from_path_old from_cache from_debian; do
    if python=$($step) && usable "$python" free; then
      say "interpreter: $python"
      return
    fi
  done
  python=$(gil_python) || die "no Python from 3.11 on found: set PYTHON to one"
  say "interpreter: $python"
  say "  WITH THE GIL: no free-threaded Python was found or could be made."
  say "  All works, but threads take turns. Set PYTHON to a python3.14t for speed."
}

from_path_new() { first_usable free python3.14t python3.15t; }
from_path_old() { first_usable free python3.13t; }
from_cache() { first_usable free "$cache/cpython-3.13t/bin/python3.13t"; }

from_uv() {
  command -v uv >/dev/null || return
  uv python find --no-python-downloads 3.14t 2>/dev/null && return
  # Where one was built earlier, uv could not bring one: don't wait for it again.
  ! from_cache >/dev/null || return
  local limit=""
  ! command -v timeout >/dev/null || limit="timeout 300"
  # shellcheck disable=SC2086
  long "asking uv for Python 3.14t" \
    env UV_HTTP_TIMEOUT=20 $limit uv python install 3.14t || return
  uv python find 3.14t
}

from_debian() {
  command -v apt-get >/dev/null && grep -q '^ID=debian' /etc/os-release || return
  say "no free-threaded Python here: building 3.13t from Debian's source, once"
  # shellcheck source=scripts/_debian.sh
  (source scripts/_debian.sh && build_free_threaded "$cache/cpython-3.13t") >&2 ||
    return
  from_cache
}

# gil_python [VERSION...]: prints a GIL interpreter of the first version to be had, in
# the order given, then of any other from 3.11 on.
gil_python() {
  local version pyenv=${PYENV_ROOT:-$HOME/.pyenv}
  for version in "$@" 3.14 3.13 3.12 3.11 3.15; do
    first_usable gil "python$version" "/usr/bin/python$version" \
      "$pyenv/versions/$version".*/bin/python && return
  done
  first_usable gil python3 python /usr/bin/python3
}
