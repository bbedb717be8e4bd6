//! The root file systems of the lab.

use crate::debian::Recipe;

/// The guests' root: a Debian system with the backports kernels, everything that our packages
/// need, so that they can be installed without the network, and the RDMA programs of Debian.
///
/// No service of those starts by itself, and NetworkManager does not load thunderbolt_net: a
/// scenario starts what it looks at.
pub const GUEST: Recipe<'static> = Recipe {
    name: "guest",
    variant: "apt",
    prefer: "",
    packages: &[
        "systemd-sysv",
        "udev",
        "dbus",
        "kmod",
        "procps",
        "iproute2",
        "iputils-ping",
        "ethtool",
        "openssh-server",
        "busybox-static",
        "initramfs-tools-core",
        "netcat-openbsd",
        "iperf3",
        "sockperf",
        "strace",
        "rdma-core",
        "ibverbs-utils",
        "ibverbs-providers",
        "rdmacm-utils",
        "perftest",
        "ucx-utils",
        "libfabric-bin",
        "openmpi-bin",
        "netpipe-openmpi",
        "python3-pyverbs",
        "nvme-cli",
        "nfs-kernel-server",
        "nfs-common",
        "e2fsprogs",
        "network-manager",
        "pciutils",
        "dkms",
        "linux-base/trixie-backports",
        "linux-image-{7.3}-amd64",
        "linux-headers-{7.3}-amd64",
        "linux-image-{7.2}-amd64",
        "linux-headers-{7.2}-amd64",
        "rustc",
        "rust-src",
        "bindgen",
        "libclang-dev",
        "gcc",
        "make",
        "xz-utils",
    ],
    finish: "
        printf \"PermitRootLogin prohibit-password\\nUsePAM no\\nUseDNS no\\nMaxSessions 200\\nMaxStartups 100\\n\" \
            > /etc/ssh/sshd_config.d/lab.conf
        systemctl mask --quiet systemd-timesyncd.service apt-daily.timer apt-daily-upgrade.timer \
            e2scrub_all.timer fstrim.timer dpkg-db-backup.timer systemd-update-utmp.service \
            systemd-journal-flush.service systemd-random-seed.service systemd-firstboot.service \
            systemd-hwdb-update.service ldconfig.service systemd-journal-catalog-update.service \
            systemd-update-done.service getty@tty1.service iperf3.service || true
        printf \"[Journal]\\nStorage=volatile\\nRateLimitBurst=0\\n\" > /etc/systemd/journald.conf
        systemctl disable --quiet iperf3 2>/dev/null || true
        systemctl disable --quiet nfs-server.service nfs-blkmap.service nfs-client.target \
            rpcbind.service rpcbind.socket nvmefc-boot-connections.service nvmf-autoconnect.service \
            NetworkManager.service NetworkManager-wait-online.service \
            NetworkManager-dispatcher.service
        ln -s /dev/null /etc/udev/rules.d/90-nm-thunderbolt.rules
    ",
};

/// QEMU that speaks vfio-user, which stable's does not.
pub const QEMU: Recipe<'static> = Recipe {
    name: "qemu",
    variant: "extract",
    prefer: "trixie-backports",
    packages: &["qemu-system-x86"],
    finish: "",
};
