#!/bin/sh
# First process of a lab guest: load the drivers, lay a tmpfs over the read-only disk, start systemd.
# On the kernel's command line: lab.name, lab.number (from 1), lab.key (the authorised SSH key, base64).
b=/bin/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
while read -r module; do
	$b insmod "/modules/$module.ko" || echo "lab: cannot load $module"
done < /modules/order
for word in $($b cat /proc/cmdline); do
	case $word in
	lab.name=*) name=${word#*=} ;;
	lab.number=*) number=${word#*=} ;;
	lab.key=*) key=${word#*=} ;;
	esac
done
tries=0
until [ -b /dev/vda ]; do
	tries=$((tries + 1))
	[ "$tries" -le 100 ] || exec $b sh
	$b usleep 100000
done
$b mount -t erofs -o ro /dev/vda /lower
$b mount -t tmpfs -o size=75% tmpfs /cover
$b mkdir /cover/upper /cover/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/cover/upper,workdir=/cover/work overlay /root
$b mkdir -p /root/proc /root/sys /root/dev /root/run /root/tmp /root/boot /root/var/cache /root/root/.ssh
echo "$name" > /root/etc/hostname
{
	echo "127.0.0.1 localhost"
	i=1
	for host in a b c d; do
		echo "10.77.0.$i $host"
		i=$((i + 1))
	done
} > /root/etc/hosts
echo "$key" | $b base64 -d > /root/root/.ssh/authorized_keys
$b chmod 700 /root/root/.ssh
# What a test bed has no use for and emulation makes slow. The disk itself stays a plain Debian.
for unit in apt-daily.timer apt-daily-upgrade.timer dev-hugepages.mount dpkg-db-backup.timer e2scrub_all.timer \
	e2scrub_reap.service fstrim.timer getty.target getty@tty1.service kmod-static-nodes.service ldconfig.service \
	modprobe@configfs.service modprobe@drm.service modprobe@efi_pstore.service modprobe@fuse.service \
	proc-sys-fs-binfmt_misc.automount serial-getty@ttyS0.service sys-fs-fuse-connections.mount \
	systemd-binfmt.service systemd-firstboot.service systemd-hibernate-clear.service systemd-hwdb-update.service \
	systemd-journal-catalog-update.service systemd-journal-flush.service systemd-logind.service \
	systemd-machine-id-commit.service systemd-pcrmachine.service systemd-pcrphase.service \
	systemd-pcrphase-sysinit.service systemd-pstore.service systemd-random-seed.service \
	systemd-tpm2-setup.service systemd-tpm2-setup-early.service systemd-update-done.service \
	systemd-update-utmp.service systemd-user-sessions.service; do
	$b ln -sf /dev/null "/root/etc/systemd/system/$unit"
done
# An emulated router has no way to wake its host (PME), so it must not be put to sleep. The driver allows
# that when it probes, so this has to come after it: with "bind", not with "add".
echo 'ACTION=="bind", SUBSYSTEM=="pci", ATTR{class}=="0x0c0340", ATTR{power/control}="on"' \
	> /root/etc/udev/rules.d/99-lab.rules
# eth0: the host, for control. eth1: the other guests, for what programs agree on beside the cable.
$b ip link set lo up
$b ip link set eth0 up
$b ip addr add 10.0.2.15/24 dev eth0
$b ip link set eth1 up
$b ip addr add "10.77.0.$number/24" dev eth1
$b umount /proc /sys
$b mount -o move /dev /root/dev
exec $b switch_root /root /sbin/init
