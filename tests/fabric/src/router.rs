//! The configuration spaces of a host router: its own, its adapters' and their paths (USB4 chapter 8).

use crate::layout::{adapter, port, router, RINGS};

/// What a USB4 port can do; a port without cable is like one with a v1 cable that is not plugged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortKind {
    pub(crate) generation: u8,
    pub(crate) lanes: u8,
    /// DMA paths that the lane adapters take in.
    pub(crate) paths: u16,
    /// Buffers of the lane adapters.
    pub(crate) credits: u16,
}

impl PortKind {
    /// A port without cable.
    pub(crate) const EMPTY: Self = Self {
        generation: 3,
        lanes: 2,
        paths: adapter::PATHS_MAX,
        credits: adapter::CREDITS,
    };

    /// HopIDs of a lane adapter, with those that no path can have.
    fn hops(self) -> usize {
        usize::from(adapter::FIRST_HOP + self.paths)
    }
}

/// How the link of a port is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) up: bool,
    /// Both lanes work as one.
    pub(crate) bonded: bool,
}

/// What a write makes happen beyond the spaces. Ports are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The connection manager now wants plug events of a port.
    PlugEventsWanted(usize),
    /// The port is being reset (true), or no more.
    PortReset(usize, bool),
    /// Bond the lanes of a port's link, if the other end wants it too.
    Bond(usize),
    /// Use one lane again.
    Unbond(usize),
}

/// Where a path leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) adapter: usize,
    pub(crate) hop: usize,
}

/// All spaces of one router.
pub(crate) struct Router {
    number: u32,
    version: u8,
    kinds: [PortKind; adapter::PORTS],
    own: Vec<u32>,
    adapters: Vec<Vec<u32>>,
    paths: Vec<Vec<u32>>,
    sideband: [[u32; 16]; adapter::PORTS],
}

/// Value of `baMaxHI`: buffers for each path of the host interface.
const HOST_INTERFACE_BUFFERS: u32 = 14;

impl Router {
    /// A router as after power-on. `number` makes its UID differ from others'. `version`: 0x20 for USB4 v1, 0x40 for v2.
    pub(crate) fn new(number: u32, version: u8, kinds: [PortKind; adapter::PORTS]) -> Self {
        let mut new = Self {
            number,
            version,
            kinds,
            own: Vec::new(),
            adapters: Vec::new(),
            paths: Vec::new(),
            sideband: [[0; 16]; adapter::PORTS],
        };
        new.reset();
        new
    }

    pub(crate) fn reset(&mut self) {
        // Vendor 1234, product 05b4: nobody's. The driver wants the vendor's second byte to be no capability number.
        let identity = 0x05b4_1234;
        let mut own = vec![0; router::WORDS];
        own[0] = identity;
        own[1] = router::TIME_MANAGEMENT as u32
            | (adapter::NHI as u32) << 8
            | (adapter::COUNT as u32 - 1) << 14
            | 1 << 24;
        own[router::VERSION] = u32::from(self.version) << 24;
        // Configuration is ready, and so is what the driver waits for after it.
        own[6] = 3 << 24;
        own[router::UID] = 0x1000_0001 + self.number;
        own[router::UID + 1] = 0x00c0_ffee;
        own[router::TIME_MANAGEMENT] = 3 << 8;
        self.own = own;
        self.adapters = (0..adapter::COUNT)
            .map(|number| self.adapter_after_reset(number, identity))
            .collect();
        self.paths = (0..adapter::COUNT)
            .map(|number| match number {
                0 => Vec::new(),
                adapter::NHI => vec![0; RINGS * 2],
                _ => {
                    let kind =
                        adapter::lane(number).map_or(PortKind::EMPTY, |(p, _)| self.kinds[p]);
                    vec![0; kind.hops() * 2]
                }
            })
            .collect();
        for port in 0..adapter::PORTS {
            // Control packets: HopID 0 leads to the router itself.
            self.paths[adapter::lane0(port)][0] = 2 << 17;
        }
        self.sideband = [[0; 16]; adapter::PORTS];
    }

    fn adapter_after_reset(&self, number: usize, identity: u32) -> Vec<u32> {
        let mut words = vec![0; port::WORDS];
        words[0] = identity;
        words[3] = (number as u32) << 20;
        let hops = |count: usize| (count as u32 - 1) | (count as u32 - 1) << 11;
        if number == adapter::NHI {
            words[2] = 2 | 0x20 << 24;
            words[port::CS_4] = 64 << 20;
            words[port::CS_5] = hops(RINGS);
        }
        let Some((usb4_port, lane)) = adapter::lane(number) else {
            return words;
        };
        let kind = self.kinds[usb4_port];
        let speed = if kind.generation >= 4 { 0xe } else { 0xc };
        words[1] = port::LANE as u32;
        words[2] = 1 | 0x20 << 24;
        words[port::CS_4] = u32::from(kind.credits) << 20;
        words[port::CS_5] = hops(kind.hops()) | port::NO_PLUG_EVENTS;
        let next = if lane == 0 { port::USB4 as u32 } else { 0 };
        words[port::LANE] = next | 1 << 8 | speed << 16 | 3 << 20;
        words[port::LANE_CS_1] = 0xc | 1 << 4;
        if lane == 0 {
            words[port::USB4] = 6 << 8;
            words[port::CS_18] = 1 << 8 | 1 << 10;
        }
        words
    }

    /// Does the connection manager want plug events of a port?
    pub(crate) fn wants_plug_events(&self, usb4_port: usize) -> bool {
        self.adapters[adapter::lane0(usb4_port)][port::CS_5] & port::NO_PLUG_EVENTS == 0
    }

    /// Does this end want its lanes bonded?
    pub(crate) fn wants_bonding(&self, usb4_port: usize) -> bool {
        (0..2).all(|lane| {
            let word = self.adapters[adapter::lane0(usb4_port) + lane][port::LANE_CS_1];
            word >> 4 & 3 == 3
        })
    }

    /// Where what the host sends on a ring goes.
    pub(crate) fn way_out(&self, ring: usize) -> Option<Hop> {
        path(&self.paths[adapter::NHI], ring)
    }

    /// Where what comes in at a lane adapter goes: a ring of the host.
    pub(crate) fn way_in(&self, lane_adapter: usize, hop: usize) -> Option<usize> {
        let to = path(&self.paths[lane_adapter], hop)?;
        (to.adapter == adapter::NHI && to.hop < RINGS).then_some(to.hop)
    }

    fn space(&mut self, space: u32, number: usize) -> Option<&mut Vec<u32>> {
        match space {
            0 => self.paths.get_mut(number),
            1 if number > 0 => self.adapters.get_mut(number),
            2 => Some(&mut self.own),
            _ => None,
        }
    }

    /// Reads words; `None` if there are no such.
    pub(crate) fn read(
        &mut self,
        space: u32,
        number: usize,
        offset: usize,
        length: usize,
        links: &[Link; adapter::PORTS],
    ) -> Option<Vec<u32>> {
        let kinds = self.kinds;
        let mut words = self
            .space(space, number)?
            .get(offset..offset + length)?
            .to_vec();
        if let (1, Some((usb4_port, lane))) = (space, adapter::lane(number)) {
            let link = links[usb4_port];
            let kind = kinds[usb4_port];
            if let Some(word) = port::LANE_CS_1
                .checked_sub(offset)
                .and_then(|n| words.get_mut(n))
            {
                let state = match (*word & port::LANE_DISABLED != 0, link.up) {
                    (true, _) => 0,
                    (_, true) if lane == 0 || kind.lanes == 2 => 2, // CL0
                    _ => 7,                                         // nothing there
                };
                let current_speed = if kind.generation >= 4 { 2 } else { 4 };
                let width = if link.up && link.bonded { 2 } else { 1 };
                *word |=
                    state << port::STATE_SHIFT | current_speed << 16 | width << port::WIDTH_SHIFT;
            }
        }
        Some(words)
    }

    /// Writes words; `None` if there are no such.
    pub(crate) fn write(
        &mut self,
        space: u32,
        number: usize,
        offset: usize,
        words: &[u32],
    ) -> Option<Vec<Effect>> {
        let target = self
            .space(space, number)?
            .get_mut(offset..offset + words.len())?;
        let before = target.to_vec();
        target.copy_from_slice(words);
        let mut effects = Vec::new();
        for (n, before) in before.into_iter().enumerate() {
            match (space, adapter::lane(number)) {
                (2, _) if offset + n == router::OPERATION => self.operate(),
                (1, Some((usb4_port, lane))) => {
                    effects.extend(self.adapter_written(usb4_port, lane, offset + n, before));
                }
                _ => {}
            }
        }
        Some(effects)
    }

    fn adapter_written(
        &mut self,
        usb4_port: usize,
        lane: usize,
        offset: usize,
        before: u32,
    ) -> Option<Effect> {
        let word = &mut self.adapters[adapter::lane0(usb4_port) + lane][offset];
        match (lane, offset) {
            (0, port::CS_5) => (before & !*word & port::NO_PLUG_EVENTS != 0)
                .then_some(Effect::PlugEventsWanted(usb4_port)),
            (0, port::CS_19) => {
                let reset = *word & port::DOWNSTREAM_RESET != 0;
                (reset != (before & port::DOWNSTREAM_RESET != 0))
                    .then_some(Effect::PortReset(usb4_port, reset))
            }
            (0, port::SIDEBAND) => {
                self.access_sideband(usb4_port);
                None
            }
            (_, port::LANE_CS_1) => {
                let bond = *word & port::LANE_BONDING != 0;
                // Read-only fields are put in when it is read.
                *word &= !(port::LANE_BONDING | 0xffff << 16) | 1 << 30;
                match (bond, lane) {
                    (true, _) => Some(Effect::Bond(usb4_port)),
                    (false, 0) if *word >> 4 & 3 == 1 => Some(Effect::Unbond(usb4_port)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// A router operation: all but one are answered with "not supported".
    fn operate(&mut self) {
        let operation = self.own[router::OPERATION];
        if operation >> 31 == 0 {
            return;
        }
        let opcode = operation & 0xffff;
        if opcode == router::BUFFER_ALLOCATION {
            self.own[router::OPERATION_METADATA] = 1;
            self.own[router::OPERATION_DATA] =
                router::BUFFERS_HOST_INTERFACE | HOST_INTERFACE_BUFFERS << 16;
            self.own[router::OPERATION] = opcode;
        } else {
            self.own[router::OPERATION] = opcode | 1 << 30;
        }
    }

    /// Sideband registers of the port itself exist; there are no retimers.
    fn access_sideband(&mut self, usb4_port: usize) {
        let words = &mut self.adapters[adapter::lane0(usb4_port)];
        let request = words[port::SIDEBAND];
        if request >> 31 == 0 {
            return;
        }
        let mut answer = request & !(1 << 31 | 3 << 25);
        if request >> 16 & 7 != 0 {
            answer |= 1 << 25;
        } else if let Some(register) = self.sideband[usb4_port].get_mut((request & 0xff) as usize) {
            if request & 1 << 24 == 0 {
                words[port::SIDEBAND_DATA] = *register;
            } else if request & 0xff == 8 {
                *register = 0; // an opcode: done
            } else {
                *register = words[port::SIDEBAND_DATA];
            }
        }
        words[port::SIDEBAND] = answer;
    }
}

fn path(space: &[u32], hop: usize) -> Option<Hop> {
    let word = *space.get(hop * 2)?;
    (word >> 31 != 0).then_some(Hop {
        adapter: (word >> 11 & 0x3f) as usize,
        hop: (word & 0x7ff) as usize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: Link = Link {
        up: true,
        bonded: false,
    };
    const DOWN: Link = Link {
        up: false,
        bonded: false,
    };

    fn router(generation: u8, lanes: u8) -> Router {
        let kind = PortKind {
            generation,
            lanes,
            ..PortKind::EMPTY
        };
        Router::new(0, 0x20, [kind; adapter::PORTS])
    }

    fn lane(router: &mut Router, number: usize, link: Link) -> u32 {
        router
            .read(1, number, port::LANE_CS_1, 1, &[link; adapter::PORTS])
            .unwrap()[0]
    }

    #[test]
    fn lanes_show_the_link() {
        let mut router = router(3, 2);
        assert_eq!(lane(&mut router, 1, UP) >> 26 & 0xf, 2);
        assert_eq!(lane(&mut router, 2, UP) >> 26 & 0xf, 2);
        assert_eq!(lane(&mut router, 1, DOWN) >> 26 & 0xf, 7);
        assert_eq!(lane(&mut router, 1, UP) >> 16 & 0xf, 4, "20 Gb/s");
        let bonded = Link {
            up: true,
            bonded: true,
        };
        assert_eq!(lane(&mut router, 1, UP) >> 20 & 0x3f, 1);
        assert_eq!(lane(&mut router, 1, bonded) >> 20 & 0x3f, 2);
    }

    #[test]
    fn a_single_lane_link_has_no_second_lane() {
        let mut router = router(3, 1);
        assert_eq!(lane(&mut router, 1, UP) >> 26 & 0xf, 2);
        assert_eq!(lane(&mut router, 2, UP) >> 26 & 0xf, 7);
    }

    #[test]
    fn generation_4_is_twice_as_fast() {
        assert_eq!(lane(&mut router(4, 2), 3, UP) >> 16 & 0xf, 2, "40 Gb/s");
    }

    #[test]
    fn writing_back_what_was_read_changes_nothing() {
        let mut router = router(3, 2);
        let word = lane(&mut router, 1, UP);
        router.write(1, 1, port::LANE_CS_1, &[word]).unwrap();
        assert_eq!(lane(&mut router, 1, UP), word);
        assert_eq!(lane(&mut router, 1, DOWN) >> 26 & 0xf, 7);
    }

    #[test]
    fn bonding_is_asked_for_once_both_lanes_agree() {
        let mut router = router(3, 2);
        for number in [1, 2] {
            let word = lane(&mut router, number, UP) | 3 << 4;
            router.write(1, number, port::LANE_CS_1, &[word]).unwrap();
        }
        assert!(router.wants_bonding(0));
        assert!(!router.wants_bonding(1));
        let word = lane(&mut router, 1, UP) | port::LANE_BONDING;
        assert_eq!(
            router.write(1, 1, port::LANE_CS_1, &[word]),
            Some(vec![Effect::Bond(0)])
        );
    }

    #[test]
    fn plug_events_and_port_resets_are_told_on_change() {
        let mut router = router(3, 2);
        let links = [DOWN; adapter::PORTS];
        let word = router.read(1, 3, port::CS_5, 1, &links).unwrap()[0];
        assert!(!router.wants_plug_events(1));
        let armed = [word & !port::NO_PLUG_EVENTS];
        assert_eq!(
            router.write(1, 3, port::CS_5, &armed),
            Some(vec![Effect::PlugEventsWanted(1)])
        );
        assert_eq!(router.write(1, 3, port::CS_5, &armed), Some(vec![]));
        assert!(router.wants_plug_events(1));
        assert_eq!(
            router.write(1, 1, port::CS_19, &[1]),
            Some(vec![Effect::PortReset(0, true)])
        );
        assert_eq!(
            router.write(1, 1, port::CS_19, &[0]),
            Some(vec![Effect::PortReset(0, false)])
        );
    }

    #[test]
    fn paths_lead_out_and_in() {
        let mut router = router(3, 2);
        assert_eq!(router.way_out(2), None);
        router
            .write(0, adapter::NHI, 4, &[1 << 31 | 1 << 11 | 9, 0])
            .unwrap();
        assert_eq!(router.way_out(2), Some(Hop { adapter: 1, hop: 9 }));
        router
            .write(0, 1, 18, &[1 << 31 | (adapter::NHI as u32) << 11 | 3, 0])
            .unwrap();
        assert_eq!(router.way_in(1, 9), Some(3));
        assert_eq!(router.way_in(1, 8), None);
    }

    #[test]
    fn a_cable_grants_paths_and_credits() {
        let kind = PortKind {
            paths: 2,
            credits: 40,
            ..PortKind::EMPTY
        };
        let mut router = Router::new(0, 0x20, [kind, PortKind::EMPTY]);
        let links = [DOWN; adapter::PORTS];
        let read = |router: &mut Router, number, offset| {
            router.read(1, number, offset, 1, &links).unwrap()[0]
        };
        assert_eq!(read(&mut router, 1, port::CS_4) >> 20 & 0x3ff, 40);
        assert_eq!(read(&mut router, 1, port::CS_5) & 0x7ff, 9);
        assert_eq!(read(&mut router, 1, port::CS_5) >> 11 & 0x7ff, 9);
        assert_eq!(read(&mut router, 3, port::CS_5) & 0x7ff, 31);
        // HopIDs 8 and 9 exist, 10 does not.
        assert!(router.write(0, 1, 18, &[0, 0]).is_some());
        assert_eq!(router.write(0, 1, 20, &[0, 0]), None);
        assert_eq!(router.way_in(1, 10), None);
    }

    #[test]
    fn the_buffer_operation_answers_and_others_do_not_exist() {
        let mut router = router(3, 2);
        let links = [DOWN; adapter::PORTS];
        router
            .write(
                2,
                0,
                router::OPERATION,
                &[1 << 31 | router::BUFFER_ALLOCATION],
            )
            .unwrap();
        assert_eq!(
            router.read(2, 0, router::OPERATION, 1, &links),
            Some(vec![router::BUFFER_ALLOCATION])
        );
        assert_eq!(
            router.read(2, 0, router::OPERATION_DATA, 1, &links),
            Some(vec![5 | 14 << 16])
        );
        router
            .write(2, 0, router::OPERATION, &[1 << 31 | 0x25])
            .unwrap();
        assert_eq!(
            router.read(2, 0, router::OPERATION, 1, &links),
            Some(vec![0x25 | 1 << 30])
        );
    }

    #[test]
    fn what_is_not_there_cannot_be_read() {
        let mut router = router(3, 2);
        let links = [DOWN; adapter::PORTS];
        assert_eq!(router.read(1, 0, 0, 1, &links), None);
        assert_eq!(router.read(1, 9, 0, 1, &links), None);
        assert_eq!(router.read(2, 0, router::WORDS, 1, &links), None);
        assert_eq!(router.read(3, 1, 0, 1, &links), None);
        assert_eq!(router.write(0, 0, 0, &[0]), None);
    }
}
