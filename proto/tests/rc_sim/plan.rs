//! What the two ends do, and what has to come of it.

use super::sim::Chance;
use tbrdma_proto::rc::{AtomicOp, Op, Wqe, WqeFlags};

pub const RECEIVE: usize = 512;
/// The lower half of a node's memory is written by the other node, the upper half is read, and
/// atomics work on what comes behind.
pub const MEMORY: usize = 4096;
const READABLE: usize = MEMORY / 2;
const COUNTERS: u32 = 8;
pub const KEY: u32 = 77;

const OPS: [Op; 11] = [
    Op::Send,
    Op::SendImm,
    Op::SendInv,
    Op::Write,
    Op::WriteImm,
    Op::Read,
    Op::CmpSwap,
    Op::FetchAdd,
    Op::LocalInv,
    Op::RegMr,
    Op::BindMw,
];

/// What one message does.
#[derive(Clone, Debug)]
pub struct Message {
    pub op: Op,
    /// What is sent; of READ and atomics, so many bytes come.
    pub data: Vec<u8>,
    /// Of WRITE, READ and atomics.
    pub addr: u64,
    /// A wrong one is refused, by the responder or, of a local operation, by the requester.
    pub key: u32,
    pub fence: bool,
    /// Of atomics.
    pub atomic: AtomicOp,
}

impl Message {
    /// The entry of the message number `number`.
    pub fn wqe(&self, number: u32) -> Wqe {
        let flags = WqeFlags {
            signaled: true,
            solicited: false,
            fence: self.fence,
        };
        if self.op.is_atomic() {
            return Wqe::atomic(self.atomic, flags, self.addr, self.key);
        }
        let len = self.data.len() as u32;
        Wqe::new(self.op, flags, len, self.addr, self.key, number)
    }
}

pub fn messages(seed: u64, count: usize) -> Vec<Message> {
    let mut chance = Chance::new(seed);
    (0..count)
        .map(|_| {
            let op = OPS[chance.below(OPS.len() as u32) as usize];
            let len = match chance.below(4) {
                _ if op.is_atomic() => 8,
                _ if op.is_local() => 0,
                0 => 0,
                1 => chance.below(20),
                _ => chance.below(RECEIVE as u32),
            };
            let within = u64::from(chance.below((READABLE - RECEIVE) as u32));
            let addr = match op {
                Op::Read => READABLE as u64 + within,
                op if op.is_atomic() => MEMORY as u64 + 8 * u64::from(chance.below(COUNTERS)),
                _ => within,
            };
            // Small numbers, so that CMP_SWAP finds what it looks for from time to time.
            let mut number = || u64::from(chance.below(3));
            let atomic = match op {
                Op::CmpSwap => AtomicOp::CmpSwap {
                    compare: number(),
                    swap: number(),
                },
                _ => AtomicOp::FetchAdd { add: number() },
            };
            Message {
                op,
                data: (0..len).map(|_| chance.next() as u8).collect(),
                addr,
                key: KEY,
                fence: chance.happens(200),
                atomic,
            }
        })
        .collect()
}

/// Of these, the ones that an unreliable connection has.
pub fn unreliable(plan: Vec<Message>) -> Vec<Message> {
    plan.into_iter().filter(|m| !m.op.is_answered()).collect()
}

pub fn takes_receive(op: Op) -> bool {
    op.takes_receive()
}

/// Executes an atomic on `memory`; returns what was there before.
pub fn execute_atomic(memory: &mut [u8], addr: u64, op: AtomicOp) -> u64 {
    let at = addr as usize;
    let place: &mut [u8; 8] = (&mut memory[at..at + 8]).try_into().unwrap();
    let original = u64::from_le_bytes(*place);
    if let Some(value) = op.apply(original) {
        *place = value.to_le_bytes();
    }
    original
}

/// A message that used up a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub data: Vec<u8>,
    pub imm: Option<u32>,
    pub inv: Option<u32>,
}

/// What comes of messages.
pub struct Outcome {
    /// The responder's memory.
    pub memory: Vec<u8>,
    /// What the responder received.
    pub received: Vec<Received>,
    /// What READs and atomics brought, with their numbers.
    pub answers: Vec<(u32, Vec<u8>)>,
}

/// What has to come of these messages.
pub fn model(plan: &[Message]) -> Outcome {
    model_of(plan, |_| true)
}

/// What has to come of those that are executed.
pub fn model_of(plan: &[Message], executed: impl Fn(u32) -> bool) -> Outcome {
    let mut memory = initial_memory();
    let mut received = Vec::new();
    let mut answers = Vec::new();
    for (number, message) in (0u32..).zip(plan).filter(|(number, _)| executed(*number)) {
        let range = message.addr as usize..message.addr as usize + message.data.len();
        match message.op {
            Op::Write | Op::WriteImm => memory[range].copy_from_slice(&message.data),
            Op::Read => answers.push((number, memory[range].to_vec())),
            Op::CmpSwap | Op::FetchAdd => {
                let original = execute_atomic(&mut memory, message.addr, message.atomic);
                answers.push((number, original.to_le_bytes().to_vec()));
            }
            _ => {}
        }
        if takes_receive(message.op) {
            let number = Some(number);
            received.push(Received {
                data: match message.op {
                    Op::WriteImm => Vec::new(),
                    _ => message.data.clone(),
                },
                imm: number.filter(|_| matches!(message.op, Op::SendImm | Op::WriteImm)),
                inv: number.filter(|_| message.op == Op::SendInv),
            });
        }
    }
    Outcome {
        memory,
        received,
        answers,
    }
}

pub fn initial_memory() -> Vec<u8> {
    let mut memory: Vec<u8> = (0..MEMORY).map(|i| ((i * 31) >> 3) as u8).collect();
    memory.resize(MEMORY + 8 * COUNTERS as usize, 0);
    memory
}
