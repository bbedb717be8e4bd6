//! One host: its interface, its router, and what its connection manager has yet to hear.

use crate::layout::adapter;
use crate::nhi::{Nhi, Room};
use crate::packet::{pdf, Packet, FROM_ROUTER};
use crate::router::{PortKind, Router};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

/// A plug event that the connection manager does not acknowledge is sent again after this time ...
pub(crate) const EVENT_RESEND: Duration = Duration::from_millis(200);
/// ... this many times.
const EVENT_TRIES: u32 = 50;
/// Control packets that wait for the host to read; beyond that it has hung.
const CONTROL_QUEUE: usize = 256;
/// Plug events that wait for a host; the newest are kept, they say how things are.
const EVENTS_MAX: usize = 64;

/// A host and its router.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) nhi: Nhi,
    pub(crate) router: Router,
    /// A VMM is there.
    pub(crate) powered: bool,
    /// USB4 ports that are being reset.
    pub(crate) in_reset: [bool; adapter::PORTS],
    pub(crate) control: VecDeque<Packet>,
    pub(crate) events: VecDeque<PlugEvent>,
}

pub(crate) struct PlugEvent {
    pub(crate) port: usize,
    pub(crate) unplug: bool,
    sent: Option<Instant>,
    tries: u32,
}

impl PlugEvent {
    pub(crate) fn new(port: usize, unplug: bool) -> Self {
        Self {
            port,
            unplug,
            sent: None,
            tries: 0,
        }
    }
}

impl Host {
    /// A host that is off. `number` makes its router's identity; `v2`: its router is one of USB4 v2. Returns also the
    /// file that the guest maps.
    pub(crate) fn new(
        name: &str,
        number: usize,
        kinds: [PortKind; adapter::PORTS],
        v2: bool,
    ) -> io::Result<(Self, File)> {
        let (nhi, file) = Nhi::new(if v2 { 0x40 } else { 0x10 })?;
        let host = Self {
            name: name.to_owned(),
            nhi,
            router: Router::new(number as u32, if v2 { 0x40 } else { 0x20 }, kinds),
            powered: false,
            in_reset: [false; adapter::PORTS],
            control: VecDeque::new(),
            events: VecDeque::new(),
        };
        Ok((host, file))
    }

    pub(crate) fn reset(&mut self) {
        self.nhi.reset();
        self.router.reset();
        self.in_reset = [false; adapter::PORTS];
        self.control.clear();
        self.events.clear();
    }

    /// Sends a control packet to the connection manager, when it has a buffer for it.
    pub(crate) fn send(&mut self, packet: Packet) {
        log::trace!("host {} hears {packet:x?}", self.name);
        if self.control.len() >= CONTROL_QUEUE {
            log::warn!(
                "host {} reads no control packets; one is dropped",
                self.name
            );
            return;
        }
        self.control.push_back(packet);
        self.flush_control();
    }

    pub(crate) fn flush_control(&mut self) {
        if !self.nhi.receiving(0) {
            self.control.clear();
            return;
        }
        while self.nhi.room(0) == Room::Yes {
            let Some(packet) = self.control.pop_front() else {
                return;
            };
            self.nhi.receive(0, 0, packet.pdf, &packet.bytes(), false);
        }
    }

    /// Is there something to tell, while nobody listens? A host that sleeps is to wake up then.
    pub(crate) fn calls(&self) -> bool {
        self.powered && !self.events.is_empty() && !self.nhi.receiving(0)
    }

    /// Something has come or gone at a port.
    pub(crate) fn plug_event(&mut self, port: usize, unplug: bool, now: Instant) {
        if self.events.len() >= EVENTS_MAX {
            log::warn!(
                "host {} does not listen; a plug event is dropped",
                self.name
            );
            self.events.pop_front();
        }
        self.events.push_back(PlugEvent::new(port, unplug));
        self.send_events(now);
    }

    /// Sends the first event that waits, or sends it again.
    pub(crate) fn send_events(&mut self, now: Instant) {
        if !self.nhi.receiving(0) {
            return;
        }
        let Some(event) = self.events.front_mut() else {
            return;
        };
        if event
            .sent
            .is_some_and(|sent| now.saturating_duration_since(sent) < EVENT_RESEND)
        {
            return;
        }
        event.tries += 1;
        event.sent = Some(now);
        let word = adapter::lane0(event.port) as u32 | u32::from(event.unplug) << 31;
        if event.tries > EVENT_TRIES {
            log::warn!("host {} acknowledges no plug event", self.name);
            self.events.pop_front();
            return;
        }
        self.send(Packet::new(pdf::EVENT, vec![FROM_ROUTER, 0, word]));
    }

    pub(crate) fn acknowledged(&mut self, lane: usize, now: Instant) {
        let sent = self
            .events
            .front()
            .is_some_and(|event| event.sent.is_some() && adapter::lane0(event.port) == lane);
        if sent {
            self.events.pop_front();
            self.send_events(now);
        }
    }
}
