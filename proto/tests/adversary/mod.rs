//! What a hostile peer can do: each function turns arbitrary bytes into one, and checks that the
//! books stay right. The fuzz targets and the property tests run the same functions.

pub mod qp;
pub mod user;

use std::collections::BTreeSet;
use tbrdma_proto::frame::{patch_rail_fields, Header, Opcode, FRAME_MAX, HEADER_LEN};
use tbrdma_proto::hello::{Action, Facts, Hello, Message, State, MAX_RAILS, MESSAGE_LEN};
use tbrdma_proto::rail::{before, Config, Rail, Rx, CONTROL_MAX, MAX_WINDOW};
use tbrdma_proto::rc::{first_sqpn, AckEntries, AtomicExt, Kind, RethExt, SendExt, ACK_ENTRY_LEN};
use tbrdma_proto::ud::{Datagram, UD_EXT_LEN, UD_MTU};

/// Numbers out of the bytes that decide what happens; zeros when they are used up.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        let taken = self.take(4);
        bytes[..taken.len()].copy_from_slice(taken);
        u32::from_le_bytes(bytes)
    }

    /// A number that is mostly close to `around`: far ones are refused too easily.
    fn near(&mut self, around: u32) -> u32 {
        match self.u8() {
            0 => self.u32(),
            1 => around
                .wrapping_add(1 << 31)
                .wrapping_add(u32::from(self.u8())),
            2 => around.wrapping_sub(u32::from(self.u8()) * 8),
            3 => around.wrapping_add(u32::from(self.u8()) * 8),
            close => around.wrapping_add(u32::from(close)).wrapping_sub(8),
        }
    }
}

/// The parser takes what it likes and nothing else; what it takes can be written again.
pub fn frame(data: &[u8]) {
    let Ok((header, ext, payload)) = Header::parse(data) else {
        let mut changed = data.to_vec();
        patch_rail_fields(&mut changed, 1, 2);
        return;
    };
    assert!(HEADER_LEN + ext.len() + payload.len() <= data.len());
    let mut again = vec![0; FRAME_MAX];
    let at = header
        .emit(ext, payload.len(), &mut again)
        .expect("it fitted before");
    assert_eq!(again[..at], data[..at]);
    assert!(patch_rail_fields(&mut again, header.ack, header.credit));
    assert_eq!(again[..at], data[..at]);
}

/// Extensions and acknowledgements out of anything: what is taken is what would be written.
pub fn extensions(data: &[u8]) {
    if let Some(ext) = SendExt::parse(data) {
        assert_eq!(ext.emit()[..], *data);
    }
    if let Some(ext) = RethExt::parse(data) {
        assert_eq!(ext.emit()[..], *data);
    }
    if let Some(ext) = AtomicExt::parse(data) {
        assert_eq!(ext.emit()[..], *data);
    }
    for kind in [Kind::Send, Kind::Write, Kind::Read, Kind::Atomic] {
        assert!(first_sqpn(kind, data).is_none_or(|qpn| qpn >> 24 == 0));
    }
    let mut entries = AckEntries::new(data);
    let mut at = 0;
    for entry in &mut entries {
        assert_eq!(entry.emit()[..], data[at..at + ACK_ENTRY_LEN]);
        at += ACK_ENTRY_LEN;
    }
    assert_eq!(entries.rest(), &data[at..]);
    if let Some(message) = Message::parse(data) {
        assert_eq!(Message::parse(&message.emit()), Some(message));
    }
}

/// A rail whose other end says anything: what it delivers is in order, what it believes to be
/// acknowledged was sent, what it keeps is bounded, and it repeats nothing that it need not have.
pub fn rail(data: &[u8]) {
    let mut bytes = Bytes(data);
    let window = 1 + bytes.u32() % MAX_WINDOW;
    let capacity = 1 + bytes.u32() % window;
    let config = Config {
        window,
        rx_capacity: capacity,
        dead_after_us: 5_000_000,
    };
    let (first_tx, first_rx) = (bytes.u32(), bytes.u32());
    let mut books = Books {
        rail: Rail::new(config, 0),
        capacity,
        window,
        una: first_tx,
        next: first_tx,
        expected: first_rx,
        tag: (first_rx >> 16) as u16,
        held: BTreeSet::new(),
        now: 0,
    };
    books.rail.set_sequences(first_tx, first_rx);
    while !bytes.is_empty() {
        books.now += match bytes.u8() {
            pause @ 0..250 => u64::from(pause) * 16,
            pause => u64::from(pause) * 4_000,
        };
        match bytes.u8() % 4 {
            0 => books.send(),
            1 => books.rail.on_timeout(books.now),
            _ => books.receive(&mut bytes),
        }
        books.settle();
    }
}

struct Books {
    rail: Rail,
    capacity: u32,
    window: u32,
    /// Acknowledged up to here, sent up to there.
    una: u32,
    next: u32,
    expected: u32,
    tag: u16,
    held: BTreeSet<u32>,
    now: u64,
}

impl Books {
    fn send(&mut self) {
        let room = self.rail.room();
        assert!(room <= self.window);
        assert_eq!(self.rail.reserve(), room > 0);
        if room > 0 {
            let mut header = Header::default();
            assert_eq!(self.rail.commit(&mut header, self.now), self.next);
            assert_eq!(
                (header.seq, header.ack),
                (self.next as u16, self.expected as u16)
            );
            self.next = self.next.wrapping_add(1);
        }
    }

    fn receive(&mut self, bytes: &mut Bytes<'_>) {
        let opcode = match bytes.u8() % 4 {
            0 => Opcode::Nak,
            1 => Opcode::Ack,
            _ => Opcode::Send,
        };
        let foreign = bytes.u8() % 32 == 0;
        let header = Header {
            opcode,
            solicited: bytes.u8() % 8 == 0,
            seq: bytes.near(self.expected) as u16,
            ack: bytes.near(self.una) as u16,
            credit: bytes.near(self.next) as u16,
            tag: self.tag ^ u16::from(foreign),
            ..Header::default()
        };
        // No sequence that counts is 2^15 away.
        let ahead = u32::from(header.seq.wrapping_sub(self.expected as u16));
        let seq = if ahead < 1 << 15 {
            self.expected.wrapping_add(ahead)
        } else {
            self.expected.wrapping_sub((1 << 16) - ahead)
        };
        let mut payload = Vec::new();
        if opcode == Opcode::Nak {
            for _ in 0..bytes.u8() % 17 {
                payload.extend(bytes.near(self.una).to_le_bytes());
                payload.extend(bytes.near(self.next).to_le_bytes());
            }
            payload.truncate(payload.len() - payload.len().min(usize::from(bytes.u8() % 3)));
        }
        match self.rail.on_frame(&header, &payload, self.now) {
            verdict if foreign => assert_eq!(verdict, Rx::Outside),
            Rx::Deliver => {
                assert_eq!(seq, self.expected);
                self.expected = self.expected.wrapping_add(1);
                while let Some(seq) = self.rail.next_held() {
                    assert_eq!(seq, self.expected);
                    assert!(self.held.remove(&seq), "{seq} was never kept");
                    self.expected = self.expected.wrapping_add(1);
                }
            }
            Rx::Hold => {
                assert!(ahead > 0 && ahead < self.capacity);
                assert!(self.held.insert(seq), "kept twice");
            }
            Rx::Duplicate => {
                assert!(before(seq, self.expected) || self.held.contains(&seq));
            }
            Rx::Outside => assert!(opcode.is_sequenced()),
            Rx::Control => assert!(!opcode.is_sequenced()),
        }
        assert_eq!(self.rail.next_held(), None);
        assert!(self.held.len() < self.capacity as usize);
        let una = self.rail.una();
        let (acked, sent) = (una.wrapping_sub(self.una), self.next.wrapping_sub(self.una));
        assert!(acked <= sent, "acknowledged {acked} of {sent}");
        self.una = una;
    }

    fn settle(&mut self) {
        let mut from = self.una;
        while let Some(seq) = self.rail.next_retransmit(from) {
            assert!(seq.wrapping_sub(self.una) < self.next.wrapping_sub(self.una));
            assert!(!before(seq, from));
            if seq % 5 == 0 {
                self.rail.defer(seq);
            } else {
                self.rail.retransmitted(seq, self.now);
            }
            from = seq.wrapping_add(1);
        }
        assert_eq!(self.rail.next_retransmit(self.una), None);
        let mut payload = [0; CONTROL_MAX];
        for round in 0.. {
            let Some((header, len)) = self.rail.poll_control(self.now, &mut payload) else {
                break;
            };
            assert!(round < 40, "control frames without end");
            assert_eq!(
                (header.seq, header.ack),
                (self.next as u16, self.expected as u16)
            );
            let credit = header.credit.wrapping_sub(header.ack);
            assert_eq!(u32::from(credit), self.capacity);
            assert!(len <= CONTROL_MAX && !header.opcode.is_sequenced());
            for range in payload[..len].chunks_exact(8) {
                let from = u32::from_le_bytes(range[..4].try_into().unwrap());
                let to = u32::from_le_bytes(range[4..].try_into().unwrap());
                assert!(before(from, to) && !before(from, self.expected));
                assert!(to.wrapping_sub(self.expected) <= self.capacity);
                assert!(
                    (0..to.wrapping_sub(from)).all(|i| !self.held.contains(&from.wrapping_add(i)))
                );
            }
        }
        // Nobody waits for ever: while anything is under way, a timer runs.
        if self.una != self.next {
            assert!(self.rail.next_timeout().is_some());
        }
    }
}

/// An end of a cable whose other end says anything: it asks for nothing impossible, and is not
/// ready before its own paths are proven.
pub fn hello(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut hello = Hello::new(
        Facts {
            versions: (1, 1),
            features: 3,
            window: 256,
            rx_capacity: 200,
            host: [1; 16],
            host_nonce: 1,
            link_nonce: 1,
            router: [1; 16],
            peer_router: [2; 16],
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 4000,
            rails: 2,
            tx_hops: [8, 9, 0, 0],
        },
        0,
    );
    let mut now = 0;
    let mut proven = false;
    let mut hop = 10;
    while !bytes.is_empty() {
        now += u64::from(bytes.u8()) * 1000;
        match bytes.u8() % 8 {
            0 => hello.on_request_failed(now),
            1 => hello.broken(now),
            2 => {
                proven |= hello.state() == State::Proving;
                hello.proven();
            }
            kind => {
                let mut raw = bytes.take(MESSAGE_LEN).to_vec();
                raw.resize(MESSAGE_LEN, 1);
                // What a message has to have to be looked at.
                raw[..6].copy_from_slice(b"TBRD\x01\x01");
                raw[6] %= 6;
                raw[7] %= 4;
                if kind > 4 {
                    // The nonce that we want to hear.
                    raw[48..56].copy_from_slice(&hello.me().link_nonce.to_le_bytes());
                }
                if let Some(message) = Message::parse(&raw) {
                    if kind % 2 == 0 {
                        let answer = hello.on_request(&message, now);
                        assert_eq!(Message::parse(&answer.emit()), Some(answer));
                    } else {
                        hello.on_response(&message, now);
                    }
                }
            }
        }
        for round in 0.. {
            let Some(action) = hello.poll(now) else {
                break;
            };
            assert!(round < 10, "actions without end: {action:?}");
            match action {
                Action::Request(message) => {
                    assert_eq!(Message::parse(&message.emit()), Some(message));
                }
                Action::EnablePaths(agreed) | Action::Ready(agreed) => {
                    assert!(matches!(agreed.rails, 1..=2) && agreed.version == 1);
                    assert!(matches!(agreed.window, 1..=200));
                    assert!(agreed.rx_hops[..usize::from(agreed.rails)]
                        .iter()
                        .all(|hop| (8..2048).contains(hop)));
                    match hello.state() {
                        State::Ready => assert!(proven),
                        _ if bytes.u8() % 4 == 0 => hello.paths_failed(bytes.u8() % 2 == 0, now),
                        _ => hello.paths_enabled(now),
                    }
                }
                Action::OtherHops => {
                    hop = 10 + hop % 1000;
                    let mut hops = [0; MAX_RAILS];
                    hops[..2].copy_from_slice(&[hop, hop + 1]);
                    hello.set_hops(hops, now);
                }
                Action::Down => proven = false,
                Action::Ping | Action::Refused(_) => {}
            }
        }
    }
}

/// A datagram of a hostile peer: what is taken keeps the rules and is what would be written.
pub fn datagram(data: &[u8]) {
    let mut bytes = Bytes(data);
    let (flags, kind) = (bytes.u8(), bytes.u8());
    let mut ext = bytes.take(UD_EXT_LEN).to_vec();
    if kind % 8 != 0 {
        // What a datagram has to have to be looked at.
        ext.resize(UD_EXT_LEN, 1);
        ext[3] = 0;
        ext[12..16].fill(0);
    }
    let usual = kind % 4 != 0;
    let header = Header {
        opcode: if kind == 0 {
            Opcode::Send
        } else {
            Opcode::Datagram
        },
        first: usual || flags & 1 != 0,
        last: usual || flags & 2 != 0,
        imm: flags & 4 != 0,
        inv: flags & 8 != 0,
        solicited: flags & 16 != 0,
        dqpn: bytes.u32() >> 8,
        msn: if usual { 0 } else { bytes.u32() },
        offset: if usual { 0 } else { bytes.u32() },
        ..Header::default()
    };
    let len = bytes.u32() as usize % 4065;
    if let Ok(datagram) = Datagram::parse(&header, &ext, len) {
        assert!(len <= UD_MTU && datagram.dqpn != 0 && datagram.sqpn >> 24 == 0);
        let (own, own_ext) = datagram.emit(len).expect("it was taken");
        assert_eq!((own, &own_ext[..]), (header, &ext[..]));
        let route = datagram.route_header(len);
        assert!(matches!((route[0] >> 4, route[20]), (6, _) | (0, 0x45)));
    }
}
