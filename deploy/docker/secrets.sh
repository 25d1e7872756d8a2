#!/bin/sh
# Make the secrets that docker-compose.yml mounts: those that are missing. A .env of a version that kept them there gives
# its own, so that tokens, agents and the database go on working.
#
# The directory is closed to others; the files in it are not, because containers read them as users of their own.
set -eu
cd "$(dirname "$0")/../.."
directory=${SECRETS_DIR:-secrets}
umask 077
mkdir -p "$directory"
chmod 0700 "$directory"

make_secret() {
    file=$directory/$1
    [ ! -s "$file" ] || return 0
    value=
    [ ! -r .env ] || value=$(sed -n "s/^$2=//p" .env | tail -n 1)
    # 48 random bytes; letters and digits only, so that the text needs no quoting anywhere.
    [ -n "$value" ] || value=$(head -c 48 /dev/urandom | base64 | tr -d '\n+/=')
    printf '%s\n' "$value" > "$file.new"
    chmod 0444 "$file.new"
    mv "$file.new" "$file"
    echo "made $file"
}

make_secret secret_key SECRET_KEY
make_secret postgres_password POSTGRES_PASSWORD
