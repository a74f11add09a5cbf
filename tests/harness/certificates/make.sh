#!/bin/sh
# Recreate the certificates of tests/harness/tls.py. The keys are not secret: they are used only for
# servers of tests. The authority's own key is thrown away.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

# NAME SUBJECT_ALT_NAMES FIRST_DAY LAST_DAY
sign() {
  new_key "$1.key"
  openssl req -new -key "$1.key" -subj "/CN=$1" -out "$work/$1.csr"
  printf '%s\n' "subjectAltName=$2" 'basicConstraints=critical,CA:FALSE' \
    'extendedKeyUsage=serverAuth,clientAuth' 'authorityKeyIdentifier=keyid' > "$work/$1.ext"
  openssl ca -config "$work/ca.cnf" -batch -notext -in "$work/$1.csr" -extfile "$work/$1.ext" \
    -startdate "$3" -enddate "$4" -out "$1.crt"
}

new_key "$work/ca.key"
openssl req -x509 -new -key "$work/ca.key" -days 36500 -subj '/CN=batchq test authority' \
  -addext 'keyUsage=critical,keyCertSign' -out ca.crt
printf '%s\n' '[ca]' 'default_ca=tests' '[tests]' "database=$work/index" "serial=$work/serial" \
  "new_certs_dir=$work" "certificate=ca.crt" "private_key=$work/ca.key" 'default_md=sha256' \
  'policy=any' '[any]' 'commonName=supplied' > "$work/ca.cnf"
: > "$work/index"
echo 01 > "$work/serial"
sign server DNS:localhost,IP:127.0.0.1 20200101000000Z 21200101000000Z
sign elsewhere DNS:elsewhere.example 20200101000000Z 21200101000000Z
sign expired DNS:localhost,IP:127.0.0.1 20200101000000Z 20200102000000Z
