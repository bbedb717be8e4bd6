#!/bin/sh
# serve.sh PORT LIMIT PROGRAM...: starts a server in the background, which may take LIMIT seconds, and ends when it
# listens. The server's output, and the number of its process group, are beside this script.
cd "$(dirname "$0")" || exit 1
port=$1
limit=$2
shift 2
# The one before may still be ending.
n=0
while [ -e busy ]; do
	n=$((n + 1))
	if [ "$n" -gt 400 ]; then
		echo "the server before this one does not end:"
		cat output
		exit 1
	fi
	sleep 0.05
done
touch busy
{
	# The first process of the group writes its number down and becomes timeout.
	# shellcheck disable=SC2016 # that shell's own number
	setsid sh -c 'echo $$ > group; exec timeout -k 5 "$@"' sh "$limit" "$@" > output 2>&1
	rm busy
} < /dev/null > /dev/null 2>&1 &
until ss -Hltn "sport = :$port" | grep -q .; do
	if [ ! -e busy ]; then
		cat output
		exit 1
	fi
	sleep 0.05
done
