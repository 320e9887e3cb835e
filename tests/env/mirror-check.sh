#!/usr/bin/env bash
# Checks that mirror.sh finds the Debian archive in every form apt's sources take.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# expect <claim> <file name> <expected output>: the content comes on standard input.
expect() {
  local claim=$1 file=$work/$2 wanted=$3 got
  cat >"$file"
  got=$("$ENV_DIR/mirror.sh" "$file" 2>/dev/null) || got=none
  [ "$got" = "$wanted" ] || die "mirror.sh: $claim: expected «$wanted», got «$got»"
  rm "$file"
}

expect "a stanza with comments and a security archive before it" a.sources \
  $'URIs: http://mirror.example/debian\nSigned-By: /keys/debian.gpg' <<'END'
Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb deb-src
# where the archive was once
uris: http://mirror.example/debian http://second.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /keys/debian.gpg
END

expect "a stanza that is switched off" b.sources none <<'END'
Enabled: no
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm
Components: main
END

expect "a key spelled out in the stanza" c.sources \
  $'URIs: https://mirror.example/debian/\nSigned-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc' <<'END'
Types: deb
URIs: https://mirror.example/debian/
Suites: trixie
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
END

expect "a line with options, after a disc and a source line" d.list \
  $'URIs: http://mirror.example/debian\nSigned-By: /keys/debian.gpg\nTrusted: yes' <<'END'
# deb http://old.example/debian bookworm main
deb cdrom:[Debian]/ bookworm main
deb-src http://mirror.example/debian bookworm main
deb [ arch=amd64 signed-by=/keys/debian.gpg trusted=yes ] http://mirror.example/debian bookworm main # note
END

expect "a plain line" sources.list 'URIs: http://mirror.example/debian' <<'END'
deb http://mirror.example/debian-security bookworm-security main
deb	http://mirror.example/debian	bookworm	main non-free-firmware
END

expect "a vendor's archive only" e.list none <<'END'
deb https://vendor.example/apt nodistro main
END
