//! What the two ends do, and what has to come of it.

use super::sim::Chance;
use tbrdma_proto::rc::Op;

pub const RECEIVE: usize = 512;
/// The lower half of a node's memory is written by the other node, the upper half is read.
pub const MEMORY: usize = 4096;
const READABLE: usize = MEMORY / 2;
pub const KEY: u32 = 77;

const OPS: [Op; 6] = [
    Op::Send,
    Op::SendImm,
    Op::SendInv,
    Op::Write,
    Op::WriteImm,
    Op::Read,
];

/// What one message does.
#[derive(Clone, Debug)]
pub struct Message {
    pub op: Op,
    pub data: Vec<u8>,
    /// Of WRITE and READ.
    pub addr: u64,
    pub key: u32,
    pub fence: bool,
}

pub fn messages(seed: u64, count: usize) -> Vec<Message> {
    let mut chance = Chance::new(seed);
    (0..count)
        .map(|_| {
            let op = OPS[chance.below(OPS.len() as u32) as usize];
            let len = match chance.below(4) {
                0 => 0,
                1 => chance.below(20),
                _ => chance.below(RECEIVE as u32),
            };
            let from = if op == Op::Read { READABLE } else { 0 };
            Message {
                op,
                data: (0..len).map(|_| chance.next() as u8).collect(),
                addr: (from + chance.below((READABLE - RECEIVE) as u32) as usize) as u64,
                key: KEY,
                fence: chance.happens(200),
            }
        })
        .collect()
}

pub fn takes_receive(op: Op) -> bool {
    !matches!(op, Op::Write | Op::Read)
}

/// A message that used up a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub data: Vec<u8>,
    pub imm: Option<u32>,
    pub inv: Option<u32>,
}

/// What the responder has to end with: its memory, and what it received.
pub fn model(plan: &[Message]) -> (Vec<u8>, Vec<Received>) {
    let mut memory = initial_memory();
    let mut received = Vec::new();
    for (number, message) in plan.iter().enumerate() {
        let range = message.addr as usize..message.addr as usize + message.data.len();
        if matches!(message.op, Op::Write | Op::WriteImm) {
            memory[range].copy_from_slice(&message.data);
        }
        if takes_receive(message.op) {
            let number = Some(number as u32);
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
    (memory, received)
}

pub fn initial_memory() -> Vec<u8> {
    (0..MEMORY).map(|i| ((i * 31) >> 3) as u8).collect()
}
