//! The module's state file in debugfs: one object per line, its kind and then `key=value` pairs.

use super::model::{Host, Link, Peer, Rail, Status};
use anyhow::{anyhow, bail, Context, Result};
use std::collections::BTreeMap;

/// One line.
struct Line<'a> {
    kind: &'a str,
    values: BTreeMap<&'a str, &'a str>,
}

impl<'a> Line<'a> {
    fn parse(text: &'a str) -> Result<Self> {
        let mut words = text.split_ascii_whitespace();
        let kind = words.next().ok_or_else(|| anyhow!("empty line"))?;
        let values = words
            .map(|word| {
                word.split_once('=')
                    .ok_or_else(|| anyhow!("{word:?} is no key=value"))
            })
            .collect::<Result<_>>()?;
        Ok(Self { kind, values })
    }

    fn text(&self, key: &str) -> Result<String> {
        let value = self.values.get(key).ok_or_else(|| anyhow!("no {key}"))?;
        Ok((*value).to_owned())
    }

    fn number(&self, key: &str) -> Result<u32> {
        let value = self.text(key)?;
        value
            .parse()
            .with_context(|| format!("{key}={value} is no number"))
    }
}

/// Adds what the file says to `status`. Lines of unknown kinds are for newer programs.
pub(super) fn read_into(text: &str, status: &mut Status) -> Result<()> {
    for (at, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        Line::parse(line)
            .and_then(|line| take(&line, status))
            .with_context(|| format!("line {}", at + 1))?;
    }
    Ok(())
}

fn take(line: &Line<'_>, status: &mut Status) -> Result<()> {
    match line.kind {
        "host" => {
            status.host = Some(Host {
                uuid: line.text("uuid")?,
                mac: line.text("mac")?,
            });
        }
        "port" => {
            if let Some(device) = &mut status.device {
                device.port.lanes = Some(line.number("lanes")?);
                device.port.lane_gbps = Some(line.number("lane_gbps")?);
            }
        }
        "peer" => status.peers.push(Peer {
            id: line.number("id")?,
            uuid: line.text("uuid")?,
            mac: line.text("mac")?,
            up: line.number("up")? != 0,
            rails: line.number("rails")?,
        }),
        "link" => status.links.push(Link {
            id: line.number("id")?,
            state: line.text("state")?,
            peer: line.number("peer")?,
            route: line.text("route")?,
            local: line.text("local")?,
            remote: line.text("remote")?,
            lanes: line.number("lanes")?,
            lane_gbps: line.number("lane_gbps")?,
            rails: Vec::new(),
        }),
        "rail" => {
            let id = line.number("link")?;
            let Some(link) = status.links.iter_mut().find(|link| link.id == id) else {
                bail!("a rail of link {id}, which is not there");
            };
            link.rails.push(rail(line)?);
        }
        _ => (),
    }
    Ok(())
}

fn rail(line: &Line<'_>) -> Result<Rail> {
    let mut counters = BTreeMap::new();
    for (key, value) in line.values.iter().filter(|(key, _)| **key != "link") {
        let number = value
            .parse()
            .with_context(|| format!("{key}={value} is no number"))?;
        counters.insert((*key).to_owned(), number);
    }
    let get = |key: &str| counters.get(key).copied().unwrap_or(0);
    let malformed = counters
        .iter()
        .filter(|(key, _)| key.starts_with("malformed_"));
    Ok(Rail {
        window: get("window"),
        room: get("room"),
        tx: get("tx"),
        retransmits: get("retransmits"),
        timeouts: get("timeouts"),
        stalls: get("stalls"),
        rx: get("rx"),
        duplicates: get("duplicates"),
        damaged: get("damaged"),
        malformed: malformed.map(|(_, count)| count).sum(),
        rtt_us: get("rtt_us"),
        counters,
    })
}
