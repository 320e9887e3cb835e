#!/usr/bin/env bash
# Prints the machine's Debian archive as the opening fields of a deb822 stanza: `URIs:`, and
# `Signed-By:` or `Trusted:` where the machine states them. Knows both forms of apt's sources.
#
#   mirror.sh [file…]     files ending in .sources or .list; apt's own when none is named
#
# The archive is the first enabled binary entry with component main and a plain Debian suite;
# security and vendor entries are other archives.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Each entry becomes the line `uri <tab> suites <tab> components <tab> options`, an option being
# `Field: value` and several separated by \001. A key that is spelled out in the stanza spans
# lines; \002 stands for its line breaks.
from_stanzas() {
  awk '
    function flush() {
      if (field["types"] ~ /(^| )deb( |$)/ && tolower(field["enabled"]) != "no") {
        split(field["uris"], uris, /[ \002]+/)
        options = ""
        if (field["signed-by"] != "") options = options "\001Signed-By: " field["signed-by"]
        if (field["trusted"] != "") options = options "\001Trusted: " field["trusted"]
        print uris[1] "\t" field["suites"] "\t" field["components"] "\t" options
      }
      delete field
      name = ""
    }
    /^#/ { next }
    /^[ \t]*$/ { flush(); next }
    /^[ \t]/ { if (name != "") field[name] = field[name] "\002" $0; next }
    {
      name = tolower(substr($0, 1, index($0, ":") - 1))
      value = substr($0, index($0, ":") + 1)
      sub(/^[ \t]+/, "", value)
      field[name] = value
    }
    END { flush() }
  ' "$1"
}

from_lines() {
  awk '
    $1 == "deb" {
      line = $0
      sub(/^deb[ \t]+/, "", line)
      options = ""
      if (line ~ /^\[/) {
        given = substr(line, 2, index(line, "]") - 2)
        line = substr(line, index(line, "]") + 1)
        count = split(given, words, /[ \t]+/)
        for (i = 1; i <= count; i++) {
          if (words[i] ~ /^signed-by=/) options = options "\001Signed-By: " substr(words[i], 11)
          if (words[i] ~ /^trusted=/) options = options "\001Trusted: " substr(words[i], 9)
        }
      }
      sub(/#.*/, "", line)
      count = split(line, words, /[ \t]+/)
      first = (words[1] == "") ? 2 : 1
      components = ""
      for (i = first + 2; i <= count; i++) components = components " " words[i]
      print words[first] "\t" words[first + 1] "\t" components "\t" options
    }
  ' "$1"
}

codename() { sed -n 's/^VERSION_CODENAME=//p' /etc/os-release 2>/dev/null | tr -d '"'; }

if [ $# -eq 0 ]; then
  set -- /etc/apt/sources.list.d/*.sources /etc/apt/sources.list /etc/apt/sources.list.d/*.list
fi
suites="bookworm trixie forky sid stable oldstable testing unstable $(codename)"

for file in "$@"; do
  [ -r "$file" ] || continue
  case $file in *.sources) from_stanzas "$file" ;; *) from_lines "$file" ;; esac
done | awk -F '\t' -v known="$suites" '
  BEGIN { count = split(known, names, " "); for (i = 1; i <= count; i++) plain[names[i]] = 1 }
  $1 ~ /^cdrom:/ || (" " $3 " ") !~ / main / { next }
  {
    count = split($2, found, /[ \002]+/)
    for (i = 1; i <= count; i++) if (found[i] in plain) {
      options = $4
      gsub(/\001/, "\n", options)
      gsub(/\002/, "\n", options)
      print "URIs: " $1 options
      printed = 1
      exit
    }
  }
  END { exit !printed }
' || die "no Debian archive among apt's sources: point MAINSTAY_ETCD_3_4, MAINSTAY_ETCD_3_5 and" \
  "MAINSTAY_ETCD_3_5_NEW at directories that hold etcd and etcdctl"
