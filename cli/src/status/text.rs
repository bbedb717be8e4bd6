//! The status for people.

use super::model::{Link, Peer, Rail, Status};
use std::io::{self, Write};

/// Writes the whole status.
pub(super) fn write(status: &Status, out: &mut impl Write) -> io::Result<()> {
    device(status, out)?;
    for peer in &status.peers {
        write_peer(peer, status, out)?;
    }
    for link in status.links.iter().filter(|link| link.peer == 0) {
        writeln!(
            out,
            "link {} to {} is not connected yet ({})",
            link.id,
            cable(link, status),
            link.state
        )?;
    }
    // Without debugfs the cables are all that there is to say.
    if status.links.is_empty() {
        for cable in &status.cables {
            let host = cable.host.as_deref().unwrap_or("another host");
            let speed = speed(cable.lanes, cable.lane_gbps);
            let tbrdma = if cable.tbrdma {
                "runs tbrdma"
            } else {
                "does not run tbrdma"
            };
            writeln!(out, "cable {} to {host}: {speed}, {tbrdma}", cable.name)?;
        }
    }
    for note in &status.notes {
        writeln!(out, "note: {note}")?;
    }
    Ok(())
}

fn device(status: &Status, out: &mut impl Write) -> io::Result<()> {
    let version = status
        .module
        .as_ref()
        .and_then(|module| module.version.as_deref());
    let Some(device) = &status.device else {
        return writeln!(out, "no tbrdma device");
    };
    let port = &device.port;
    write!(
        out,
        "{}: {}",
        device.name,
        port.state.as_deref().unwrap_or("state unknown")
    )?;
    match (port.lanes, port.lane_gbps, &port.rate) {
        (Some(lanes), Some(gbps), _) if lanes > 0 => {
            write!(out, ", {}", speed(Some(lanes), Some(gbps)))?;
        }
        // The rate of a port that is down says nothing.
        (_, _, Some(rate)) if port.state.as_deref() == Some("ACTIVE") => write!(out, ", {rate}")?,
        _ => (),
    }
    writeln!(out, ", module {}", version.unwrap_or("of unknown version"))?;
    if let Some(netdev) = &status.netdev {
        writeln!(
            out,
            "  interface {}: {}, {}, MTU {}",
            netdev.name,
            netdev.operstate.as_deref().unwrap_or("unknown"),
            netdev.address.as_deref().unwrap_or("no address"),
            netdev.mtu.map_or("unknown".into(), |mtu| mtu.to_string())
        )?;
    }
    for gid in &device.gids {
        let kind = gid.kind.as_deref().unwrap_or("unknown type");
        writeln!(out, "  GID {}: {} ({kind})", gid.index, gid.gid)?;
    }
    if let Some(host) = &status.host {
        writeln!(out, "  this host: {}", host.uuid)?;
    }
    Ok(())
}

fn write_peer(peer: &Peer, status: &Status, out: &mut impl Write) -> io::Result<()> {
    let state = if peer.up { "up" } else { "down" };
    writeln!(out, "peer {}: {state}, {}", peer.uuid, peer.mac)?;
    for link in status.links.iter().filter(|link| link.peer == peer.id) {
        writeln!(
            out,
            "  link {} to {}: {}, {}",
            link.id,
            cable(link, status),
            link.state,
            speed(Some(link.lanes), Some(link.lane_gbps))
        )?;
        for rail in &link.rails {
            write_rail(rail, out)?;
        }
    }
    Ok(())
}

fn write_rail(rail: &Rail, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "    rail: {} of {} frames in flight, round trip {} us",
        rail.window.saturating_sub(rail.room),
        rail.window,
        rail.rtt_us
    )?;
    writeln!(
        out,
        "      sent {}, repeated {}, timeouts {}, waits {}",
        rail.tx, rail.retransmits, rail.timeouts, rail.stalls
    )?;
    writeln!(
        out,
        "      received {}, duplicates {}, damaged {}, malformed {}",
        rail.rx, rail.duplicates, rail.damaged, rail.malformed
    )
}

/// The cable of a link by the name that the Thunderbolt core has for it.
fn cable(link: &Link, status: &Status) -> String {
    let cable = status
        .cables
        .iter()
        .find(|cable| cable.uuid.as_ref() == Some(&link.remote));
    match cable {
        Some(cable) => {
            format!(
                "{} on {}",
                cable.host.as_deref().unwrap_or("another host"),
                cable.name
            )
        }
        None => format!("router {}", link.remote),
    }
}

fn speed(lanes: Option<u32>, gbps: Option<u32>) -> String {
    match (lanes, gbps) {
        (Some(1), Some(gbps)) => format!("{gbps} Gb/s (1 lane)"),
        (Some(lanes), Some(gbps)) => format!("{} Gb/s ({lanes} lanes of {gbps})", lanes * gbps),
        _ => "speed unknown".into(),
    }
}
