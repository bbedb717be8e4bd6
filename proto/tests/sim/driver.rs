//! A rail with its rings, driven as the kernel module does it.

use super::{Chance, Frame, Upper};
use std::collections::VecDeque;
use tbrdma_proto::bundle::Epoch;
use tbrdma_proto::frame::{patch_rail_fields, Header, Opcode, FRAME_MAX};
use tbrdma_proto::rail::{Config, Rail, Rx, CONTROL_MAX};

/// Frames taken from the ring in one run.
const BATCH: usize = 64;

/// Time that a frame takes on the wire, microseconds: 4096 bytes at 20 Gb/s.
const FRAME_TIME: u64 = 2;

/// What a rail and its rings are like.
#[derive(Clone, Debug)]
pub struct Setting {
    pub window: u32,
    pub rx_capacity: u32,
    /// Descriptors of the rings.
    pub tx_size: usize,
    pub rx_size: usize,
    /// Timers go off at multiples of this, microseconds: the kernel's clock tick.
    pub tick: u64,
    /// From a frame's arrival to the run that looks at it, at the most, microseconds.
    pub irq_delay: u32,
    pub dead_after: u64,
    /// First sequences, to send and to receive.
    pub first_seqs: (u32, u32),
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            window: 256,
            rx_capacity: 256,
            tx_size: 512,
            rx_size: 288,
            tick: 4_000,
            irq_delay: 50,
            dead_after: 5_000_000,
            first_seqs: (0, 0),
        }
    }
}

struct Sent {
    bundle: u32,
    bytes: Vec<u8>,
    in_ring: bool,
}

/// A rail with its rings.
pub struct Driver {
    pub rail: Rail,
    setting: Setting,
    /// Frames that wait for the hardware, with the sequence of data frames.
    tx: VecDeque<(Vec<u8>, Option<u32>)>,
    tx_busy_until: u64,
    sent: Vec<Option<Sent>>,
    /// Frames that the hardware has received.
    rx: VecDeque<Vec<u8>>,
    held: Vec<Option<Vec<u8>>>,
    run_at: Option<u64>,
    timer_at: Option<u64>,
    next_seq: u32,
    /// The work item does not run before this time.
    stopped_until: u64,
    /// Pongs that came, not yet looked at.
    pub pongs: Vec<u64>,
    /// What pings and pongs say of the bundle, and what the last pong said.
    pub epoch: Epoch,
    pub heard: Option<Epoch>,
    /// Numbers in the bundle of frames that were acknowledged, not yet looked at.
    pub acknowledged: Vec<u32>,
    /// Data frames are dropped until this is set.
    pub open: bool,
    /// Frames that found no descriptor.
    pub overruns: u64,
    /// Frames that were not understood.
    pub malformed: u64,
    /// Control frames sent.
    pub controls: u64,
    /// Most frames that were kept out of order at one time.
    pub most_held: usize,
}

impl Driver {
    pub fn new(setting: Setting, now: u64) -> Self {
        let config = Config {
            window: setting.window,
            rx_capacity: setting.rx_capacity,
            dead_after_us: setting.dead_after,
        };
        let mut rail = Rail::new(config, now);
        let (tx, rx) = setting.first_seqs;
        rail.set_sequences(tx, rx);
        // Sequences wrap at 2^32, so the tables have to be a power of two.
        let places = setting.window.next_power_of_two() as usize;
        Self {
            rail,
            tx: VecDeque::new(),
            tx_busy_until: 0,
            sent: (0..places).map(|_| None).collect(),
            rx: VecDeque::new(),
            held: vec![None; places],
            run_at: Some(now),
            timer_at: None,
            next_seq: tx,
            stopped_until: 0,
            setting,
            pongs: Vec::new(),
            epoch: Epoch::default(),
            heard: None,
            acknowledged: Vec::new(),
            open: true,
            overruns: 0,
            malformed: 0,
            controls: 0,
            most_held: 0,
        }
    }

    fn place(&self, seq: u32) -> usize {
        seq as usize & (self.sent.len() - 1)
    }

    fn held_count(&self) -> usize {
        self.held.iter().flatten().count()
    }

    /// A frame arrives at the hardware.
    pub fn arrive(&mut self, frame: Vec<u8>, now: u64, chance: &mut Chance) {
        if self.rx.len() + self.held_count() >= self.setting.rx_size {
            self.overruns += 1;
            return;
        }
        self.rx.push_back(frame);
        let at = now + u64::from(chance.below(self.setting.irq_delay + 1));
        self.ask_run(at);
    }

    pub fn ask_run(&mut self, at: u64) {
        self.run_at = Some(self.run_at.map_or(at, |old| old.min(at)));
    }

    /// The frame that the hardware puts on the wire now.
    pub fn transmit(&mut self, now: u64) -> Option<Vec<u8>> {
        if now < self.tx_busy_until {
            return None;
        }
        let (bytes, seq) = self.tx.pop_front()?;
        if let Some(seq) = seq {
            let place = self.place(seq);
            if let Some(sent) = &mut self.sent[place] {
                sent.in_ring = false;
            }
        }
        self.tx_busy_until = now + FRAME_TIME;
        if self.tx.len() + 1 == self.setting.tx_size {
            // Senders were waiting for a descriptor.
            self.ask_run(now);
        }
        Some(bytes)
    }

    /// When the next of [`transmit`](Self::transmit) and [`run`](Self::run) is due.
    pub fn next_event(&self, upper: Option<u64>) -> Option<u64> {
        let transmit = (!self.tx.is_empty()).then_some(self.tx_busy_until);
        let work = [self.run_at, self.timer_at, upper].into_iter().flatten();
        let work = work.map(|at| at.max(self.stopped_until));
        work.chain(transmit).min()
    }

    /// The work item does not run before this time.
    pub fn stop(&mut self, until: u64) {
        self.stopped_until = until;
    }

    /// The driver's work item, if it is due.
    pub fn run(&mut self, upper: &mut impl Upper, now: u64) {
        if now < self.stopped_until {
            return;
        }
        let timer = self.timer_at.is_some_and(|at| at <= now);
        let asked = self.run_at.is_some_and(|at| at <= now);
        let wanted = upper.next_timeout().is_some_and(|at| at <= now);
        if !timer && !asked && !wanted {
            return;
        }
        if timer {
            self.timer_at = None;
            self.rail.on_timeout(now);
        }
        self.run_at = None;
        for _ in 0..BATCH {
            let Some(bytes) = self.rx.pop_front() else {
                break;
            };
            self.receive(&bytes, upper, now);
        }
        upper.batch_end(now);
        if !self.rx.is_empty() {
            self.ask_run(now + 20);
        }
        self.settle(upper, now);
    }

    fn receive(&mut self, bytes: &[u8], upper: &mut impl Upper, now: u64) {
        let Ok((header, ext, payload)) = Header::parse(bytes) else {
            self.malformed += 1;
            return;
        };
        if header.opcode.is_sequenced() && !self.open {
            return;
        }
        let una = self.rail.una();
        let verdict = self.rail.on_frame(&header, payload, now);
        self.free_acked(una);
        let place = self.place(header.seq.into());
        match verdict {
            Rx::Deliver => {
                deliver(upper, header, ext, payload, now);
                while let Some(seq) = self.rail.next_held() {
                    let place = self.place(seq);
                    let bytes = self.held[place].take().expect("was kept");
                    let (header, ext, payload) = Header::parse(&bytes).expect("was understood");
                    assert_eq!(
                        header.seq, seq as u16,
                        "another frame was kept in this place"
                    );
                    deliver(upper, header, ext, payload, now);
                }
            }
            Rx::Hold => {
                let old = self.held[place].replace(bytes.to_vec());
                assert!(old.is_none(), "two frames in one place");
                let held = self.held_count();
                self.most_held = self.most_held.max(held);
                assert!(held < self.setting.rx_capacity as usize);
            }
            Rx::Duplicate | Rx::Outside => {}
            Rx::Control => match header.opcode {
                Opcode::Ping => self.send_proof(Opcode::Pong, &payload[..8]),
                Opcode::Pong => {
                    let nonce = payload.first_chunk().expect("a pong has a nonce");
                    self.pongs.push(u64::from_le_bytes(*nonce));
                    self.heard = Epoch::parse(&payload[8..]);
                }
                _ => {}
            },
        }
    }

    /// Frames whose acknowledgement has come since `una`.
    fn free_acked(&mut self, una: u32) {
        let mut seq = una;
        while seq != self.rail.una() {
            let place = self.place(seq);
            let sent = self.sent[place].take();
            let sent = sent.unwrap_or_else(|| panic!("{seq} was not sent"));
            self.acknowledged.push(sent.bundle);
            seq = seq.wrapping_add(1);
        }
    }

    pub fn ping(&mut self, nonce: u64) {
        self.send_proof(Opcode::Ping, &nonce.to_le_bytes());
    }

    fn send_proof(&mut self, opcode: Opcode, nonce: &[u8]) {
        let payload = [nonce, &self.epoch.emit()[..]].concat();
        self.send_control(opcode, &payload);
    }

    fn send_control(&mut self, opcode: Opcode, payload: &[u8]) {
        let mut header = Header {
            opcode,
            ..Header::default()
        };
        self.rail.stamp_control(&mut header);
        self.push_control(&header, payload);
    }

    fn push_control(&mut self, header: &Header, payload: &[u8]) {
        assert_eq!(header.seq, self.next_seq as u16);
        // Without a descriptor it is as good as lost.
        if self.tx.len() < self.setting.tx_size {
            self.controls += 1;
            self.tx.push_back((emit(header, &[], payload), None));
        }
    }

    fn settle(&mut self, upper: &mut impl Upper, now: u64) {
        let mut from = self.rail.una();
        while let Some(seq) = self.rail.next_retransmit(from) {
            from = seq.wrapping_add(1);
            let place = self.place(seq);
            let sent = self.sent[place].as_mut().expect("kept until acknowledged");
            if sent.in_ring {
                self.rail.defer(seq);
            } else if self.tx.len() < self.setting.tx_size {
                let (ack, credit) = self.rail.fields();
                assert!(patch_rail_fields(&mut sent.bytes, ack, credit));
                sent.in_ring = true;
                self.tx.push_back((sent.bytes.clone(), Some(seq)));
                self.rail.retransmitted(seq, now);
            }
        }
        let mut payload = [0; CONTROL_MAX];
        for round in 0.. {
            let Some((header, len)) = self.rail.poll_control(now, &mut payload) else {
                break;
            };
            assert!(round < 40, "control frames without end: {:?}", self.rail);
            self.push_control(&header, &payload[..len]);
        }
        while self.tx.len() < self.setting.tx_size && self.rail.reserve() {
            let Some(frame) = upper.want_send(now) else {
                self.rail.cancel();
                break;
            };
            self.send(frame, now);
        }
        let deadline = self.rail.next_timeout();
        self.timer_at =
            deadline.map(|at| (at.max(now) / self.setting.tick + 1) * self.setting.tick);
    }

    fn send(&mut self, frame: Frame, now: u64) {
        let mut header = frame.header;
        let seq = self.rail.commit(&mut header, now);
        assert_eq!(seq, self.next_seq);
        self.next_seq = seq.wrapping_add(1);
        let bytes = emit(&header, &frame.ext, &frame.payload);
        self.tx.push_back((bytes.clone(), Some(seq)));
        let place = self.place(seq);
        let old = self.sent[place].replace(Sent {
            bundle: header.bundle,
            bytes,
            in_ring: true,
        });
        assert!(old.is_none(), "the window is larger than agreed on");
    }

    /// The driver ends: what it has sent and nobody has acknowledged, in the order of sending.
    pub fn into_unacknowledged(mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut seq = self.rail.una();
        while seq != self.next_seq {
            let place = self.place(seq);
            let sent = self.sent[place].take().expect("kept until acknowledged");
            let (header, ext, payload) = Header::parse(&sent.bytes).expect("was sent");
            frames.push(frame_of(header, ext, payload));
            seq = seq.wrapping_add(1);
        }
        frames
    }

    /// Everything that was sent has been acknowledged.
    pub fn is_idle(&self) -> bool {
        self.rail.una() == self.next_seq
    }
}

fn emit(header: &Header, ext: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; FRAME_MAX];
    let at = header.emit(ext, payload.len(), &mut bytes).expect("fits");
    bytes.truncate(at + payload.len());
    bytes[at..].copy_from_slice(payload);
    bytes
}

fn deliver(upper: &mut impl Upper, header: Header, ext: &[u8], payload: &[u8], now: u64) {
    upper.deliver(frame_of(header, ext, payload), now);
}

fn frame_of(header: Header, ext: &[u8], payload: &[u8]) -> Frame {
    Frame {
        // The rail's own fields are none of the upper layer's business.
        header: Header {
            seq: 0,
            ack: 0,
            credit: 0,
            tag: 0,
            ..header
        },
        ext: ext.to_vec(),
        payload: payload.to_vec(),
    }
}
