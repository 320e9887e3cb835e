# shellcheck shell=bash
# apt with a root of its own for one suite and one script: fetches packages of other suites than the
# machine's without touching the machine, several scripts at the same time. Source it after lib.sh; it does nothing by itself.

# apt_of <suite> <apt-get arguments…>: uses the one suite and ignores the machine's preferences.
# The archive's signature is checked, its age is not: mirrors lag behind sid, whose lists are valid
# for a week.
apt_of() {
  local suite=$1 root
  root=$(apt_root "$1")
  shift
  apt-get -qq -o Dir::Etc::sourcelist="$root/debian.sources" -o Dir::Etc::sourceparts=- \
    -o Dir::Etc::preferences=- -o Dir::Etc::preferencesparts=- -o APT::Default-Release="$suite" \
    -o Dir::State::lists="$root/lists" -o Dir::Cache="$root/cache" -o APT::Sandbox::User="$(id -un)" \
    -o Acquire::Check-Valid-Until=false -o Acquire::Languages=none -o Acquire::Retries=3 "$@"
}

apt_root() { printf '%s' "$CACHE/apt/$1.$$"; }

# write_sources <suite> [types]: the suite's root, empty; `deb deb-src` asks for sources as well.
write_sources() {
  local root types=${2:-deb} mirror
  root=$(apt_root "$1")
  mirror=$("$ENV_DIR/mirror.sh")
  mkdir -p "$root/lists/partial" "$root/cache/archives/partial"
  printf 'Types: %s\n%s\nSuites: %s\nComponents: main\n' "$types" "$mirror" "$1" \
    >"$root/debian.sources"
}
