//! Stock consumers in the kernel carry files: NVMe over fabrics and NFS over RDMA, each in both
//! roles on both hosts, with the cable pulled in the middle, and the module unloaded.

use crate::bench::wait_for_port;
use crate::Bench;
use anyhow::{ensure, Context, Result};
use std::time::Duration;
use tbrdma_lab::Lab;

const LIMIT: Duration = Duration::from_secs(240);

/// Frames that have to be left to send when the cable is pulled.
const REST: u64 = 2000;

/// A directory with files of sizes that fit no page, sector or frame.
const FILES: &str = "rm -rf /run/ulp && mkdir /run/ulp && cd /run/ulp && \
    for size in 0 1 511 4097 65537 1048577 5000001; do head -c $size /dev/urandom > f$size; done";

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let lab = bench.pair()?;
    wait_for_port(lab, "ACTIVE")?;
    let (there, here) = (("a", "10.79.0.1"), ("b", "10.79.0.2"));
    for (host, address) in [there, here] {
        give(lab, host, address)?;
    }
    lab.until("b", "ping -c 1 -W 5 10.79.0.1", LIMIT)?;
    let before = resources(lab)?;
    for ((server, address), (client, _)) in [(there, here), (here, there)] {
        nvme(lab, server, address, client)
            .with_context(|| format!("NVMe over fabrics, {client} connected to {server}"))?;
        nfs(lab, server, address, client)
            .with_context(|| format!("NFS over RDMA, {client} mounting from {server}"))?;
    }
    unload(lab, there, here)?;
    for host in ["a", "b"] {
        lab.run(
            host,
            "modprobe -r nvme-rdma nvmet-rdma brd; rm -rf /run/ulp",
        )?;
    }
    // Regions, queue pairs and all else are given back, if not at once.
    for ((host, _), held) in [there, here].into_iter().zip(before) {
        let same = format!("test \"$({RESOURCES})\" = '{held}'");
        if let Err(error) = lab.until(host, &same, Duration::from_secs(60)) {
            let now = lab.run(host, RESOURCES)?;
            return Err(error.context(format!("{host} held {held} before, and now {now}")));
        }
    }
    for host in ["a", "b"] {
        lab.run(host, "ip -4 address flush dev tbrdma0")?;
    }
    Ok(())
}

fn give(lab: &Lab, host: &str, address: &str) -> Result<()> {
    let give = format!("ip address add {address}/24 dev tbrdma0");
    lab.run(host, &format!("modprobe rdma_cm && {give}"))
        .map(drop)
}

/// What is open on the device, but for completion queues: the core keeps those that consumers in
/// the kernel have shared.
const RESOURCES: &str =
    "echo $(rdma resource show tbrdma0 | sed -e 's/^[^:]*: //' -e 's/ cq [0-9]*//')";

fn resources(lab: &Lab) -> Result<[String; 2]> {
    let of = |host| Ok::<_, anyhow::Error>(lab.run(host, RESOURCES)?.trim().to_owned());
    Ok([of("a")?, of("b")?])
}

/// Checksums of the files of [`FILES`] in a directory.
fn sums(lab: &Lab, host: &str, directory: &str) -> Result<String> {
    lab.run_for(host, &format!("cd {directory} && sha256sum f*"), LIMIT)
}

/// The files read anew from a mounted directory are those that were made on `origin`.
fn expect_files(lab: &Lab, (host, directory): (&str, &str), origin: &str) -> Result<()> {
    let read = sums(lab, host, directory)?;
    let made = sums(lab, origin, "/run/ulp")?;
    ensure!(
        read == made && read.lines().count() == 7,
        "{host} reads other files in {directory} than were made on {origin}:\n{read}\n{made}"
    );
    Ok(())
}

/// Pulls the cable while `client` writes files into `directory`, and plugs it in again: the consumers
/// connect anew, and nothing is lost.
fn pull(lab: &Lab, client: &str, directory: &str) -> Result<()> {
    let write = format!(
        "set -e; head -c 30000001 /dev/urandom > /run/ulp/big; cd {directory}; \
         for i in 1 2 3; do dd if=/run/ulp/big of=big$i bs=64k conv=fsync status=none; done"
    );
    let writing = lab.start(client, &write, LIMIT)?;
    crate::unplug::wait_for_traffic(lab)?;
    lab.fabric()?.unplug(0)?;
    wait_for_port(lab, "DOWN")?;
    let frames = || Ok::<_, anyhow::Error>(lab.fabric()?.counters()?.cables[0].frames);
    let before = frames()?;
    lab.fabric()?.plug(0)?;
    wait_for_port(lab, "ACTIVE")?;
    writing
        .finish()
        .context("what was written when the cable was pulled did not go on")?;
    let rest = frames()? - before;
    ensure!(
        rest > REST,
        "only {rest} frames were left when the cable was pulled"
    );
    lab.run(client, "sync; echo 3 > /proc/sys/vm/drop_caches")?;
    let compare = format!("cd {directory} && for i in 1 2 3; do cmp big$i /run/ulp/big; done");
    lab.run_for(client, &format!("set -e; {compare}; rm big*"), LIMIT)?;
    Ok(())
}

/// Makes a RAM disk a namespace that anybody may connect to. `$1`: the address.
const TARGET_UP: &str = "set -e; modprobe -a nvmet nvmet-rdma; modprobe brd rd_nr=1 rd_size=163840; \
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config; \
    cd /sys/kernel/config/nvmet; mkdir subsystems/ulp; echo 1 > subsystems/ulp/attr_allow_any_host; \
    mkdir subsystems/ulp/namespaces/1; \
    printf /dev/ram0 > subsystems/ulp/namespaces/1/device_path; \
    echo 1 > subsystems/ulp/namespaces/1/enable; mkdir ports/1; echo rdma > ports/1/addr_trtype; \
    echo ipv4 > ports/1/addr_adrfam; echo $1 > ports/1/addr_traddr; \
    echo 4420 > ports/1/addr_trsvcid; ln -s $PWD/subsystems/ulp ports/1/subsystems/ulp";

const TARGET_DOWN: &str = "set -e; cd /sys/kernel/config/nvmet; rm ports/1/subsystems/ulp; \
    rmdir ports/1 subsystems/ulp/namespaces/1 subsystems/ulp";

/// Prints the block device of the namespace.
const NAMESPACE: &str = "for s in /sys/class/nvme-subsystem/*; do \
    grep -qsx ulp $s/subsysnqn && for n in $s/nvme*n1; do test -b /dev/${n##*/} && echo /dev/${n##*/}; \
    done; done | grep .";

fn nvme(lab: &Lab, target: &str, address: &str, client: &str) -> Result<()> {
    let up = format!("set -- {address}; {TARGET_UP}");
    // Reconnects every two seconds if it has to.
    let connect = format!(
        "modprobe nvme-rdma && nvme connect -t rdma -a {address} -s 4420 -n ulp -c 2 >/dev/null"
    );
    let connect = || -> Result<String> {
        lab.run_for(client, &connect, LIMIT)?;
        let device = lab.until(client, NAMESPACE, LIMIT)?;
        Ok(device.trim().to_owned())
    };
    let disconnect = || lab.run_for(client, "umount /mnt && nvme disconnect -n ulp", LIMIT);
    lab.run(target, &up)?;
    let device = connect()?;
    lab.run_for(client, &format!("mkfs.ext4 -q {device}"), LIMIT)?;
    let mount = format!("mount {device} /mnt");
    lab.run(client, &format!("{FILES} && {mount} && cp f* /mnt"))?;
    lab.run_for(
        client,
        &format!("umount /mnt && echo 3 > /proc/sys/vm/drop_caches && {mount}"),
        LIMIT,
    )?;
    expect_files(lab, (client, "/mnt"), client)?;
    pull(lab, client, "/mnt")?;
    disconnect()?;
    lab.run(target, TARGET_DOWN)?;

    // The other direction: what is on the disk at the target, and comes from there.
    lab.run(target, "fsck.ext4 -fn /dev/ram0 && mount /dev/ram0 /mnt")?;
    expect_files(lab, (target, "/mnt"), client)?;
    let renew = "rm /mnt/f* && cp f* /mnt && umount /mnt";
    lab.run(target, &format!("{FILES} && {renew}"))?;
    lab.run(target, &up)?;
    let device = connect()?;
    lab.run(client, &format!("mount {device} /mnt"))?;
    expect_files(lab, (client, "/mnt"), target)?;
    disconnect()?;
    lab.run(target, TARGET_DOWN)?;
    lab.run(target, "modprobe -r brd")?;
    Ok(())
}

/// The module goes while a disk behind it is being written: the writer is told, and nothing hangs.
fn unload(lab: &Lab, (target, address): (&str, &str), (client, own): (&str, &str)) -> Result<()> {
    lab.run(target, &format!("set -- {address}; {TARGET_UP}"))?;
    let connect = format!(
        "modprobe nvme-rdma && nvme connect -t rdma -a {address} -s 4420 -n ulp >/dev/null"
    );
    lab.run_for(client, &connect, LIMIT)?;
    let device = lab.until(client, NAMESPACE, LIMIT)?;
    let write = format!(
        "while dd if=/dev/zero of={} bs=64k count=1000 oflag=direct 2>&1; do :; done; echo told",
        device.trim()
    );
    let writing = lab.start(client, &write, LIMIT)?;
    crate::unplug::wait_for_traffic(lab)?;
    lab.run_for(client, "rmmod tbrdma", Duration::from_secs(60))
        .context("the module does not go under a disk that is being written")?;
    let printed = writing.finish()?;
    ensure!(
        printed.contains("Input/output error") && printed.ends_with("told\n"),
        "the writer was not told that its disk was gone:\n{printed}"
    );
    lab.run(client, "modprobe tbrdma")?;
    lab.run(target, TARGET_DOWN)?;
    wait_for_port(lab, "ACTIVE")?;
    give(lab, client, own)
}

/// Exports a directory in memory over RDMA.
const SERVER_UP: &str = "set -e; mkdir -p /srv/ulp; mount -t tmpfs -o size=200m tmpfs /srv/ulp; \
    systemctl start nfs-server; \
    exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=0 '10.79.0.0/24:/srv/ulp'; \
    echo rdma 20049 > /proc/fs/nfsd/portlist; grep -q 'rdma 20049' /proc/fs/nfsd/portlist";

const SERVER_DOWN: &str = "set -e; exportfs -u '10.79.0.0/24:/srv/ulp'; \
    systemctl stop nfs-server nfs-mountd nfs-idmapd nfsdcld rpc-statd rpcbind.socket rpcbind; \
    umount /srv/ulp";

fn nfs(lab: &Lab, server: &str, address: &str, client: &str) -> Result<()> {
    lab.run_for(server, SERVER_UP, LIMIT)?;
    let mount = format!("mount -t nfs -o vers=4.2,proto=rdma,port=20049 {address}:/ /mnt");
    lab.run_for(client, &mount, LIMIT)?;
    let shown = lab.run(client, "cat /proc/mounts")?;
    ensure!(
        shown.contains("/mnt nfs4 ") && shown.contains("proto=rdma"),
        "it is not mounted over RDMA:\n{shown}"
    );
    lab.run_for(client, &format!("{FILES} && cp f* /mnt"), LIMIT)?;
    let anew = format!("umount /mnt && {mount}");
    lab.run_for(client, &anew, LIMIT)?;
    expect_files(lab, (client, "/mnt"), client)?;
    expect_files(lab, (server, "/srv/ulp"), client)?;
    pull(lab, client, "/mnt")?;

    lab.run(
        server,
        &format!("{FILES} && rm /srv/ulp/f* && cp f* /srv/ulp"),
    )?;
    lab.run_for(client, &anew, LIMIT)?;
    expect_files(lab, (client, "/mnt"), server)?;
    lab.run_for(client, "umount /mnt", LIMIT)?;
    lab.run_for(server, SERVER_DOWN, LIMIT)?;
    Ok(())
}
