#!/bin/sh
# Creates a server user for each process of batchq, and the URL with which it connects as that user.
#
#   users.sh FOLDER ADDRESS NAME=ROLE ...
#   users.sh /users valkey:6379/0 scheduler=scheduler node-1=worker client=operator
#
#   FOLDER/server/users.acl   for the server's aclfile: rights, and digests of passwords
#   FOLDER/NAME/url           for BATCHQ_REDIS_URL_FILE of one process; no other may read it
#
# The folders must exist. A second run keeps the passwords and renews the rights for this batchq.
set -eu
umask 022
folder=$1
address=$2
shift 2

users=$folder/server/users.acl
{
  echo "user default off"
  echo "user health on nopass resetchannels -@all +ping"
} > "$users.draft"

for pair in "$@"; do
  name=${pair%%=*}
  role=${pair#*=}
  user=$role-$name
  node=
  if [ "$name" = "$role" ]; then user=$role; fi
  if [ "$role" = worker ]; then node="--node $name"; fi
  password=$folder/$name/password
  (
    umask 077
    if [ ! -s "$password" ]; then
      head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' > "$password.draft"
      mv "$password.draft" "$password"
    fi
    echo "redis://$user:$(cat "$password")@$address" > "$folder/$name/url.draft"
    mv "$folder/$name/url.draft" "$folder/$name/url"
  )
  # shellcheck disable=SC2086  # two words, or none
  batchq acl "$role" $node --user "$user" --password-file "$password" >> "$users.draft"
done
mv "$users.draft" "$users"
