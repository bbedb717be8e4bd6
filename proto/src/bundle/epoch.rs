//! Which bundle a new rail belongs to.
//!
//! An end that has lost all rails forgets the other host, and its numbers begin at 0 when it meets
//! it again. The other end may not have noticed yet, and still count on. So each end draws a random
//! nonce when it makes its state for a host, and the PING and PONG that prove a new rail carry it,
//! together with the nonce of the other end that this state began with. A rail joins only if the
//! two agree; see [`Epoch::judge`].

/// Bytes of the wire form.
pub const EPOCH_LEN: usize = 16;

/// What an end says about the bundle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// Nonce of this end's state; not 0.
    pub mine: u64,
    /// Nonce of the other end that this state began with. 0: it has not begun, so nothing was sent
    /// or delivered.
    pub yours: u64,
}

/// What follows from what the two ends say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The rail belongs to this end's bundle, which begins now if it had not.
    Join,
    /// The other end has begun anew: this end's bundle is lost, with all its rails.
    Over,
    /// The other end is in a bundle that is over, and is about to notice. Try again.
    Wait,
}

impl Epoch {
    /// The wire form: both nonces, little-endian.
    pub fn emit(&self) -> [u8; EPOCH_LEN] {
        let mut bytes = [0; EPOCH_LEN];
        let (mine, yours) = bytes.split_at_mut(8);
        mine.copy_from_slice(&self.mine.to_le_bytes());
        yours.copy_from_slice(&self.yours.to_le_bytes());
        bytes
    }

    /// Reads the wire form. `None`: it is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mine = bytes.first_chunk::<8>()?;
        let yours = bytes.get(8..)?.first_chunk::<8>()?;
        let mine = u64::from_le_bytes(*mine);
        let yours = u64::from_le_bytes(*yours);
        (mine != 0).then_some(Self { mine, yours })
    }

    /// This end says `self`, the other one `theirs`.
    pub fn judge(&self, theirs: &Self) -> Verdict {
        if self.yours != 0 && self.yours != theirs.mine {
            Verdict::Over
        } else if theirs.yours != 0 && theirs.yours != self.mine {
            Verdict::Wait
        } else {
            Verdict::Join
        }
    }

    /// What sequenced frames of this bundle add to the tags of their rails, to send and to
    /// receive: see [`Rail::set_bundle`](super::super::rail::Rail::set_bundle). Should the news
    /// that an end judged by be out of date, its frames are not taken.
    pub fn tags(&self) -> (u16, u16) {
        (tag(self.mine, self.yours), tag(self.yours, self.mine))
    }
}

fn tag(sender: u64, receiver: u64) -> u16 {
    let mixed = sender.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ receiver.rotate_left(32);
    (mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 48) as u16
}
