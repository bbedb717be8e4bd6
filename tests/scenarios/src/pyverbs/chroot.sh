#!/bin/sh
# Runs a command with another system's files, this system's devices, and the provider as it is installed here.
#
#     chroot.sh IMAGE WORK COMMAND...
#
# WORK is an empty folder, the same one for the command. All that is mounted goes with the namespace of mounts: start
# it in one of its own.
set -eu
image=$1
work=$2
shift 2
root=$work/root
mkdir "$work/lower" "$work/upper" "$work/scratch" "$root"
modprobe loop
mount -t erofs -o loop,ro "$image" "$work/lower"
mount -t overlay -o "lowerdir=$work/lower,upperdir=$work/upper,workdir=$work/scratch" overlay "$root"
files=$(dpkg-query --listfiles ibverbs-provider-tbrdma)
for file in $files; do
	# Folders are there, and documentation is nowhere.
	if [ ! -d "$file" ] && [ -e "$file" ]; then
		cp --archive --parents "$file" "$root"
	fi
done
for folder in proc sys run tmp; do
	mount --bind "/$folder" "$root/$folder"
done
# With its shared memory.
mount --rbind /dev "$root/dev"
exec chroot "$root" "$@"
