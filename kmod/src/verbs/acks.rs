// SPDX-License-Identifier: GPL-2.0-only
//! Acknowledgements to the peers: many QPs' news in one frame.

use super::qp::Qp;
use super::{Hca, MAX_ANSWERS};
use crate::link::{Peer, TxError};
use crate::proto::frame::{Header, Opcode};
use crate::proto::rc::{first_sqpn, AckEntry, Kind, NakCode, Syndrome, ACK_ENTRY_LEN};
use kernel::prelude::*;
use kernel::sync::Arc;

/// Entries of one frame.
const BATCH: usize = 32;

/// Sends what QPs owe to `peer`, until nothing is owed or there is no room.
pub(super) fn flush(hca: &Hca, peer: &Arc<Peer>) {
    while flush_answers(hca, peer) {}
    while flush_owed(hca, peer) {}
}

/// Sends one frame of entries.
fn send(hca: &Hca, peer: &Arc<Peer>, entries: &[AckEntry]) -> Result<(), TxError> {
    let header = Header {
        opcode: Opcode::QpAck,
        ..Header::default()
    };
    peer.send(0, header, &[], entries.len() * ACK_ENTRY_LEN, |to| {
        for (bytes, entry) in to.chunks_exact_mut(ACK_ENTRY_LEN).zip(entries) {
            bytes.copy_from_slice(&entry.emit());
        }
        Ok(())
    })?;
    for entry in entries {
        hca.counters.ack_sent(entry);
    }
    Ok(())
}

/// One frame of answers that belong to no QP. Returns whether there may be more to send.
fn flush_answers(hca: &Hca, peer: &Arc<Peer>) -> bool {
    let mut answers = hca.answers.lock();
    let mut batch = Batch::new();
    for (to, entry) in answers.iter() {
        if *to == peer.id() && !batch.push(*entry) {
            break;
        }
    }
    if batch.is_empty() || send(hca, peer, batch.entries()) == Err(TxError::Full) {
        return false;
    }
    let mut left = batch.entries().len();
    answers.retain(|(to, _)| {
        let sent = *to == peer.id() && left > 0;
        left -= usize::from(sent);
        !sent
    });
    true
}

/// One frame of acknowledgements of QPs. Returns whether there may be more to send.
fn flush_owed(hca: &Hca, peer: &Arc<Peer>) -> bool {
    let mut batch = Batch::new();
    let mut qps: [Option<Arc<Qp>>; BATCH] = [const { None }; BATCH];
    for place in &mut qps {
        let Some(qp) = hca.owing.pop_for(peer) else {
            break;
        };
        if let Some(entry) = qp.take_ack() {
            batch.push(entry);
            *place = Some(qp);
        }
    }
    if batch.is_empty() {
        return false;
    }
    let sent = send(hca, peer, batch.entries());
    for (qp, entry) in qps.iter().flatten().zip(batch.entries()) {
        match sent {
            Err(TxError::Full) => Qp::restore_ack(qp, entry),
            _ => Qp::ack_sent(qp, entry),
        }
    }
    sent.is_ok()
}

struct Batch {
    entries: [AckEntry; BATCH],
    len: usize,
}

impl Batch {
    fn new() -> Self {
        let nothing = AckEntry::new(0, 0, Syndrome::Ack);
        Self {
            entries: [nothing; BATCH],
            len: 0,
        }
    }

    fn push(&mut self, entry: AckEntry) -> bool {
        let Some(place) = self.entries.get_mut(self.len) else {
            return false;
        };
        *place = entry;
        self.len += 1;
        true
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn entries(&self) -> &[AckEntry] {
        self.entries.get(..self.len).unwrap_or(&[])
    }
}

/// Keeps an answer for the next flush.
pub(super) fn answer(hca: &Hca, peer: &Arc<Peer>, entry: AckEntry) {
    let mut answers = hca.answers.lock();
    let same = (peer.id(), entry);
    if answers.len() < MAX_ANSWERS && !answers.contains(&same) {
        // Within the capacity.
        let _ = answers.push_within_capacity(same);
    }
}

/// Tells a requester that the QP it talks to does not exist.
pub(super) fn answer_for_missing(hca: &Hca, peer: &Arc<Peer>, hdr: &Header, ext: &[u8]) {
    let Some(kind) = Kind::of(hdr.opcode) else {
        return;
    };
    if let Some(qpn) = first_sqpn(kind, ext) {
        let syndrome = Syndrome::Nak(NakCode::Gone);
        answer(hca, peer, AckEntry::new(qpn, hdr.msn, syndrome));
    }
}
