//! The transfer itself.

use crate::endpoint::{Done, Endpoint, Failure, Send};
use crate::ffi;
use crate::pattern::Pattern;
use crate::race::Race;
use crate::side::{Facts, Side};
use crate::Mode;
use anyhow::{bail, ensure, Context, Result};
use serde::Serialize;
use std::time::{Duration, Instant};

/// What to do.
pub struct Plan<'a> {
    pub mode: Mode,
    /// This end sends (or reads) messages.
    pub sends: bool,
    /// This end takes messages.
    pub receives: bool,
    pub size: usize,
    pub count: u64,
    /// Messages under way at once.
    pub depth: usize,
    pub seed: u64,
    /// Number of the stream that this end sends; the other end's is 1 less that.
    pub our_stream: u64,
    pub stall_limit: Duration,
    /// An error has to come, within this time after the last progress.
    pub expect_error: Option<Duration>,
    /// The transfers that run together, and which of them this is.
    pub race: (&'a Race, usize),
}

/// The numbers that atomics work on.
mod atomic {
    /// What each adds: carries go through all bytes.
    pub const STEP: u64 = 0x0101_0101_0101_0101;

    /// The number in `slot` after so many additions.
    pub fn number(seed: u64, slot: u64, additions: u64) -> u64 {
        let first = (seed << 32) ^ slot.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        first.wrapping_add(STEP.wrapping_mul(additions))
    }
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Messages sent (or read) to the end.
    pub sent: u64,
    /// Messages taken and found right.
    pub received: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// The error that was expected.
    pub error: Option<String>,
}

/// Memories of an endpoint.
const OUT: usize = 0;
const IN: usize = 1;
/// What the other end has taken of our messages; written by it.
const TAKEN_OF_OURS: usize = 2;
/// What we have taken, from where it is written to the other end.
const TAKEN_BY_US: usize = 3;

/// Ids of requests that move messages have this bit clear.
const CREDIT: u64 = 1 << 63;
const RECEIVE: u64 = 1 << 62;

struct Transfer<'a> {
    plan: &'a Plan<'a>,
    endpoint: Endpoint,
    peer: Facts,
    /// Messages posted, and done.
    posted: u64,
    sent: u64,
    received: u64,
    /// Messages whose taking was told to the other end.
    told: u64,
    telling: bool,
    progress: Instant,
}

/// After this time without anything under way the state of the QP is looked at.
const IDLE: Duration = Duration::from_secs(1);

/// Moves the messages and checks them.
pub fn run(plan: &Plan<'_>, device: &str, gid_index: u8, mut side: Side) -> Result<Report> {
    let whole = plan.size * plan.depth;
    let sizes = [whole, whole, 8, 8];
    let mut endpoint = Endpoint::new(device, gid_index, plan.depth, &sizes)?;
    if plan.mode == Mode::Read {
        // What is read is the same in every round.
        for slot in 0..plan.depth {
            let pattern = Pattern::new(plan.seed, 2, slot as u64);
            pattern.fill(endpoint.memories[OUT].part_mut(slot * plan.size, plan.size));
        }
    }
    if plan.mode == Mode::Atomic {
        for slot in 0..plan.depth {
            let number = atomic::number(plan.seed, slot as u64, 0);
            endpoint.memories[OUT]
                .part_mut(slot * 8, 8)
                .copy_from_slice(&number.to_ne_bytes());
        }
    }
    let (qpn, gid) = endpoint.identity();
    let data = if plan.mode.is_one_sided() { OUT } else { IN };
    let facts = Facts {
        qpn,
        gid,
        data_addr: endpoint.memories[data].addr(),
        data_key: endpoint.memories[data].rkey(),
        credit_addr: endpoint.memories[TAKEN_OF_OURS].addr(),
        credit_key: endpoint.memories[TAKEN_OF_OURS].rkey(),
        size: plan.size as u64,
        depth: plan.depth as u64,
        count: plan.count,
    };
    side.tell(&facts)?;
    let peer: Facts = side.hear()?;
    let same = |f: &Facts| (f.size, f.depth, f.count);
    ensure!(
        same(&peer) == same(&facts),
        "both ends need the same size, depth and count: {:?} here, {:?} there",
        same(&facts),
        same(&peer)
    );
    endpoint.connect(peer.qpn, peer.gid)?;
    let start = Instant::now();
    let mut transfer = Transfer {
        plan,
        endpoint,
        peer,
        posted: 0,
        sent: 0,
        received: 0,
        told: 0,
        telling: false,
        progress: start,
    };
    if plan.receives && !plan.mode.is_one_sided() {
        transfer
            .post_receives(0..plan.depth as u64)
            .context("cannot post receives")?;
    }
    side.tell(&"ready")?;
    side.hear::<String>()?;
    transfer.progress = Instant::now();
    let outcome = transfer.go(&mut side);
    let seconds = start.elapsed().as_secs_f64();
    let silence = transfer.progress.elapsed();
    let report = |error| Report {
        sent: transfer.sent,
        received: transfer.received,
        bytes: (transfer.sent + transfer.received) * plan.size as u64,
        seconds,
        error,
    };
    match (outcome, plan.expect_error) {
        (Ok(()), None) => Ok(report(None)),
        (Err(error), None) => Err(error.context(format!(
            "after {} messages sent and {} received",
            transfer.sent, transfer.received
        ))),
        (Ok(()), Some(_)) => bail!("the transfer came to its end, an error was expected"),
        (Err(error), Some(limit)) => {
            ensure!(
                error.is::<Failure>(),
                "not the error that was expected: {error:#}"
            );
            ensure!(
                silence <= limit,
                "the error came {:.1} s after the last progress: {error:#}",
                silence.as_secs_f64()
            );
            Ok(report(Some(format!("{error:#}"))))
        }
    }
}

impl Transfer<'_> {
    fn finished(&self) -> bool {
        let plan = self.plan;
        let sent = !plan.sends || self.sent == plan.count;
        let received = !plan.receives || plan.mode.is_one_sided() || self.received == plan.count;
        sent && received && !self.telling
    }

    fn go(&mut self, side: &mut Side) -> Result<()> {
        let (race, own) = self.plan.race;
        race.begins();
        while !self.finished() {
            self.post_sends()?;
            let done = self.endpoint.completions(self.patience())?;
            if !done.is_empty() {
                self.progress = Instant::now();
            }
            let mut taken = Vec::new();
            for one in done {
                self.take(&one, &mut taken)?;
            }
            race.has_sent(own, self.sent);
            if let (Some(first), Some(last)) = (taken.first(), taken.last()) {
                self.post_receives(
                    first + self.plan.depth as u64..last + 1 + self.plan.depth as u64,
                )?;
            }
            self.tell_taken()?;
            if self.posted == self.sent && self.progress.elapsed() > IDLE {
                self.endpoint.look()?;
            }
            ensure!(
                self.progress.elapsed() < self.plan.stall_limit,
                "no progress for {} s; {} messages were posted, {} are done",
                self.plan.stall_limit.as_secs(),
                self.posted,
                self.sent
            );
        }
        race.ends();
        // The one who only answers keeps its memory until the other has what it wants.
        side.set_patience(self.plan.stall_limit.max(Duration::from_secs(1800)))?;
        side.tell(&"done")?;
        side.hear::<String>()?;
        if self.plan.mode == Mode::Atomic && self.plan.receives {
            self.compare_totals()?;
        }
        Ok(())
    }

    /// Every FETCH_ADD of the other end was executed once.
    fn compare_totals(&self) -> Result<()> {
        let depth = self.plan.depth as u64;
        for slot in 0..depth {
            // Messages `slot`, `slot + depth` and so on, below `count`.
            let rounds = (self.plan.count + depth - 1 - slot) / depth;
            let expected = atomic::number(self.plan.seed, slot, rounds);
            self.compare_number(OUT, self.slot(slot), expected)
                .with_context(|| format!("number {slot} after {rounds} additions"))?;
        }
        Ok(())
    }

    fn compare_number(&self, memory: usize, at: usize, expected: u64) -> Result<()> {
        let bytes = self.endpoint.memories[memory].part(at, 8);
        let found = u64::from_ne_bytes(bytes.try_into()?);
        ensure!(found == expected, "it is {found:#x}, not {expected:#x}");
        Ok(())
    }

    /// How long to sleep without a completion. That the other end has taken messages gives none.
    fn patience(&self) -> Duration {
        let waits_for_credit =
            self.plan.mode == Mode::Write && self.plan.sends && self.posted < self.plan.count;
        Duration::from_millis(if waits_for_credit { 1 } else { 100 })
    }

    fn slot(&self, number: u64) -> usize {
        (number % self.plan.depth as u64) as usize * self.plan.size
    }

    /// How many messages may be posted, by what the other end has taken.
    fn allowed(&self) -> u64 {
        let depth = self.plan.depth as u64;
        match self.plan.mode {
            // Own slots are free when their send is done; receives wait at the other end.
            Mode::Send | Mode::Read | Mode::Atomic => self.sent + depth,
            Mode::Write => {
                let taken = self.endpoint.memories[TAKEN_OF_OURS].counter();
                (taken + depth).min(self.sent + depth)
            }
        }
    }

    fn post_sends(&mut self) -> Result<(), Failure> {
        if !self.plan.sends {
            return Ok(());
        }
        let end = self.allowed().min(self.plan.count);
        let mut batch = Vec::new();
        while self.posted < end {
            let number = self.posted;
            let at = self.slot(number);
            let size = self.plan.size;
            let (opcode, memory) = match self.plan.mode {
                Mode::Send => (ffi::WR_SEND_IMM, OUT),
                Mode::Write => (ffi::WR_WRITE_IMM, OUT),
                Mode::Read => (ffi::WR_READ, IN),
                Mode::Atomic => (ffi::WR_FETCH_ADD, IN),
            };
            if self.plan.mode.is_one_sided() {
                self.endpoint.memories[IN].part_mut(at, size).fill(0);
            } else {
                let pattern = Pattern::new(self.plan.seed, self.plan.our_stream, number);
                pattern.fill(self.endpoint.memories[OUT].part_mut(at, size));
            }
            batch.push(Send {
                id: number,
                opcode,
                from: (memory, at, size),
                imm: number as u32,
                remote: (self.peer.data_addr + at as u64, self.peer.data_key),
                add: atomic::STEP,
            });
            self.posted += 1;
            if batch.len() == 64 {
                self.endpoint.send(&batch)?;
                batch.clear();
            }
        }
        self.endpoint.send(&batch)
    }

    fn post_receives(&mut self, numbers: std::ops::Range<u64>) -> Result<(), Failure> {
        // A WRITE brings its bytes elsewhere: the receive is for its immediate data only.
        let len = if self.plan.mode == Mode::Send {
            self.plan.size
        } else {
            0
        };
        let receives: Vec<_> = numbers
            .map(|n| (RECEIVE | n, IN, self.slot(n), len))
            .collect();
        self.endpoint.receive(&receives)
    }

    /// Looks at a completion; numbers of receives that are free again go to `taken`.
    fn take(&mut self, done: &Done, taken: &mut Vec<u64>) -> Result<()> {
        let plan = self.plan;
        if done.id & CREDIT != 0 {
            self.telling = false;
            return Ok(());
        }
        if !done.receive {
            ensure!(
                done.id == self.sent,
                "send {} completed before {}",
                done.id,
                self.sent
            );
            if plan.mode == Mode::Read {
                let slot = done.id % plan.depth as u64;
                self.compare(done.id, Pattern::new(plan.seed, 2, slot))?;
            }
            if plan.mode == Mode::Atomic {
                let depth = plan.depth as u64;
                let expected = atomic::number(plan.seed, done.id % depth, done.id / depth);
                self.compare_number(IN, self.slot(done.id), expected)
                    .with_context(|| format!("what atomic {} has found", done.id))?;
            }
            self.sent += 1;
            return Ok(());
        }
        let number = done.id & !RECEIVE;
        ensure!(
            number == self.received,
            "receive {number} completed before {}",
            self.received
        );
        ensure!(
            done.imm == Some(number as u32),
            "message {number} has immediate data {:?}",
            done.imm
        );
        ensure!(
            plan.mode != Mode::Send || done.len as usize == plan.size,
            "message {number} has {} bytes",
            done.len
        );
        self.compare(number, Pattern::new(plan.seed, 1 - plan.our_stream, number))?;
        self.received += 1;
        taken.push(number);
        Ok(())
    }

    fn compare(&self, number: u64, pattern: Pattern) -> Result<()> {
        let bytes = self.endpoint.memories[IN].part(self.slot(number), self.plan.size);
        if let Some(at) = pattern.mismatch(bytes) {
            bail!(
                "message {number} is wrong from byte {at} on: it has {:#04x} there",
                bytes[at]
            );
        }
        Ok(())
    }

    /// Tells the other end how many messages were taken, so that it may write over their slots.
    fn tell_taken(&mut self) -> Result<(), Failure> {
        let news = self.received - self.told;
        let enough = news >= (self.plan.depth as u64).div_ceil(2);
        if self.plan.mode != Mode::Write || self.telling || !enough {
            return Ok(());
        }
        let bytes = self.received.to_le_bytes();
        self.endpoint.memories[TAKEN_BY_US]
            .part_mut(0, 8)
            .copy_from_slice(&bytes);
        self.told = self.received;
        self.telling = true;
        self.endpoint.send(&[Send {
            id: CREDIT | self.received,
            opcode: ffi::WR_WRITE,
            from: (TAKEN_BY_US, 0, 8),
            imm: 0,
            remote: (self.peer.credit_addr, self.peer.credit_key),
            add: 0,
        }])
    }
}
