// SPDX-License-Identifier: GPL-2.0-only
//! One cable: HELLO with the other side, and the rail that comes of it.
//!
//! `proto::hello` decides; this file does what it says. A work item is the only one that acts, so
//! that nothing waits while a lock is held that the control channel's receiver needs: requests of
//! the other side are answered straight from the receiver, under the short `talk` lock.

use super::counters::Counts;
use super::peer::Identity;
use super::rail::{Owner, Rail};
use super::rings::{Rings, RING_MAX, RING_MIN};
use super::{Peer, Shared};
use crate::params;
use crate::print::{log_debug, log_err, log_info, log_notice, log_warn};
use crate::proto::bundle::Epoch;
use crate::proto::hello::{
    Action, Agreed, Facts, Hello, Kind, Message, State, MAX_RAILS, VERSIONS,
};
use crate::thunderbolt::debugfs::Writer;
use crate::thunderbolt::os::{self, now_us};
use crate::thunderbolt::protocol::{self, ResponseBuf};
use crate::thunderbolt::xdomain::{InHopId, OutHopId, Paths, XDomain};
use core::fmt::Write;
use kernel::fmt;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Relaxed, Release};
use kernel::sync::{new_mutex, new_spinlock, Arc, Mutex, SpinLock};
use kernel::workqueue::{impl_has_delayed_work, new_delayed_work, DelayedWork, WorkItem};

/// An answer to a request takes this long at most. Short, because removal may have to wait.
const ANSWER_MS: u32 = 500;

/// The other side is told that we leave, but we do not wait long for its answer.
const BYE_MS: u32 = 200;

/// After so many requests without an answer the other side may not know of our service.
const UNANSWERED: u32 = 4;

/// Pause before resources are asked for again that were not there, milliseconds.
const RETRY_MS: u32 = 5_000;

/// Speed of a link.
pub(super) struct Speed {
    /// Gb/s of one lane.
    pub(super) lane_gbps: u32,
    pub(super) lanes: u32,
}

/// The conversation with the other side.
struct Talk {
    hello: Hello,
    /// A request that is answered only when the rail has been taken down: the answer says that
    /// we have begun anew, and no old frame may follow it.
    owed: Option<Message>,
}

/// What a link holds while it is joined to the other side.
struct Joined {
    rail: Arc<Rail>,
    peer: Arc<Peer>,
    /// The rail is one of the peer's.
    opened: bool,
    paths: Option<Paths>,
    in_hop: InHopId,
}

/// What a link holds.
struct Resources {
    rings: Option<Rings>,
    out_hop: Option<OutHopId>,
    joined: Option<Joined>,
    /// The last trouble that was reported: it is not reported again.
    trouble: Option<Error>,
}

/// One cable.
#[pin_data]
pub(super) struct Link {
    id: u32,
    shared: Arc<Shared>,
    xd: XDomain,
    running: Atomic<u32>,
    /// A request of ours waits for its answer.
    asking: Atomic<u32>,
    /// Requests since the last answer.
    unanswered: Atomic<u32>,
    /// The rail may be sending or receiving.
    active: Atomic<u32>,
    /// The rail belongs to a peer that is up.
    up: Atomic<u32>,
    /// What the present rail's pings carry.
    ping_nonce: Atomic<u64>,
    /// What their answer says of the bundle.
    #[pin]
    heard: SpinLock<Option<Epoch>>,
    /// The ring size that was reported, 0 if none.
    told_size: Atomic<u32>,
    #[pin]
    talk: SpinLock<Option<Talk>>,
    #[pin]
    resources: Mutex<Resources>,
    #[pin]
    work: DelayedWork<Link>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Link { self.work }
}

impl Link {
    pub(super) fn new(id: u32, shared: Arc<Shared>, xd: XDomain) -> Result<Arc<Self>> {
        let resources = Resources {
            rings: None,
            out_hop: None,
            joined: None,
            trouble: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                id,
                shared,
                xd,
                running: Atomic::new(0),
                asking: Atomic::new(0),
                unanswered: Atomic::new(0),
                active: Atomic::new(0),
                up: Atomic::new(0),
                ping_nonce: Atomic::new(0),
                heard <- new_spinlock!(None, "tbrdma_heard"),
                told_size: Atomic::new(0),
                talk <- new_spinlock!(None, "tbrdma_talk"),
                resources <- new_mutex!(resources, "tbrdma_link"),
                work <- new_delayed_work!("tbrdma_link"),
            }),
            GFP_KERNEL,
        )
    }

    /// Which port of this host the cable is in; not unique among controllers.
    pub(super) fn route(&self) -> u64 {
        self.xd.route()
    }

    /// Speed, while the link is up.
    pub(super) fn speed(&self) -> Option<Speed> {
        if self.up.load(Acquire) == 0 {
            return None;
        }
        Some(Speed {
            lane_gbps: self.xd.lane_gbps(),
            lanes: self.xd.lanes(),
        })
    }

    /// Writes the lines of the link and its rail for the state file.
    pub(super) fn report(&self, out: &mut Writer) -> core::fmt::Result {
        let state = match &*self.talk.lock() {
            None => "stopped",
            Some(talk) => match talk.hello.state() {
                State::Greeting => "greeting",
                State::Enabling => "enabling",
                State::Proving => "proving",
                State::Ready => "ready",
            },
        };
        let resources = self.resources.lock();
        let joined = resources.joined.as_ref();
        let peer = joined.filter(|joined| joined.opened);
        writeln!(
            out,
            "link id={} state={} peer={} route={:x} local={} remote={} lanes={} lane_gbps={}",
            self.id,
            state,
            peer.map_or(0, |joined| joined.peer.id()),
            self.xd.route(),
            Hex(&self.xd.local_uuid()),
            Hex(&self.xd.remote_uuid()),
            self.xd.lanes(),
            self.xd.lane_gbps(),
        )?;
        match joined {
            Some(joined) => joined.rail.report(self.id, out),
            None => Ok(()),
        }
    }

    /// What the present rail has counted.
    pub(super) fn counts(&self) -> Option<Counts> {
        let resources = self.resources.lock();
        resources.joined.as_ref().map(|joined| joined.rail.counts())
    }

    /// Begins to talk to the other side.
    pub(super) fn begin(self: &Arc<Self>) {
        self.running.store(1, Release);
        self.wake();
    }

    /// Leaves the other side and gives everything back. Sleeps, less than two seconds. May be
    /// followed by [`Self::begin`].
    pub(super) fn end(self: &Arc<Self>) {
        self.running.store(0, Release);
        os::cancel_sync::<_, 0>(self);
        let talk = self.talk.lock().take();
        let mut resources = self.resources.lock();
        self.leave(&mut resources);
        if let Some(talk) = talk {
            if talk.hello.peer().is_some() && !self.xd.is_unplugged() {
                let _ = self.ask(&talk.hello.bye(), BYE_MS);
            }
        }
        resources.rings = None;
        resources.out_hop = None;
    }

    fn wake(self: &Arc<Self>) {
        if self.running.load(Acquire) != 0 {
            self.shared.queues.control.retime::<_, 0>(self.clone(), 0);
        }
    }

    /// A message with this link's route has come. If it is a request about this cable, answers
    /// it and returns `true`.
    pub(super) fn message(self: &Arc<Self>, body: &[u8]) -> bool {
        let Some(message) = Message::parse(body) else {
            return false;
        };
        let facts = &message.facts;
        if facts.router != self.xd.remote_uuid() || facts.peer_router != self.xd.local_uuid() {
            return false;
        }
        // The core shows us answers too, before it looks for the request that waits for them: it
        // must go on looking. Only a refusal can be both.
        let is_answer = match message.kind {
            Kind::HelloAck | Kind::ByeAck => true,
            Kind::Refused(_) => self.asking.load(Acquire) != 0,
            Kind::Hello | Kind::Bye => false,
        };
        if is_answer {
            return false;
        }
        let answer = {
            let mut talk = self.talk.lock();
            let Some(talk) = &mut *talk else {
                return false;
            };
            let answer = talk.hello.on_request(&message, now_us());
            // An owed answer is worth giving only to the newest request.
            if talk.hello.state() == State::Greeting && self.active.load(Acquire) != 0 {
                talk.owed = Some(message);
                None
            } else {
                Some(answer)
            }
        };
        log_debug!(
            "link {}: got {:?}, answer {:?}",
            self.id,
            message.kind,
            answer.map(|answer| answer.kind)
        );
        if let Some(answer) = answer {
            self.answer(&answer);
        }
        self.wake();
        true
    }

    fn answer(&self, answer: &Message) {
        // If it is lost the other side asks again.
        let _ = protocol::Message::new(&self.xd, &answer.emit())
            .and_then(|message| self.xd.respond(message.as_bytes()));
    }

    /// Sends a request and waits for the answer.
    fn ask(&self, request: &Message, timeout_ms: u32) -> Result<Message> {
        let body = request.emit();
        let message = protocol::Message::new(&self.xd, &body)?;
        let mut response = ResponseBuf::new();
        self.asking.store(1, Release);
        let sent = self
            .xd
            .request(message.as_bytes(), response.as_mut(body.len()), timeout_ms);
        self.asking.store(0, Release);
        sent?;
        let answer = Message::parse(response.body()).ok_or(EIO)?;
        // Another link with the same route may be what it is about.
        if answer.facts.router != self.xd.remote_uuid() {
            return Err(EIO);
        }
        Ok(answer)
    }

    /// Does all that is to be done now. Returns when there will be more, milliseconds.
    fn proceed(self: &Arc<Self>) -> Option<u32> {
        let mut resources = self.resources.lock();
        while self.running.load(Acquire) != 0 {
            if resources.joined.is_none() && resources.rings.is_none() {
                if let Err(e) = self.prepare(&mut resources) {
                    self.complain(&mut resources, e, "cannot prepare its rings");
                    return Some(RETRY_MS);
                }
            }
            let now = now_us();
            let action = match &mut *self.talk.lock() {
                Some(talk) => talk.hello.poll(now).ok_or(talk.hello.next_timeout()),
                None => Err(None),
            };
            match action {
                Ok(action) => {
                    if !self.act(&mut resources, action) {
                        return Some(RETRY_MS);
                    }
                }
                Err(None) => return None,
                Err(Some(at)) => {
                    let ms = at.saturating_sub(now).div_ceil(1000);
                    return Some(u32::try_from(ms).unwrap_or(u32::MAX));
                }
            }
        }
        None
    }

    /// Does it. `false`: it led to nothing, and trying again is for later.
    fn act(self: &Arc<Self>, resources: &mut Resources, action: Action) -> bool {
        match action {
            Action::Request(message) => {
                let answer = self.ask(&message, ANSWER_MS);
                log_debug!(
                    "link {}: asked {:?}, got {:?}",
                    self.id,
                    message.kind,
                    answer.map(|answer| answer.kind)
                );
                if answer.is_ok() {
                    self.unanswered.store(0, Relaxed);
                } else if (self.unanswered.fetch_add(1, Relaxed) + 1) % UNANSWERED == 0 {
                    self.xd.announce_again();
                }
                self.with_hello(|hello| match answer {
                    Ok(answer) => hello.on_response(&answer, now_us()),
                    Err(_) => hello.on_request_failed(now_us()),
                });
            }
            Action::EnablePaths(agreed) => match self.join(resources, &agreed) {
                Ok(()) => self.with_hello(|hello| hello.paths_enabled(now_us())),
                Err(e) if e == EEXIST => return self.give_up(resources, e),
                Err(e) => {
                    if e == EBUSY {
                        log_info!("link {}: the HopID is taken; asking for another", self.id);
                    } else if e != EAGAIN && e != ENODEV {
                        self.complain(resources, e, "cannot enable its paths");
                    }
                    self.leave(resources);
                    self.with_hello(|hello| hello.paths_failed(e == EBUSY, now_us()));
                }
            },
            Action::Ping => {
                if let Some(joined) = &resources.joined {
                    joined.rail.ping(self.ping_nonce.load(Relaxed));
                }
            }
            Action::Ready(agreed) => {
                // `EAGAIN`: one of the two hosts has begun anew, and the other one is about to.
                let opened = self.open(resources, &agreed);
                if opened == Err(EAGAIN) {
                    self.with_hello(|hello| hello.broken(now_us()));
                } else if let Err(e) = opened {
                    return self.give_up(resources, e);
                }
            }
            Action::Down => self.leave(resources),
            Action::OtherHops => {
                // The old one is given back after the new one was chosen, so it is another one.
                match self.xd.alloc_out_hopid() {
                    Ok(hop) => {
                        let hops = tx_hops(&hop);
                        resources.out_hop = Some(hop);
                        self.with_hello(|hello| hello.set_hops(hops, now_us()));
                    }
                    Err(e) => self.complain(resources, e, "has no other HopID"),
                }
            }
            Action::Refused(reason) => log_warn!("link {}: refused: {}", self.id, Words(reason)),
        }
        true
    }

    /// Nothing that mends itself at once: is silent for a while.
    fn give_up(self: &Arc<Self>, resources: &mut Resources, e: Error) -> bool {
        let what = match e {
            EEXIST => "leads to this host, or to one with an address that is in use",
            _ => "cannot be used",
        };
        self.complain(resources, e, what);
        self.leave(resources);
        // The conversation begins with new rings.
        resources.rings = None;
        *self.talk.lock() = None;
        false
    }

    fn with_hello(&self, f: impl FnOnce(&mut Hello)) {
        if let Some(talk) = &mut *self.talk.lock() {
            f(&mut talk.hello);
        }
    }

    /// Says what is wrong, unless it was said already.
    fn complain(&self, resources: &mut Resources, e: Error, what: &str) {
        if resources.trouble.replace(e) != Some(e) {
            log_err!("link {}: {}: {:?}; trying again", self.id, what, e);
        }
    }

    /// Gets rings and a HopID, and begins the conversation with what they can do.
    fn prepare(&self, resources: &mut Resources) -> Result {
        let asked = params::ring_size();
        let rings = Rings::new(&self.xd, asked, &self.shared.queues.data)?;
        let size = rings.size();
        if size != asked {
            // Once, not whenever the link begins anew.
            if self.told_size.xchg(size, kernel::sync::atomic::Full) != size {
                let why = match asked {
                    RING_MIN..=RING_MAX => "memory is short",
                    _ => "the range is 32 to 4096",
                };
                log_notice!(
                    "link {}: ring_size={} asked, {} taken: {}",
                    self.id,
                    asked,
                    size,
                    why
                );
            }
        }
        let hop = match resources.out_hop.take() {
            Some(hop) => hop,
            None => self.xd.alloc_out_hopid()?,
        };
        let facts = Facts {
            versions: VERSIONS,
            features: 0,
            window: rings.window(),
            rx_capacity: rings.rx_capacity(),
            host: self.shared.identity.uuid,
            host_nonce: self.shared.incarnation,
            link_nonce: os::random_u64().max(1),
            router: self.xd.local_uuid(),
            peer_router: self.xd.remote_uuid(),
            mac: self.shared.identity.mac,
            mtu: crate::net::MTU as u16,
            rails: 1,
            tx_hops: tx_hops(&hop),
        };
        resources.rings = Some(rings);
        resources.out_hop = Some(hop);
        let mut talk = self.talk.lock();
        // The conversation goes on when rings are replaced by equal ones.
        let goes_on = talk.as_ref().is_some_and(|talk| {
            let me = talk.hello.me();
            me.window == facts.window && me.rx_capacity == facts.rx_capacity
        });
        if !goes_on {
            *talk = Some(Talk {
                hello: Hello::new(facts, now_us()),
                owed: None,
            });
        }
        Ok(())
    }

    /// Makes the rail and joins it to the wire. `EAGAIN`: see [`Shared::claim`].
    fn join(self: &Arc<Self>, resources: &mut Resources, agreed: &Agreed) -> Result {
        let identity = Identity {
            uuid: agreed.peer.host,
            mac: agreed.peer.mac,
        };
        // Before the first ping, which tells of its bundle.
        let peer = self.shared.claim(&identity, agreed.peer.host_nonce)?;
        let made = self.make_rail(resources, agreed, &peer);
        if made.is_err() && resources.joined.is_none() {
            self.shared.release(&peer);
        }
        made
    }

    fn make_rail(
        self: &Arc<Self>,
        resources: &mut Resources,
        agreed: &Agreed,
        peer: &Arc<Peer>,
    ) -> Result {
        let rings = resources.rings.take().ok_or(EINVAL)?;
        let out_hop = resources.out_hop.as_ref().ok_or(EINVAL)?;
        let [rx_hop, ..] = agreed.rx_hops;
        let in_hop = self.xd.alloc_in_hopid(rx_hop.into())?;
        let ends = rings.ends();
        let rail = Rail::new(
            rings,
            agreed,
            peer.clone(),
            self.shared.queues.data.clone(),
            self.shared.net.clone(),
            self.clone(),
        )?;
        // An answer to an old ping proves nothing.
        self.ping_nonce.store(os::random_u64(), Relaxed);
        *self.heard.lock() = None;
        self.active.store(1, Release);
        // From here on `leave` undoes everything.
        let joined = resources.joined.insert(Joined {
            rail,
            peer: peer.clone(),
            opened: false,
            paths: None,
            in_hop,
        });
        joined.rail.start()?;
        // Last, when frames that come find room.
        joined.paths = Some(self.xd.enable_paths(out_hop, &joined.in_hop, ends)?);
        Ok(())
    }

    /// The rail has proven itself: opens it for data.
    fn open(self: &Arc<Self>, resources: &mut Resources, agreed: &Agreed) -> Result {
        let joined = resources.joined.as_mut().ok_or(EINVAL)?;
        let theirs = (*self.heard.lock()).ok_or(EAGAIN)?;
        self.shared.connect(&joined.peer, &theirs, &joined.rail)?;
        joined.opened = true;
        self.up.store(1, Release);
        self.shared.queue_port();
        resources.trouble = None;
        log_info!(
            "link {}: connected to host {}: {} x {} Gb/s, window {} frames",
            self.id,
            Hex(&agreed.peer.host),
            self.xd.lanes(),
            self.xd.lane_gbps(),
            agreed.window
        );
        Ok(())
    }

    /// Takes the rail down, and gives the answer that had to wait for it.
    fn leave(self: &Arc<Self>, resources: &mut Resources) {
        if let Some(joined) = resources.joined.take() {
            let was_up = self.up.xchg(0, kernel::sync::atomic::Full) != 0;
            let peer = &joined.peer;
            let last = joined.opened && self.shared.disconnect(peer, &joined.rail);
            // The wire first: hardware may wait for frames under way to find their ring.
            drop(joined.paths);
            if let Err(e) = joined.rail.stop(joined.opened && !last) {
                log_err!(
                    "link {}: no memory for frames that were under way ({:?}): connections to host {} are lost",
                    self.id,
                    e,
                    Hex(&peer.identity().uuid)
                );
                peer.declare_dead();
            }
            self.shared.retired.take(&joined.rail);
            if joined.opened {
                self.shared.disconnected(peer);
            }
            self.shared.release(peer);
            drop(joined.in_hop);
            if was_up {
                self.shared.queue_port();
                log_info!("link {}: disconnected", self.id);
            }
        }
        self.active.store(0, Release);
        let owed = match &mut *self.talk.lock() {
            Some(talk) => talk
                .owed
                .take()
                .map(|message| talk.hello.on_request(&message, now_us())),
            None => None,
        };
        if let Some(answer) = owed {
            self.answer(&answer);
        }
    }
}

fn tx_hops(hop: &OutHopId) -> [u16; MAX_RAILS] {
    let mut hops = [0; MAX_RAILS];
    // HopIDs have 11 bits.
    hops[0] = hop.id() as u16;
    hops
}

impl Owner for Link {
    fn pong(self: Arc<Self>, nonce: u64, theirs: Epoch) {
        if nonce != self.ping_nonce.load(Relaxed) {
            return;
        }
        *self.heard.lock() = Some(theirs);
        self.with_hello(|hello| hello.proven());
        self.wake();
    }

    fn dead(self: Arc<Self>) {
        log_warn!("link {}: the other side does not answer any more", self.id);
        self.with_hello(|hello| hello.broken(now_us()));
        self.wake();
    }
}

impl WorkItem for Link {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let Some(ms) = this.proceed() else { return };
        if this.running.load(Relaxed) != 0 {
            // Not `retime`: somebody may have asked for an earlier run meanwhile.
            this.shared.queues.control.later::<_, 0>(this.clone(), ms);
        }
    }
}

/// For the `kernel` crate's own `Display`.
struct Words<T>(T);

impl<T: core::fmt::Display> fmt::Display for Words<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A UUID in text form.
pub(super) struct Hex<'a>(pub(super) &'a [u8; 16]);

impl core::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
