#!/usr/bin/env bash
# Repeats whole tiers with one core kept busy, and counts failures: `make strain RUNS=10`.
#
#   strain.sh <runs> <what…>      what: live, e2e, demo, test
#
# The commit at HEAD is cloned and built below the cache, so that work in the checkout can go on. Results are kept there,
# one file a run: a strain that was interrupted continues with the missing runs. A run that fails stays failed;
# nothing is run again. The end writes the tally into docs/internals/contributing.md.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PAGE=$REPO/docs/internals/contributing.md
runs=${1:?usage: strain.sh <runs> <what…>}
shift
cd "$REPO"
commit=$(git rev-parse --short=8 HEAD)
home=$CACHE/strain/$commit
tree=$home/tree

prepare() {
  "$ENV_DIR/packages.sh" strain
  mkdir -p "$home/results" "$home/log"
  [ -d "$tree/.git" ] || quietly git clone --quiet --no-hardlinks "$REPO" "$tree"
  quietly git -C "$tree" checkout --quiet "$commit"
  # Settings of the checkout, and of the make that called, stay there.
  unset MAKEFLAGS MFLAGS MAKELEVEL CARGO_TARGET_DIR
  (cd "$tree" && make --no-print-directory setup)
  long_step 480 "building $commit" make --no-print-directory -C "$tree" build-tests
}

busy_core() {
  stress-ng --cpu 1 --quiet &
  trap 'kill '"$!"' 2>/dev/null || true' EXIT
}

# target <what>: the make target that runs it.
target() {
  case $1 in
    live) printf test-live ;;
    e2e | demo | test) printf '%s' "$1" ;;
    *) die "strain.sh: what is live, e2e, demo or test, not '$1'" ;;
  esac
}

# one <what> <run>: runs it unless it was, and records `passed|failed <seconds> <date> <tests that failed>`.
one() {
  local what=$1 run=$2 result=$home/results/$1.$2 log=$home/log/$1.$2.log start=$SECONDS outcome=passed failed
  [ ! -e "$result" ] || return 0
  say "strain: $what, run $run of $runs"
  make --no-print-directory -C "$tree" "$(target "$what")" >"$log" 2>&1 </dev/null || outcome=failed
  failed=$(sed -nE 's/^ +(FAIL|TIMEOUT|SIG[A-Z]+) \[[^]]*\] (\([^)]*\) )?([^ ]+) (.*)$/\4/p' "$log" | sort -u | paste -sd ' ')
  printf '%s %s %s %s\n' "$outcome" $((SECONDS - start)) "$(date -u +%F)" "$failed" >"$result.new"
  mv "$result.new" "$result"
  say "strain: $what, run $run $outcome after $(duration $((SECONDS - start)))${failed:+: $failed}"
}

# row <what>: a line of the tally.
row() {
  local files=("$home/results/$1".*)
  [ -e "${files[0]}" ] || return 0
  cat "${files[@]}" | awk -v commit="$commit" -v what="$1" '
    { if ($1 == "failed") failures++; if ($3 > date) date = $3; total += $2
      for (i = 4; i <= NF; i++) names[$i]++ }
    END {
      list = ""
      for (name in names) list = list (list == "" ? "" : ", ") "`" name "`" (names[name] > 1 ? " (" names[name] "×)" : "")
      printf "| %s | %s | %s | %d | %d | %d min %d s | %s |\n", commit, date, what, NR, failures,
        total / NR / 60, (total / NR) % 60, list
    }'
}

# Replaces the rows of this commit between the page's two marks, and leaves those of others.
tally() {
  local what rows
  rows=$(for what in live e2e demo test; do row "$what"; done)
  awk -v rows="$rows" -v commit="$commit" '
    /^<!-- strain -->$/ { inside = 1 }
    /^<!-- \/strain -->$/ { print rows; inside = 0 }
    inside && index($0, "| " commit " |") == 1 { next }
    { print }' "$PAGE" >"$PAGE.new"
  mv "$PAGE.new" "$PAGE"
  printf '%s\n' "$rows"
}

for what in "$@"; do target "$what" >/dev/null; done
prepare
busy_core
for run in $(seq "$runs"); do
  for what in "$@"; do one "$what" "$run"; done
done
tally
! grep -q ^failed "$home"/results/* || die "strain: some runs failed; logs are in $home/log"
