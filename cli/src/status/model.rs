//! What `tbrdma status` knows. The JSON form is these structures.

use serde::Serialize;
use std::collections::BTreeMap;

/// Name of the kernel module.
pub const MODULE: &str = "tbrdma";
/// Name of the RDMA device and of its network interface.
pub const DEVICE: &str = "tbrdma0";

/// Everything.
#[derive(Debug, Default, Serialize)]
pub struct Status {
    /// The kernel module; `None`: not loaded.
    pub module: Option<Module>,
    /// The RDMA device; `None`: there is none.
    pub device: Option<Device>,
    /// Its network interface.
    pub netdev: Option<Netdev>,
    /// This host, as it names itself to others. Root only.
    pub host: Option<Host>,
    /// Hosts that can be reached now. Root only.
    pub peers: Vec<Peer>,
    /// Cables that the module uses or tries to use. Root only.
    pub links: Vec<Link>,
    /// Cables to other hosts, whether they know tbrdma or not.
    pub cables: Vec<Cable>,
    /// What is missing here and why, in sentences.
    pub notes: Vec<String>,
}

/// The kernel module.
#[derive(Debug, Serialize)]
pub struct Module {
    /// Its version.
    pub version: Option<String>,
    /// Its parameters and their values.
    pub parameters: BTreeMap<String, String>,
}

/// The RDMA device.
#[derive(Debug, Serialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Node GUID in the kernel's form, `0200:0010:eeff:c000`.
    pub node_guid: Option<String>,
    /// Its one port.
    pub port: Port,
    /// The GIDs that are set.
    pub gids: Vec<Gid>,
}

/// The port.
#[derive(Debug, Default, Serialize)]
pub struct Port {
    /// `ACTIVE`, `DOWN` ...
    pub state: Option<String>,
    /// Speed as the kernel says it, `40 Gb/sec (4X QDR)`.
    pub rate: Option<String>,
    /// Lanes of all links together. Root only.
    pub lanes: Option<u32>,
    /// Gb/s of one lane. Root only.
    pub lane_gbps: Option<u32>,
}

/// An entry of the GID table.
#[derive(Debug, Serialize)]
pub struct Gid {
    /// Its index.
    pub index: u32,
    /// The GID in the form of an IPv6 address.
    pub gid: String,
    /// `RoCE v2` ...
    pub kind: Option<String>,
}

/// The network interface.
#[derive(Debug, Serialize)]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// MAC address.
    pub address: Option<String>,
    /// MTU, bytes.
    pub mtu: Option<u32>,
    /// `up`, `down` ...
    pub operstate: Option<String>,
}

/// This host.
#[derive(Debug, Serialize)]
pub struct Host {
    /// Its identity: the lowest UUID of its routers.
    pub uuid: String,
    /// Its MAC address.
    pub mac: String,
}

/// A host that can be reached.
#[derive(Debug, Serialize)]
pub struct Peer {
    /// Its number on this host, for as long as it is connected.
    pub id: u32,
    /// Its identity.
    pub uuid: String,
    /// Its MAC address.
    pub mac: String,
    /// It can be sent to.
    pub up: bool,
    /// Rails to it.
    pub rails: u32,
}

/// A cable that the module uses or tries to use.
#[derive(Debug, Serialize)]
pub struct Link {
    /// Its number on this host.
    pub id: u32,
    /// `ready`; before that `greeting`, `enabling`, `proving`.
    pub state: String,
    /// The peer it leads to, 0 before it is ready.
    pub peer: u32,
    /// Route string of the port, hexadecimal.
    pub route: String,
    /// UUID of our router.
    pub local: String,
    /// UUID of the other router.
    pub remote: String,
    /// Lanes.
    pub lanes: u32,
    /// Gb/s of one lane.
    pub lane_gbps: u32,
    /// Its rails.
    pub rails: Vec<Rail>,
}

/// A rail: one DMA path in each direction. Counters never go back.
#[derive(Debug, Default, Serialize)]
pub struct Rail {
    /// Frames in flight at most.
    pub window: u64,
    /// Frames that could be sent now.
    pub room: u64,
    /// Frames sent, without repetitions.
    pub tx: u64,
    /// Frames sent again.
    pub retransmits: u64,
    /// Times that the timer, not the receiver, asked for a repetition.
    pub timeouts: u64,
    /// Times that a sender had to wait.
    pub stalls: u64,
    /// Frames handed up.
    pub rx: u64,
    /// Frames that came again.
    pub duplicates: u64,
    /// Frames that came with a CRC error or overrun.
    pub damaged: u64,
    /// Frames that were not understood.
    pub malformed: u64,
    /// Smoothed round-trip time, microseconds; 0: not measured.
    pub rtt_us: u64,
    /// Everything that the module tells, by its own names.
    pub counters: BTreeMap<String, u64>,
}

/// A cable to another host, as the Thunderbolt core sees it.
#[derive(Debug, Serialize)]
pub struct Cable {
    /// Name of the core's device, `0-1`.
    pub name: String,
    /// What the other host calls itself.
    pub host: Option<String>,
    /// UUID of the other host's router.
    pub uuid: Option<String>,
    /// Lanes, the fewer of both directions.
    pub lanes: Option<u32>,
    /// Gb/s of one lane.
    pub lane_gbps: Option<u32>,
    /// The other host announces tbrdma.
    pub tbrdma: bool,
}
