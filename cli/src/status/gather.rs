//! Where the status comes from.

use super::model::{Cable, Device, Gid, Module, Netdev, Port, Status, DEVICE, MODULE};
use super::state_file;
use anyhow::{Context, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Entries of the GID table that are looked at.
const GIDS_MAX: u32 = 64;

/// Reads everything below `root`.
pub(super) fn gather(root: &Path) -> Result<Status> {
    let sys = root.join("sys");
    let mut status = Status {
        module: module(&sys),
        device: device(&sys),
        netdev: netdev(&sys),
        cables: cables(&sys)?,
        ..Status::default()
    };
    if status.module.is_some() {
        inside(&sys, &mut status)?;
    }
    missing(&mut status);
    Ok(status)
}

/// The trimmed text of a file; `None` if there is no such file or nothing in it.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn module(sys: &Path) -> Option<Module> {
    let dir = sys.join("module").join(MODULE);
    if !dir.is_dir() {
        return None;
    }
    let parameters = entries(&dir.join("parameters"))
        .into_iter()
        .filter_map(|path| Some((name(&path)?, read(&path)?)))
        .collect();
    Some(Module {
        version: read(&dir.join("version")),
        parameters,
    })
}

fn device(sys: &Path) -> Option<Device> {
    let dir = sys.join("class/infiniband").join(DEVICE);
    if !dir.is_dir() {
        return None;
    }
    let port = dir.join("ports/1");
    // "4: ACTIVE"
    let state = read(&port.join("state")).map(|state| {
        state
            .split_once(": ")
            .map_or(state.clone(), |(_, name)| name.to_owned())
    });
    Some(Device {
        name: DEVICE.to_owned(),
        node_guid: read(&dir.join("node_guid")),
        gids: gids(&port),
        port: Port {
            state,
            rate: read(&port.join("rate")),
            ..Port::default()
        },
    })
}

fn gids(port: &Path) -> Vec<Gid> {
    (0..GIDS_MAX)
        .filter_map(|index| {
            let gid = read(&port.join(format!("gids/{index}")))?;
            let is_set = gid.chars().any(|c| c != '0' && c != ':');
            is_set.then(|| Gid {
                index,
                gid,
                kind: read(&port.join(format!("gid_attrs/types/{index}"))),
            })
        })
        .collect()
}

fn netdev(sys: &Path) -> Option<Netdev> {
    let dir = sys.join("class/net").join(DEVICE);
    dir.is_dir().then(|| Netdev {
        name: DEVICE.to_owned(),
        address: read(&dir.join("address")),
        mtu: read(&dir.join("mtu")).and_then(|mtu| mtu.parse().ok()),
        operstate: read(&dir.join("operstate")),
    })
}

/// Other hosts are devices `<domain>-<route>` with services `<domain>-<route>.<n>` below.
fn cables(sys: &Path) -> Result<Vec<Cable>> {
    let mut cables = Vec::new();
    for dir in entries(&sys.join("bus/thunderbolt/devices")) {
        let is_host = read(&dir.join("uevent"))
            .is_some_and(|uevent| uevent.lines().any(|l| l == "DEVTYPE=thunderbolt_xdomain"));
        let Some(name) = name(&dir).filter(|_| is_host) else {
            continue;
        };
        let tbrdma = entries(&dir)
            .iter()
            .any(|service| read(&service.join("key")).is_some_and(|key| key == MODULE));
        let lanes = ["rx_lanes", "tx_lanes"]
            .iter()
            .filter_map(|file| read(&dir.join(file))?.parse::<u32>().ok())
            .min();
        cables.push(Cable {
            host: read(&dir.join("device_name")),
            uuid: read(&dir.join("unique_id")),
            lanes,
            // "20.0 Gb/s"
            lane_gbps: read(&dir.join("rx_speed"))
                .and_then(|speed| speed.split(['.', ' ']).next()?.parse().ok()),
            name,
            tbrdma,
        });
    }
    Ok(cables)
}

/// What only root may read.
fn inside(sys: &Path, status: &mut Status) -> Result<()> {
    let path = sys.join("kernel/debug").join(MODULE).join("state");
    match fs::read_to_string(&path) {
        Ok(text) => state_file::read_into(&text, status)
            .with_context(|| format!("{} is not as expected", path.display())),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            status
                .notes
                .push("peers, links and rails are shown to root only: run it with sudo".into());
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            status.notes.push(
                "peers, links and rails are not shown: debugfs is not mounted; \
                 run `mount -t debugfs debugfs /sys/kernel/debug`"
                    .into(),
            );
            Ok(())
        }
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Says what is missing and what to do about it.
fn missing(status: &mut Status) {
    let mut note = |text: String| status.notes.push(text);
    match (&status.module, &status.device) {
        (None, _) => note(
            "the kernel module is not loaded: run `modprobe tbrdma`; if it is not found, \
             `dkms status tbrdma` says whether it was built for this kernel"
                .into(),
        ),
        (Some(_), None) => note(
            "the kernel module is loaded but there is no RDMA device: `dmesg | grep tbrdma` says why"
                .into(),
        ),
        (Some(_), Some(device)) if device.port.state.as_deref() != Some("ACTIVE") => {
            if status.cables.is_empty() {
                note("no cable leads to another host".into());
            }
            for cable in status.cables.iter().filter(|cable| !cable.tbrdma) {
                let host = cable.host.as_deref().unwrap_or("the other host");
                note(format!("{host}, on cable {}, does not run tbrdma: install it there", cable.name));
            }
        }
        _ => (),
    }
}

/// The entries of a directory, sorted; none if there is no such directory.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    entries
}

fn name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}
