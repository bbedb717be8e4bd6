//! The one message of HELLO.
//!
//! Little-endian, [`MESSAGE_LEN`] bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic "TBRD" |
//! | 4 | 2 | oldest and newest version spoken |
//! | 6 | 1 | kind |
//! | 7 | 1 | reason of a refusal |
//! | 8 | 4 | features, one bit each |
//! | 12 | 2 | window |
//! | 14 | 2 | receive descriptors that data frames may use |
//! | 16 | 16 | host identity |
//! | 32 | 8 | host nonce: new whenever the module is loaded |
//! | 40 | 8 | link nonce: larger whenever this end begins anew |
//! | 48 | 8 | link nonce of the other end as last heard, or that is refused; 0: none |
//! | 56 | 16 | router of the sender |
//! | 72 | 16 | router of the receiver, as the sender sees it |
//! | 88 | 6 | MAC address |
//! | 94 | 2 | MTU of the network device |
//! | 96 | 1 | rails |
//! | 97 | 3 | zero |
//! | 100 | 8 | transmit HopIDs of the rails; 0 beyond the last |

use super::VERSIONS;

/// Bytes of a message.
pub const MESSAGE_LEN: usize = 108;
/// Rails of a link at the most.
pub const MAX_RAILS: usize = 4;

const MAGIC: [u8; 4] = *b"TBRD";

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Let us use this cable.
    Hello,
    /// The answer, with the facts of the answering end.
    HelloAck,
    /// No, for a reason.
    Refused(Refusal),
    /// The sender stops using the cable.
    Bye,
    /// The answer to that.
    ByeAck,
}

/// Why a cable cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No version is spoken by both ends.
    Version,
    /// The receiver could not reserve a HopID that the sender transmits on.
    HopIdTaken,
    /// The receiver does not want this host.
    NotAllowed,
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Version => "the versions do not fit: install the same release on both hosts",
            Self::HopIdTaken => "a HopID is in use by another service; another one is tried",
            Self::NotAllowed => "the other host is not configured to accept this one",
        })
    }
}

/// What an end says about itself and the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Oldest and newest version spoken.
    pub versions: (u8, u8),
    /// Feature bits.
    pub features: u32,
    /// Frames in flight at the most that it can keep for repetition.
    pub window: u16,
    /// Receive descriptors that data frames may use.
    pub rx_capacity: u16,
    /// Host identity: the lowest router UUID of the machine.
    pub host: [u8; 16],
    /// New whenever the module is loaded; not 0.
    pub host_nonce: u64,
    /// Of this attempt: larger than those before with the same host nonce; not 0.
    pub link_nonce: u64,
    /// UUID of the sender's router.
    pub router: [u8; 16],
    /// UUID of the receiver's router, as the sender sees it.
    pub peer_router: [u8; 16],
    /// MAC address of the network device.
    pub mac: [u8; 6],
    /// MTU of the network device, bytes.
    pub mtu: u16,
    /// Rails offered, 1 to [`MAX_RAILS`].
    pub rails: u8,
    /// HopIDs that the sender transmits on, one for each rail.
    pub tx_hops: [u16; MAX_RAILS],
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is for.
    pub kind: Kind,
    /// The sender's facts.
    pub facts: Facts,
    /// The receiver's link nonce as last heard by the sender; 0: none.
    pub heard: u64,
}

fn put(out: &mut [u8; MESSAGE_LEN], at: usize, value: &[u8]) {
    if let Some(place) = out.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

fn take<const N: usize>(bytes: &[u8; MESSAGE_LEN], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|b| b.first_chunk::<N>())
        .copied()
        .unwrap_or([0; N])
}

impl Message {
    /// The wire form.
    pub fn emit(&self) -> [u8; MESSAGE_LEN] {
        let (kind, reason) = match self.kind {
            Kind::Hello => (1, 0),
            Kind::HelloAck => (2, 0),
            Kind::Refused(Refusal::Version) => (3, 1),
            Kind::Refused(Refusal::HopIdTaken) => (3, 2),
            Kind::Refused(Refusal::NotAllowed) => (3, 3),
            Kind::Bye => (4, 0),
            Kind::ByeAck => (5, 0),
        };
        let facts = &self.facts;
        let mut out = [0; MESSAGE_LEN];
        put(&mut out, 0, &MAGIC);
        put(
            &mut out,
            4,
            &[facts.versions.0, facts.versions.1, kind, reason],
        );
        put(&mut out, 8, &facts.features.to_le_bytes());
        put(&mut out, 12, &facts.window.to_le_bytes());
        put(&mut out, 14, &facts.rx_capacity.to_le_bytes());
        put(&mut out, 16, &facts.host);
        put(&mut out, 32, &facts.host_nonce.to_le_bytes());
        put(&mut out, 40, &facts.link_nonce.to_le_bytes());
        put(&mut out, 48, &self.heard.to_le_bytes());
        put(&mut out, 56, &facts.router);
        put(&mut out, 72, &facts.peer_router);
        put(&mut out, 88, &facts.mac);
        put(&mut out, 94, &facts.mtu.to_le_bytes());
        put(&mut out, 96, &[facts.rails]);
        for (rail, hop) in facts.tx_hops.iter().enumerate() {
            put(&mut out, 100 + rail * 2, &hop.to_le_bytes());
        }
        out
    }

    /// Reads the wire form, which padding may follow. `None`: it is not a message of ours.
    ///
    /// Magic, versions, kind, nonces and routers stay where they are in every version, so that
    /// ends whose versions do not meet can tell each other. The other facts of a message whose
    /// versions do not include ours mean nothing.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MESSAGE_LEN] = bytes.first_chunk()?;
        if take::<4>(bytes, 0) != MAGIC {
            return None;
        }
        let [oldest, newest, kind, reason] = take::<4>(bytes, 4);
        let kind = match (kind, reason) {
            (1, 0) => Kind::Hello,
            (2, 0) => Kind::HelloAck,
            (3, 1) => Kind::Refused(Refusal::Version),
            (3, 2) => Kind::Refused(Refusal::HopIdTaken),
            (3, 3) => Kind::Refused(Refusal::NotAllowed),
            (4, 0) => Kind::Bye,
            (5, 0) => Kind::ByeAck,
            _ => return None,
        };
        let mut tx_hops = [0; MAX_RAILS];
        for (rail, hop) in tx_hops.iter_mut().enumerate() {
            *hop = u16::from_le_bytes(take(bytes, 100 + rail * 2));
        }
        let facts = Facts {
            versions: (oldest, newest),
            features: u32::from_le_bytes(take(bytes, 8)),
            window: u16::from_le_bytes(take(bytes, 12)),
            rx_capacity: u16::from_le_bytes(take(bytes, 14)),
            host: take(bytes, 16),
            host_nonce: u64::from_le_bytes(take(bytes, 32)),
            link_nonce: u64::from_le_bytes(take(bytes, 40)),
            router: take(bytes, 56),
            peer_router: take(bytes, 72),
            mac: take(bytes, 88),
            mtu: u16::from_le_bytes(take(bytes, 94)),
            rails: take::<1>(bytes, 96)[0],
            tx_hops,
        };
        let message = Self {
            kind,
            facts,
            heard: u64::from_le_bytes(take(bytes, 48)),
        };
        message.is_sound().then_some(message)
    }

    /// Numbers are within their ranges.
    fn is_sound(&self) -> bool {
        let facts = &self.facts;
        let (oldest, newest) = facts.versions;
        if oldest == 0 || oldest > newest || facts.host_nonce == 0 || facts.link_nonce == 0 {
            return false;
        }
        if newest < VERSIONS.0 || oldest > VERSIONS.1 {
            return true;
        }
        let rails = usize::from(facts.rails);
        (1..=MAX_RAILS).contains(&rails)
            // HopIDs below 8 are reserved (USB4 v1, 5.2.4).
            && facts.tx_hops.iter().take(rails).all(|hop| (8..2048).contains(hop))
            && facts.window >= 1
            && facts.rx_capacity >= 1
            // One station, not a group, and not nothing.
            && facts.mac[0] & 1 == 0
            && facts.mac != [0; 6]
    }
}
