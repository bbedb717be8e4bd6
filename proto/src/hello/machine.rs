//! The state machine of one end of a cable.

use super::action::{first_seq, Action, Agreed, State};
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
/// HopIDs that are tried without a pause.
const QUICK_REFUSALS: u32 = 16;
/// An agreement that lasts this long was a good one: the next attempt after it comes at once.
const LASTING_US: u64 = 10_000_000;

/// One end of a cable.
///
/// Every attempt of an end has a nonce of its own, larger than those before. An end goes on when
/// it knows the other's present attempt and has heard that the other knows its own: the two then
/// agree about which pair of attempts the rails belong to. While greeting, an end takes a newer
/// attempt of the other as it is; later it begins a new attempt itself, because what was built
/// belongs to the old pair.
#[derive(Debug)]
pub struct Hello {
    me: Facts,
    state: State,
    peer: Option<Facts>,
    /// Host and link nonce of the other end's newest attempt that we know of. Kept when we begin
    /// anew, so that late messages of older attempts do no harm.
    newest: Option<(u64, u64)>,
    /// That attempt said good-bye.
    left: bool,
    /// The other end's present attempt knows our present one.
    heard: bool,
    /// We cannot go on with the other end's present attempt.
    refuse: Option<Refusal>,
    /// Other HopIDs are awaited from the caller.
    choosing: bool,
    /// A request is under way.
    asking: bool,
    next_us: u64,
    pause_us: u64,
    /// Nothing goes on before, after failures.
    hold_us: u64,
    /// Attempts in a row that led to nothing lasting.
    failures: u32,
    proof_until_us: u64,
    ready_us: u64,
    /// Actions that wait to be taken.
    down: bool,
    entered: bool,
    refused: Option<Refusal>,
    told: Option<Refusal>,
}

impl Hello {
    /// An end that begins to say HELLO at `now_us`. Whatever `me.link_nonce` is, the time is
    /// taken: within the life of `me.host_nonce` it never goes back.
    pub fn new(me: Facts, now_us: u64) -> Self {
        Self {
            me: Facts {
                link_nonce: now_us.max(1),
                ..me
            },
            state: State::Greeting,
            peer: None,
            newest: None,
            left: false,
            heard: false,
            refuse: None,
            choosing: false,
            asking: false,
            next_us: now_us,
            pause_us: PAUSE_MIN_US,
            hold_us: now_us,
            failures: 0,
            proof_until_us: 0,
            ready_us: 0,
            down: false,
            entered: false,
            refused: None,
            told: None,
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

    /// What we have to say to the other end: HELLO or its answer, or a refusal instead.
    fn word(&self, kind: Kind) -> Message {
        self.message(self.refuse.map_or(kind, Kind::Refused))
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
            first_seqs: (
                first_seq(self.me.link_nonce, peer.link_nonce),
                first_seq(peer.link_nonce, self.me.link_nonce),
            ),
            peer,
        })
    }

    /// The newest version that both speak.
    fn version_with(&self, peer: &Facts) -> Option<u8> {
        let newest = self.me.versions.1.min(peer.versions.1);
        let oldest = self.me.versions.0.max(peer.versions.0);
        (oldest <= newest).then_some(newest)
    }

    fn renew(&mut self, now_us: u64) {
        self.me.link_nonce = self.me.link_nonce.saturating_add(1).max(now_us);
        self.heard = false;
    }

    /// Back to greeting; what was built is void.
    fn fall_back(&mut self) {
        self.down |= self.state != State::Greeting;
        self.state = State::Greeting;
        self.entered = false;
        self.heard = false;
    }

    /// Begins a new attempt.
    fn restart(&mut self, now_us: u64) {
        self.fall_back();
        self.renew(now_us);
        self.peer = None;
        self.refuse = None;
        self.pause_us = PAUSE_MIN_US;
        self.next_us = now_us;
    }

    /// Begins a new attempt, later the more often it failed.
    fn restart_after_failure(&mut self, now_us: u64) {
        self.restart(now_us);
        let pause = (PAUSE_MIN_US << self.failures.min(8)).min(PAUSE_MAX_US);
        self.failures = self.failures.saturating_add(1);
        self.hold_us = now_us.saturating_add(pause);
        self.next_us = self.hold_us;
    }

    /// A message with these facts is of an attempt that is over.
    fn is_old(&self, facts: &Facts) -> bool {
        self.newest.is_some_and(|(host, link)| {
            facts.host_nonce == host
                && (facts.link_nonce < link || (facts.link_nonce == link && self.left))
        })
    }

    /// Takes in which attempt of the other end a message is of, which is not an old one.
    fn note(&mut self, facts: &Facts, now_us: u64) {
        let id = (facts.host_nonce, facts.link_nonce);
        let known = self
            .peer
            .is_some_and(|peer| (peer.host_nonce, peer.link_nonce) == id);
        if !known {
            if self.state != State::Greeting {
                self.restart(now_us);
            }
            self.heard = false;
            self.refuse = None;
            self.peer = Some(*facts);
            self.newest = Some(id);
            self.left = false;
            // It has to hear that we know it.
            self.pause_us = PAUSE_MIN_US;
            self.next_us = now_us.max(self.hold_us);
        }
    }

    /// Takes in what the other end says of itself. `false`: we do not understand each other.
    fn learn(&mut self, message: &Message, now_us: u64) -> bool {
        if self.version_with(&message.facts).is_none() {
            self.refused = Some(Refusal::Version);
            return false;
        }
        if !self.is_old(&message.facts) {
            self.note(&message.facts, now_us);
            self.heard |= message.heard == self.me.link_nonce;
            self.advance(now_us);
        }
        true
    }

    fn advance(&mut self, now_us: u64) {
        if self.state == State::Greeting
            && self.heard
            && self.peer.is_some()
            && self.refuse.is_none()
            && !self.choosing
            && !self.down
            && now_us >= self.hold_us
        {
            self.state = State::Enabling;
            self.entered = true;
        }
    }

    /// A request of the other end; returns the answer to send at once. The caller has made sure
    /// that it is about this cable.
    pub fn on_request(&mut self, message: &Message, now_us: u64) -> Message {
        match message.kind {
            Kind::Bye => {
                self.on_bye(&message.facts, now_us);
                self.message(Kind::ByeAck)
            }
            Kind::Refused(reason) => {
                self.on_refusal(reason, message, now_us);
                self.word(Kind::HelloAck)
            }
            Kind::Hello | Kind::HelloAck | Kind::ByeAck => {
                if self.learn(message, now_us) {
                    return self.word(Kind::HelloAck);
                }
                // The refusal has to name the attempt that it refuses.
                Message {
                    heard: message.facts.link_nonce,
                    ..self.message(Kind::Refused(Refusal::Version))
                }
            }
        }
    }

    fn on_bye(&mut self, facts: &Facts, now_us: u64) {
        let id = (facts.host_nonce, facts.link_nonce);
        if self.newest == Some(id) && !self.left {
            self.restart(now_us);
            self.left = true;
            // It leaves: no hurry.
            self.next_us = now_us.saturating_add(PAUSE_MIN_US);
        }
    }

    /// The answer to our request.
    pub fn on_response(&mut self, message: &Message, now_us: u64) {
        self.asking = false;
        self.pause(now_us);
        match message.kind {
            Kind::Refused(reason) => self.on_refusal(reason, message, now_us),
            Kind::HelloAck | Kind::Hello => {
                if !self.learn(message, now_us) {
                    self.pause_for_long(now_us);
                }
            }
            Kind::Bye | Kind::ByeAck => {}
        }
    }

    fn on_refusal(&mut self, reason: Refusal, message: &Message, now_us: u64) {
        let attempt = self.version_with(&message.facts).is_some() && !self.is_old(&message.facts);
        if message.heard != self.me.link_nonce {
            // It refuses an attempt that is over. But its own may be new: if both refuse each
            // other's last attempt, this is how they hear of the next.
            if attempt {
                self.note(&message.facts, now_us);
            }
            return;
        }
        self.refused = Some(reason);
        if reason != Refusal::HopIdTaken {
            if self.state != State::Greeting {
                self.restart(now_us);
            }
            self.pause_for_long(now_us);
            return;
        }
        if attempt {
            // The nonce is renewed together with the HopIDs: with a new nonce the other end would
            // take the old HopIDs for new ones.
            self.fall_back();
            self.note(&message.facts, now_us);
            if !self.choosing {
                self.choosing = true;
                self.next_us = now_us;
            }
        }
    }

    fn pause_for_long(&mut self, now_us: u64) {
        self.pause_us = PAUSE_REFUSED_US;
        self.next_us = now_us.saturating_add(PAUSE_REFUSED_US);
    }

    /// There was no answer to our request.
    pub fn on_request_failed(&mut self, now_us: u64) {
        self.asking = false;
        self.pause(now_us);
    }

    fn pause(&mut self, now_us: u64) {
        if self.state == State::Greeting && !self.choosing {
            self.next_us = now_us.saturating_add(self.pause_us).max(self.hold_us);
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

    /// The paths could not be enabled. `taken`: because a HopID is in use on our side, so the
    /// other end has to choose another one.
    pub fn paths_failed(&mut self, taken: bool, now_us: u64) {
        if self.state != State::Enabling {
            // The attempt was over already.
            return;
        }
        if !taken {
            self.restart_after_failure(now_us);
            return;
        }
        // The attempt stays as it is, because it is the other end that has to begin a new one. Were
        // it renewed, then a refusal of it that is on its way would be void, and two ends that
        // refuse each other's HopIDs could go on so for ever.
        self.fall_back();
        self.refuse = Some(Refusal::HopIdTaken);
        self.pause_us = PAUSE_MIN_US;
        self.next_us = now_us;
        self.failures = self.failures.saturating_add(1);
        if self.failures > QUICK_REFUSALS {
            self.next_us = now_us.saturating_add(PAUSE_MAX_US);
        }
    }

    /// Every rail's ping was answered, which proves both directions.
    pub fn proven(&mut self) {
        if self.state == State::Proving {
            self.state = State::Ready;
            self.entered = true;
        }
    }

    /// Data stopped flowing, or cannot be used: everything begins anew.
    pub fn broken(&mut self, now_us: u64) {
        if self.state == State::Greeting {
            return;
        }
        if self.state == State::Ready && now_us.saturating_sub(self.ready_us) >= LASTING_US {
            self.failures = 0;
            self.restart(now_us);
        } else {
            self.restart_after_failure(now_us);
        }
    }

    /// HopIDs to transmit on, after [`Action::OtherHops`].
    pub fn set_hops(&mut self, tx_hops: [u16; MAX_RAILS], now_us: u64) {
        self.fall_back();
        self.renew(now_us);
        self.me.tx_hops = tx_hops;
        self.choosing = false;
        self.pause_us = PAUSE_MIN_US;
        self.next_us = now_us.max(self.hold_us);
    }

    /// The message that says good-bye. An end that begins again afterwards is a new [`Hello`].
    pub fn bye(self) -> Message {
        self.message(Kind::Bye)
    }

    /// When [`poll`](Self::poll) has something to do, if nothing else happens before.
    pub fn next_timeout(&self) -> Option<u64> {
        if self.down || self.entered || self.refused != self.told {
            return Some(0);
        }
        match self.state {
            State::Greeting if self.asking && !self.choosing => None,
            State::Greeting => Some(self.next_us),
            State::Proving => Some(self.next_us.min(self.proof_until_us)),
            State::Enabling | State::Ready => None,
        }
    }

    /// The next thing to do; to be called until there is none.
    pub fn poll(&mut self, now_us: u64) -> Option<Action> {
        if self.state == State::Proving && now_us >= self.proof_until_us {
            self.restart_after_failure(now_us);
        }
        if core::mem::take(&mut self.down) {
            return Some(Action::Down);
        }
        if self.refused != self.told {
            self.told = self.refused;
            if let Some(reason) = self.refused {
                return Some(Action::Refused(reason));
            }
        }
        self.advance(now_us);
        match self.state {
            State::Greeting => self.greet(now_us),
            State::Enabling => {
                if !core::mem::take(&mut self.entered) {
                    return None;
                }
                self.agreed().map(Action::EnablePaths)
            }
            State::Proving => {
                if now_us < self.next_us {
                    return None;
                }
                self.next_us = now_us.saturating_add(PING_EVERY_US);
                Some(Action::Ping)
            }
            State::Ready => {
                if !core::mem::take(&mut self.entered) {
                    return None;
                }
                self.ready_us = now_us;
                self.refused = None;
                self.told = None;
                self.agreed().map(Action::Ready)
            }
        }
    }

    fn greet(&mut self, now_us: u64) -> Option<Action> {
        if now_us < self.next_us {
            return None;
        }
        if self.choosing {
            self.next_us = now_us.saturating_add(PAUSE_MAX_US);
            return Some(Action::OtherHops);
        }
        if self.asking {
            return None;
        }
        self.asking = true;
        Some(Action::Request(self.word(Kind::Hello)))
    }
}
