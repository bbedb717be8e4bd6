//! The state machine of one end of a cable.

use super::message::{Facts, Kind, Message, Refusal, MAX_RAILS};

/// First pause between requests; it doubles up to [`PAUSE_MAX_US`].
const PAUSE_MIN_US: u64 = 100_000;
const PAUSE_MAX_US: u64 = 2_000_000;
/// Pause after a refusal that only a person can mend.
const PAUSE_REFUSED_US: u64 = 10_000_000;
/// Pings on the new paths come this often.
const PING_EVERY_US: u64 = 50_000;
/// The paths have to prove themselves in this time, or everything begins anew.
const PROOF_US: u64 = 3_000_000;

/// Where an end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Saying HELLO.
    Greeting,
    /// The caller is enabling the paths.
    Enabling,
    /// Pings are under way.
    Proving,
    /// Data may flow.
    Ready,
}

/// What both ends agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The other end's facts.
    pub peer: Facts,
    /// Version to speak.
    pub version: u8,
    /// Features that both have.
    pub features: u32,
    /// Rails to use.
    pub rails: u8,
    /// Frames in flight at the most, in both directions.
    pub window: u16,
    /// HopIDs to receive on, one for each rail: those that the other end transmits on.
    pub rx_hops: [u16; MAX_RAILS],
}

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this as an XDomain request, and report how it went with
    /// [`Hello::on_response`] or [`Hello::on_request_failed`].
    Request(Message),
    /// Enable the paths and start the rails; report with [`Hello::paths_enabled`] or
    /// [`Hello::paths_failed`].
    EnablePaths(Agreed),
    /// Send a ping on every rail; report with [`Hello::proven`] when each was answered.
    Ping,
    /// Data may flow.
    Ready(Agreed),
    /// Data flows no more. Stop the rails, disable the paths, then go on polling.
    Down,
    /// Choose other HopIDs to transmit on, and give them with [`Hello::set_hops`].
    OtherHops,
    /// Tell the user, once, that the other end refuses.
    Refused(Refusal),
}

/// One end of a cable.
#[derive(Debug)]
pub struct Hello {
    me: Facts,
    state: State,
    peer: Option<Facts>,
    /// The other end has heard our present nonce.
    heard: bool,
    /// A request is under way.
    asking: bool,
    next_us: u64,
    pause_us: u64,
    proof_until_us: u64,
    /// Actions that wait to be taken.
    down: bool,
    other_hops: bool,
    refused: Option<Refusal>,
    told: Option<Refusal>,
    ready: bool,
    /// We could not enable the other end's HopIDs: say so in the next message.
    refuse: Option<Refusal>,
}

impl Hello {
    /// An end that begins to say HELLO at `now_us`.
    pub fn new(me: Facts, now_us: u64) -> Self {
        Self {
            me,
            state: State::Greeting,
            peer: None,
            heard: false,
            asking: false,
            next_us: now_us,
            pause_us: PAUSE_MIN_US,
            proof_until_us: 0,
            down: false,
            other_hops: false,
            refused: None,
            told: None,
            ready: false,
            refuse: None,
        }
    }

    /// Where this end stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// The other end's facts, once they are known.
    pub fn peer(&self) -> Option<&Facts> {
        self.peer.as_ref()
    }

    /// Our own facts.
    pub fn me(&self) -> &Facts {
        &self.me
    }

    fn message(&self, kind: Kind) -> Message {
        Message {
            kind,
            facts: self.me,
            heard: self.peer.map_or(0, |peer| peer.link_nonce),
        }
    }

    fn agreed(&self) -> Option<Agreed> {
        let peer = self.peer?;
        Some(Agreed {
            version: self.version_with(&peer)?,
            features: self.me.features & peer.features,
            rails: self.me.rails.min(peer.rails),
            window: self
                .me
                .window
                .min(peer.window)
                .min(self.me.rx_capacity)
                .min(peer.rx_capacity),
            rx_hops: peer.tx_hops,
            peer,
        })
    }

    /// The newest version that both speak.
    fn version_with(&self, peer: &Facts) -> Option<u8> {
        let newest = self.me.versions.1.min(peer.versions.1);
        let oldest = self.me.versions.0.max(peer.versions.0);
        (oldest <= newest).then_some(newest)
    }

    /// Begins anew: what was agreed on is void.
    fn restart(&mut self, now_us: u64) {
        self.down |= self.state != State::Greeting;
        self.ready = false;
        self.state = State::Greeting;
        self.heard = false;
        self.peer = None;
        self.pause_us = PAUSE_MIN_US;
        self.next_us = now_us;
        // A stale answer to the old nonce does not count as an answer to the new one.
        self.me.link_nonce = self.me.link_nonce.wrapping_add(1).max(1);
    }

    /// Takes in what the other end says of itself. `false`: it cannot be used.
    fn learn(&mut self, message: &Message, now_us: u64) -> bool {
        let facts = &message.facts;
        if self.version_with(facts).is_none() {
            self.refused = Some(Refusal::Version);
            self.pause_us = PAUSE_REFUSED_US;
            return false;
        }
        let known = self
            .peer
            .is_some_and(|p| (p.host_nonce, p.link_nonce) == (facts.host_nonce, facts.link_nonce));
        if !known {
            if self.state != State::Greeting {
                // The other end began anew, so what we built is void. While greeting there is
                // nothing to void, and a new nonce of ours would only provoke one of theirs.
                self.restart(now_us);
            }
            self.peer = Some(*facts);
        }
        self.heard |= message.heard == self.me.link_nonce;
        self.advance(now_us);
        true
    }

    fn advance(&mut self, now_us: u64) {
        if self.state == State::Greeting && self.heard && self.peer.is_some() {
            self.state = State::Enabling;
            self.ready = true;
            self.next_us = now_us;
        }
    }

    /// A request of the other end; returns the answer to send at once. The caller has made sure
    /// that it is about this cable.
    pub fn on_request(&mut self, message: &Message, now_us: u64) -> Message {
        match message.kind {
            Kind::Bye => {
                if self
                    .peer
                    .is_some_and(|p| p.link_nonce == message.facts.link_nonce)
                {
                    self.restart(now_us);
                    // It leaves: no hurry.
                    self.next_us = now_us.saturating_add(PAUSE_MIN_US);
                }
                self.message(Kind::ByeAck)
            }
            Kind::Refused(reason) => {
                self.on_refusal(reason, now_us);
                self.message(Kind::HelloAck)
            }
            _ => {
                if !self.learn(message, now_us) {
                    return self.message(Kind::Refused(Refusal::Version));
                }
                match self.refuse {
                    Some(reason) => self.message(Kind::Refused(reason)),
                    None => self.message(Kind::HelloAck),
                }
            }
        }
    }

    /// The answer to our request.
    pub fn on_response(&mut self, message: &Message, now_us: u64) {
        self.asking = false;
        self.pause(now_us);
        match message.kind {
            Kind::Refused(reason) => self.on_refusal(reason, now_us),
            Kind::HelloAck | Kind::Hello => {
                self.learn(message, now_us);
            }
            Kind::Bye | Kind::ByeAck => {}
        }
        if self.refuse.take().is_some() {
            // The other end knows now, and will come with other HopIDs.
            self.restart(now_us);
        }
    }

    fn on_refusal(&mut self, reason: Refusal, now_us: u64) {
        self.refused = Some(reason);
        if reason == Refusal::HopIdTaken {
            self.restart(now_us);
            self.other_hops = true;
        } else {
            self.pause_us = PAUSE_REFUSED_US;
            self.next_us = now_us.saturating_add(PAUSE_REFUSED_US);
        }
    }

    /// There was no answer to our request.
    pub fn on_request_failed(&mut self, now_us: u64) {
        self.asking = false;
        self.pause(now_us);
    }

    fn pause(&mut self, now_us: u64) {
        if self.state == State::Greeting {
            self.next_us = now_us.saturating_add(self.pause_us);
            self.pause_us = (self.pause_us * 2).min(PAUSE_MAX_US.max(self.pause_us));
        }
    }

    /// The paths are enabled and the rails run.
    pub fn paths_enabled(&mut self, now_us: u64) {
        if self.state == State::Enabling {
            self.state = State::Proving;
            self.next_us = now_us;
            self.proof_until_us = now_us.saturating_add(PROOF_US);
        }
    }

    /// The paths could not be enabled. `taken`: because a HopID is in use on our side.
    pub fn paths_failed(&mut self, taken: bool, now_us: u64) {
        self.restart(now_us);
        self.next_us = now_us.saturating_add(PAUSE_MIN_US);
        if taken {
            self.refuse = Some(Refusal::HopIdTaken);
        }
    }

    /// Every rail's ping was answered, which proves both directions.
    pub fn proven(&mut self) {
        if self.state == State::Proving {
            self.state = State::Ready;
            self.ready = true;
            self.pause_us = PAUSE_MIN_US;
        }
    }

    /// Data stopped flowing: everything begins anew.
    pub fn broken(&mut self, now_us: u64) {
        if self.state != State::Greeting {
            self.restart(now_us);
        }
    }

    /// HopIDs to transmit on, after [`Action::OtherHops`].
    pub fn set_hops(&mut self, tx_hops: [u16; MAX_RAILS], now_us: u64) {
        self.me.tx_hops = tx_hops;
        self.me.link_nonce = self.me.link_nonce.wrapping_add(1).max(1);
        self.next_us = now_us;
    }

    /// The message that says good-bye, for an end that stops.
    pub fn bye(&self) -> Message {
        self.message(Kind::Bye)
    }

    /// When [`poll`](Self::poll) has something to do, if nothing else happens before.
    pub fn next_timeout(&self) -> Option<u64> {
        if self.down || self.other_hops || self.ready || self.refused != self.told {
            return Some(0);
        }
        match self.state {
            State::Greeting if self.asking => None,
            State::Greeting => Some(self.next_us),
            State::Proving => Some(self.next_us.min(self.proof_until_us)),
            State::Enabling | State::Ready => None,
        }
    }

    /// The next thing to do; to be called until there is none.
    pub fn poll(&mut self, now_us: u64) -> Option<Action> {
        if core::mem::take(&mut self.down) {
            return Some(Action::Down);
        }
        if self.refused != self.told {
            self.told = self.refused;
            if let Some(reason) = self.refused {
                return Some(Action::Refused(reason));
            }
        }
        if core::mem::take(&mut self.other_hops) {
            return Some(Action::OtherHops);
        }
        match self.state {
            State::Greeting => {
                if self.asking || now_us < self.next_us {
                    return None;
                }
                self.asking = true;
                Some(Action::Request(match self.refuse {
                    Some(reason) => self.message(Kind::Refused(reason)),
                    None => self.message(Kind::Hello),
                }))
            }
            State::Enabling => {
                if !core::mem::take(&mut self.ready) {
                    return None;
                }
                self.agreed().map(Action::EnablePaths)
            }
            State::Proving => {
                if now_us >= self.proof_until_us {
                    self.restart(now_us);
                    return self.poll(now_us);
                }
                if now_us < self.next_us {
                    return None;
                }
                self.next_us = now_us.saturating_add(PING_EVERY_US);
                Some(Action::Ping)
            }
            State::Ready => {
                if !core::mem::take(&mut self.ready) {
                    return None;
                }
                self.refused = None;
                self.told = None;
                self.agreed().map(Action::Ready)
            }
        }
    }
}
