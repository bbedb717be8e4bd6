//! The control channel: what a connection manager says to its router, or through it to another one.

use crate::fabric::Fabric;
use crate::layout::adapter;
use crate::packet::{self, pdf, Address, Packet, FROM_ROUTER};

impl Fabric {
    pub(crate) fn control(&mut self, host: usize, pdf: u8, frame: &[u8]) {
        let packet = match Packet::parse(pdf, frame) {
            Ok(packet) => packet,
            Err(reason) => {
                log::warn!("host {}: control packet: {reason}", self.hosts[host].name);
                self.hosts[host].nhi.guest_errors += 1;
                return;
            }
        };
        log::trace!("host {} says {packet:x?}", self.hosts[host].name);
        let route = packet.route();
        match pdf {
            pdf::XDOMAIN_REQUEST | pdf::XDOMAIN_RESPONSE => self.pass_to_peer(host, packet),
            pdf::ERROR
                if packet
                    .words
                    .get(2)
                    .is_some_and(|w| w & 0xff == packet::error::ACKNOWLEDGE_PLUG) =>
            {
                let now = self.now;
                self.hosts[host].acknowledged((packet.words[2] >> 8 & 0x3f) as usize, now);
            }
            // There is no router behind a cable, but a host: its router answers with an error.
            pdf::READ | pdf::WRITE if route != 0 => {
                let lane = (route & 0x3f) as usize;
                let up = adapter::lane(lane).is_some_and(|(port, _)| self.links(host)[port].up);
                let code = if up { packet::error::LOOP } else { 0 };
                self.error(host, &packet, code, lane);
            }
            pdf::READ => self.read(host, &packet),
            pdf::WRITE => self.write(host, &packet),
            pdf::RESET => {
                let words = vec![packet.words[0] | FROM_ROUTER, packet.words[1]];
                self.hosts[host].send(Packet::new(pdf::RESET, words));
            }
            _ => {}
        }
    }

    /// To the connection manager at the other end of a cable.
    fn pass_to_peer(&mut self, host: usize, mut packet: Packet) {
        let lane = (packet.route() & 0x3f) as usize;
        let Some((port, 0)) = adapter::lane(lane) else {
            return;
        };
        let Some((cable, side)) = self.at[host][port] else {
            return;
        };
        if !self.cables[cable].up {
            return;
        }
        let (peer, peer_port) = self.cables[cable].ends[1 - side];
        packet.words[0] = FROM_ROUTER;
        packet.words[1] = adapter::lane0(peer_port) as u32;
        self.hosts[peer].send(packet);
    }

    fn error(&mut self, host: usize, to: &Packet, code: u32, number: usize) {
        let words = vec![
            to.words[0] | FROM_ROUTER,
            to.words[1],
            code | (number as u32) << 8,
        ];
        self.hosts[host].send(Packet::new(pdf::ERROR, words));
    }

    fn read(&mut self, host: usize, packet: &Packet) {
        let Some(&word) = packet.words.get(2) else {
            return;
        };
        let a = Address::parse(word);
        let links = self.links(host);
        match self.hosts[host]
            .router
            .read(a.space, a.adapter, a.offset, a.length, &links)
        {
            Some(data) => {
                let mut words = reply(packet, word);
                words.extend(data);
                self.hosts[host].send(Packet::new(pdf::READ, words));
            }
            None => self.error(host, packet, packet::error::INVALID_SPACE, a.adapter),
        }
    }

    fn write(&mut self, host: usize, packet: &Packet) {
        let Some((&word, data)) = packet.words.get(2..).and_then(<[u32]>::split_first) else {
            return;
        };
        let a = Address::parse(word);
        let written = if data.len() == a.length {
            self.hosts[host]
                .router
                .write(a.space, a.adapter, a.offset, data)
        } else {
            None
        };
        let Some(effects) = written else {
            self.error(host, packet, packet::error::INVALID_SPACE, a.adapter);
            return;
        };
        // The answer goes before the events that the write makes happen.
        self.hosts[host].send(Packet::new(pdf::WRITE, reply(packet, word)));
        for effect in effects {
            self.apply(host, effect);
        }
    }
}

/// The first words of an answer. The adapter is the one that the request came in at.
fn reply(to: &Packet, address: u32) -> Vec<u32> {
    let at = address & !(0x3f << 19) | (adapter::NHI as u32) << 19;
    vec![to.words[0] | FROM_ROUTER, to.words[1], at]
}
