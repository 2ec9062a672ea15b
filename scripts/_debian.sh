# Builds a free-threaded CPython 3.13 from Debian's source package. Sourced, never run.
#
# apt gets sources and state of its own below the build folder, so the machine's stay as
# they are; only missing compilers and headers are installed system-wide. The mirror is
# the one that the machine's own sources name.

headers=(gcc libc6-dev make patch pkg-config xz-utils ca-certificates
  libbz2-dev libffi-dev liblzma-dev libsqlite3-dev libssl-dev zlib1g-dev)

# build_free_threaded PREFIX: makes PREFIX whole or not at all.
build_free_threaded() {
  set +e # each step is checked where it stands: errexit is off inside conditions
  mkdir -p "${1%/*}" && build=$(mktemp -d "${1%/*}/build.XXXXXX") || return
  trap 'rm -rf "$build"' EXIT
  install_headers && fetch_source && unpack_source && compile "$1" || return
  rm -rf "$1" && mv "$build/stage$1" "$1"
}

install_headers() {
  local package missing=() as_root=()
  for package in "${headers[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null |
      grep -q '^installed' || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  if ((EUID)); then
    as_root=(sudo -n)
    "${as_root[@]}" true 2>/dev/null || {
      say "needs root for this: apt-get install ${missing[*]}"
      return 1
    }
  fi
  long "updating apt's package lists" "${as_root[@]}" apt-get update &&
    long "installing ${missing[*]}" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y --no-install-recommends "${missing[@]}"
}

fetch_source() {
  local mirror
  mkdir -p "$build/lists/partial" "$build/archives/partial"
  for mirror in $(own_mirrors); do
    fetch_source_from "$mirror" && return
  done
  say "none of the machine's apt sources has Python 3.13's source"
  return 1
}

# The folders above dists/ in the machine's own sources. Asks no server.
own_mirrors() {
  apt-get update --print-uris 2>/dev/null |
    sed -n "s|^'\(.*\)/dists/[^/]*/InRelease'.*|\1|p" | sort -u
}

fetch_source_from() {
  local keys=/usr/share/keyrings/debian-archive-keyring.gpg options="" apt
  [[ ! -e $keys ]] || options="[signed-by=$keys]"
  echo "deb-src $options $1 trixie main" >"$build/sources.list"
  apt=(apt-get
    -o Dir::Etc::SourceList="$build/sources.list" -o Dir::Etc::SourceParts=-
    -o Dir::State::Lists="$build/lists" -o Dir::Cache="$build"
    -o APT::Sandbox::User="$(id -un)")
  cd "$build" &&
    long "reading the list of Debian's sources" \
      "${apt[@]}" -o APT::Update::Error-Mode=any update &&
    long "fetching the source of Python 3.13 (23 MB)" \
      "${apt[@]}" source --download-only python3.13
}

# Upstream's source with Debian's fixes (*.patch) and without its packaging (*.diff),
# which moves site-packages and takes pip out.
unpack_source() {
  local fix
  cd "$build" && mkdir source debian || return
  tar -xf python3.13_*.orig.tar.xz -C source --strip-components 1 &&
    tar -xf python3.13_*.debian.tar.xz -C debian --strip-components 1 || return
  cd source || return
  grep '\.patch$' ../debian/patches/series | grep -v stable-abi | while read -r fix; do
    patch -p1 -s -f <"../debian/patches/$fix" || say "a fix does not apply: $fix"
  done
}

compile() {
  local python="$build/stage$1/bin/python3.13t"
  cd "$build/source" || return
  # Without -g, which only makes the build longer.
  long "configuring (1 of 3)" env OPT="-DNDEBUG -O3" ./configure --prefix="$1" \
    --disable-gil --without-ensurepip --disable-test-modules &&
    long "compiling on $(nproc) cores (2 of 3), about 160 core-seconds" \
      make -j "$(nproc)" &&
    long "installing to $1 (3 of 3)" \
      make -j "$(nproc)" altinstall DESTDIR="$build/stage" &&
    "$python" -c 'import bz2, ctypes, lzma, sqlite3, ssl, zlib'
}
