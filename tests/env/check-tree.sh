#!/usr/bin/env bash
# Rules of the tree that no compiler enforces. Prints every breach, then fails.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

breaches=0
breach() {
  printf 'check-tree: %s\n' "$*" >&2
  breaches=$((breaches + 1))
}

# breach_of <rule> <git grep arguments…>: every line found is a breach.
breach_of() {
  local rule=$1 line
  shift
  while IFS= read -r line; do breach "$rule: $line"; done < <(git grep -nI "$@" || true)
}

long_files() {
  local file lines
  while IFS= read -r file; do
    lines=$(wc -l <"$file")
    [ "$lines" -le 800 ] || breach "$file has $lines lines, the limit is 800"
  done < <(git ls-files -- '*.rs')
}

unfinished() {
  # Spelled so that this file does not find itself.
  breach_of "unfinished work" -E '\b(TO[D]O|FIX[M]E|X[X]X)\b' -- ':!tests/fixtures' ':!*.lock'
  breach_of "a test that never runs" -E '#\[ignor[e]' -- '*.rs'
}

# The name the project had before its first release, in contents and in paths. Another project has it.
former_name() {
  local name
  breach_of "the project's former name" -iE 'st[e]ward|\bst[w]d' -- ':!tests/fixtures'
  while IFS= read -r name; do breach "the project's former name: $name"; done < <(git ls-files | grep -iE 'st[e]ward')
}

# Words that say nothing to an engineer who has not read this code; docs/glossary.md has the terms to use. Only words
# without an honest use are listed. Spelled so that this file does not find itself.
plain_words() {
  breach_of "use the terms of docs/glossary.md" -iE \
    '[k]inship|[f]arewell|\b[u]nwell\b|\b[a]sleep\b|\b[f]olding\b|\b[f]ounding\b|[r]ehears(al|e)|\b[t]he peer.s\b|\b[n]obody knows\b|\b[t]estimony\b|\b[u]nlook' \
    -- ':!tests/fixtures' ':!LICENSE'
}

# Subjects since the project has its name: `git log --oneline` must fit a terminal.
commit_subjects() {
  local renamed line
  renamed=$(git log -1 --format=%H --grep='^rename the project to etcd-mainstay$' 2>/dev/null) || return 0
  [ -n "$renamed" ] || return 0
  while IFS= read -r line; do
    [ "${#line}" -le 72 ] || breach "a commit subject has ${#line} characters, the limit is 72: $line"
  done < <(git log --no-merges --format=%s "$renamed..HEAD")
}

# The names of every package a crate needs to be built and run, as the dependency graph has them.
reach() { cargo tree --quiet --edges normal,build --prefix none --format '{p}' "$@" | awk '{ print $1 }' | sort -u; }

forbid() {
  local crate=$1 reached name
  shift
  cargo metadata --quiet --no-deps --format-version 1 | grep -q "\"name\":\"$crate\"" || return 0
  reached=$(reach --package "$crate" --all-features)
  for name in "$@"; do
    ! grep -qx "$name" <<<"$reached" || breach "$crate reaches $name: cargo tree -p $crate -i $name"
  done
}

directions() {
  local crate name everything
  for crate in mainstay-ids mainstay-bbolt mainstay-wal mainstay-mvcc mainstay-archive; do
    forbid "$crate" tokio kube object_store tracing mainstay-testkit
  done
  for crate in mainstay-manifests mainstay-verdict; do
    forbid "$crate" tokio kube object_store tracing mainstay-testkit
  done
  for crate in mainstay-restorer mainstay-sidecar mainstay-store mainstay-backup mainstay-etcd mainstay-datadir mainstay-telemetry mainstay-crds mainstay-coordination; do
    forbid "$crate" mainstay-testkit mainstay-controller
  done
  forbid mainstay-backup kube mainstay-datadir mainstay-coordination
  forbid mainstay-etcd kube object_store mainstay-store
  forbid mainstay-engine kube object_store tonic prost mainstay-store mainstay-archive mainstay-testkit
  forbid mainstay-crds tokio mainstay-store
  forbid mainstay-controller mainstay-backup mainstay-bbolt mainstay-wal mainstay-mvcc mainstay-testkit
  everything=$(reach --workspace --all-features --edges normal,build,dev)
  for name in openssl-sys native-tls; do
    ! grep -qx "$name" <<<"$everything" || breach "$name is linked: cargo tree --workspace -i $name"
  done
}

# The verbs of the restorer do not import each other: what two of them need is a module beside `commands`.
verbs() {
  local file verb other
  while IFS= read -r file; do
    verb=${file#restorer/src/commands/}
    verb=${verb%%/*}
    verb=${verb%.rs}
    for other in $(git ls-files -- restorer/src/commands | sed -nE 's#^restorer/src/commands/([a-z_]+)(/.*|\.rs)$#\1#p' | sort -u); do
      [ "$other" = "$verb" ] || [ "$other" = mod ] || [ "$verb" = mod ] ||
        breach_of "the verb $verb imports the verb $other" -E "(commands|use super(::super)*)::(\{[^}]*\b)?$other\b" -- "$file"
    done
  done < <(git ls-files -- 'restorer/src/commands/*.rs')
}

# The hosts this machine fetches packages from. None is named here: a tree that works everywhere
# knows no mirror.
registry_hosts() {
  {
    cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null
    cat "${CARGO_HOME:-$HOME/.cargo}"/config{,.toml} 2>/dev/null
    env | grep -E '^(PIP|UV|NPM|npm|CARGO)_[A-Za-z_]*='
    command -v pip >/dev/null && pip config list 2>/dev/null
    command -v npm >/dev/null && npm config get registry 2>/dev/null
  } | grep -oE '[a-z+]+://[^/"'\''[:space:]]+' | sed -E 's#^.*://##; s#^.*@##; s#:[0-9]+$##' |
    grep '[.]' | grep -vxE 'github\.com|localhost|127(\.[0-9]+){3}' | sort -u
}

places() {
  local host
  while IFS= read -r host; do
    breach_of "a package registry is named" -F "$host" -- ':!tests/fixtures' ':!*.lock'
  done < <(registry_hosts)
  breach_of "a path of a developer's machine" -E '(^|[^A-Za-z0-9_.$}])/(hom[e]/[a-z]|roo[t]/)' -- \
    ':!tests/fixtures'
  [ "$REPO" = / ] || breach_of "the path of this checkout" -F "$REPO" -- ':!tests/fixtures'
}

# Debian packages, one a line: of the machines that build and test, and of the images' build.
packages_of_machines() {
  sed -nE 's/^.*\bneed "[^"]*" ([a-z0-9+. -]+).*$/\1/p' tests/env/packages.sh | tr -s ' ' '\n' | grep . | sort -u
}
packages_of_images() {
  sed -e ':join' -e '/\\$/{ N; s/\\\n//; b join' -e '}' images/Containerfile |
    grep -oE 'apt-get( -[^ ]+)* install [^&;|]*' | tr -s ' ' '\n' | grep -vE '^(apt-get|install|-.*)?$' | sort -u
}

# A package that only one of the two has is missed by the other, which is seen on a fresh machine at the earliest.
packages() {
  local machines images name
  machines=$(packages_of_machines)
  images=$(packages_of_images)
  while IFS= read -r name; do
    grep -qxF "$name" <<<"$machines" || breach "images/Containerfile installs $name, tests/env/packages.sh does not"
  done <<<"$images"
  # What the build itself needs. The others are for tests, or in the image the build starts from.
  for name in protobuf-compiler libprotobuf-dev; do
    grep -qxF "$name" <<<"$machines" || breach "tests/env/packages.sh does not install $name"
    grep -qxF "$name" <<<"$images" || breach "images/Containerfile does not install $name"
  done
}

# The relative links of a page, one a line. Code is not read.
links_of() {
  awk '/^ *```/ { code = !code; next }
    code { next }
    { gsub(/`[^`]*`/, "")
      while (match($0, /\]\([^() ]+\)/)) {
        link = substr($0, RSTART + 2, RLENGTH - 3)
        $0 = substr($0, RSTART + RLENGTH)
        if (link !~ /^[a-z]+:/) print link
      } }' "$1"
}

# The anchors of a page's headings, as forges derive them: lower case, no punctuation, dashes for spaces, numbered twins.
anchors_of() {
  awk '/^ *```/ { code = !code; next }
    !code && /^#+ / {
      sub(/^#+ +/, ""); gsub(/\]\([^()]*\)/, "")
      $0 = tolower($0); gsub(/[^a-z0-9 _-]/, ""); gsub(/ /, "-")
      print seen[$0]++ ? $0 "-" seen[$0] - 1 : $0
    }' "$1"
}

# Every relative link and its anchor exist, and every file below docs is reached from docs/README.md. A link to a folder
# reaches the files in it.
pages() {
  local page link to anchor file
  local -A leads=() reached=()
  while IFS= read -r page; do
    while IFS= read -r link; do
      anchor=${link#"${link%%#*}"}
      link=${link%%#*}
      to=$page
      [ -z "$link" ] || to=$(realpath --canonicalize-missing --relative-to=. "$(dirname "$page")/$link")
      if [ ! -e "$to" ]; then
        breach "$page links to $link, which does not exist"
        continue
      fi
      [ -z "$anchor" ] || grep -qxF -- "${anchor#\#}" <<<"$(anchors_of "$to")" ||
        breach "$page links to $to$anchor: no such heading"
      leads[$page]+=" $to"
    done < <(links_of "$page")
  done < <(git ls-files -- '*.md')
  local -a next=(docs/README.md)
  while [ ${#next[@]} -gt 0 ]; do
    page=${next[0]}
    next=("${next[@]:1}")
    [ -z "${reached[$page]:-}" ] || continue
    reached[$page]=yes
    if [ -d "$page" ]; then
      while IFS= read -r file; do next+=("$file"); done < <(git ls-files -- "$page" | grep -E "^$page/[^/]+$")
    else
      for to in ${leads[$page]:-}; do next+=("$to"); done
    fi
  done
  while IFS= read -r file; do
    [ -n "${reached[$file]:-}" ] || breach "$file is not reached by links from docs/README.md"
  done < <(git ls-files -- docs)
}

# Every test that the compatibility page names exists.
named_tests() {
  local page=docs/reference/compatibility.md name
  while IFS= read -r name; do
    git grep -qE "fn $name\(" -- '*.rs' || breach "$page names $name, which is not a test"
  done < <(grep -oE '`[a-z0-9]+(_[a-z0-9]+){2,}`' "$page" | tr -d '`' | grep -v '^on_3' | sort -u)
}

long_files
unfinished
former_name
plain_words
commit_subjects
directions
verbs
places
packages
pages
named_tests
[ "$breaches" -eq 0 ] || die "the tree breaks $breaches rule(s)"
