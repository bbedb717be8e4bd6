//! Cables as the command line describes them.

use crate::layout::adapter;
use std::str::FromStr;

/// An end of a cable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Name of the host.
    pub host: String,
    /// USB4 port of the host, counted from 1.
    pub port: usize,
}

/// A cable: `a:1-b:1,gen=3,lanes=2,paths=24,credits=120`. What follows the ends may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cable {
    /// Both ends.
    pub ends: [End; 2],
    /// USB4 generation: 3 is 20 Gb/s a lane, 4 is 40 Gb/s.
    pub generation: u8,
    /// Lanes that come up, 1 or 2. Generation 4 has no single lane.
    pub lanes: u8,
    /// DMA paths that each end takes in, 1 to 24: as many HopIDs from 8 its lane adapters have.
    pub paths: u16,
    /// Buffers ("credits") of each end's lane adapters, 3 to 1023; two are for control packets.
    pub credits: u16,
}

impl FromStr for Cable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let ends = parts.next().unwrap_or_default();
        let (first, second) = ends
            .split_once('-')
            .ok_or_else(|| format!("{ends:?} is not HOST:PORT-HOST:PORT"))?;
        let mut cable = Self {
            ends: [end(first)?, end(second)?],
            generation: 3,
            lanes: 2,
            paths: adapter::PATHS_MAX,
            credits: adapter::CREDITS,
        };
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?} is not KEY=VALUE"))?;
            let number: u16 = value
                .parse()
                .map_err(|_| format!("{value:?} is no number"))?;
            match (key, number) {
                ("gen", 3 | 4) => cable.generation = number as u8,
                ("lanes", 1 | 2) => cable.lanes = number as u8,
                ("paths", 1..=adapter::PATHS_MAX) => cable.paths = number,
                ("credits", 3..=1023) => cable.credits = number,
                ("gen", _) => return Err(format!("generation {number} is not 3 or 4")),
                ("lanes", _) => return Err(format!("{number} lanes are not 1 or 2")),
                ("paths", _) => {
                    return Err(format!(
                        "{number} paths are not 1 to {}",
                        adapter::PATHS_MAX
                    ))
                }
                ("credits", _) => return Err(format!("{number} credits are not 3 to 1023")),
                _ => return Err(format!("{key:?} is not one of gen, lanes, paths, credits")),
            }
        }
        if cable.generation == 4 && cable.lanes == 1 {
            return Err("a generation 4 link has two lanes always".to_owned());
        }
        if cable.ends[0] == cable.ends[1] {
            return Err(format!("both ends are at {first}"));
        }
        Ok(cable)
    }
}

fn end(text: &str) -> Result<End, String> {
    let (host, port) = text
        .split_once(':')
        .ok_or_else(|| format!("{text:?} is not HOST:PORT"))?;
    let port: usize = port.parse().map_err(|_| format!("{port:?} is no port"))?;
    if host.is_empty() || !(1..=adapter::PORTS).contains(&port) {
        return Err(format!(
            "{text:?} is not HOST:PORT with a port from 1 to {}",
            adapter::PORTS
        ));
    }
    Ok(End {
        host: host.to_owned(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ends_and_options() {
        let cable: Cable = "a:1-b:2,gen=4".parse().unwrap();
        assert_eq!(
            cable.ends[1],
            End {
                host: "b".into(),
                port: 2
            }
        );
        assert_eq!((cable.generation, cable.lanes), (4, 2));
        let cable: Cable = "a:1-b:1,lanes=1".parse().unwrap();
        assert_eq!((cable.generation, cable.lanes), (3, 1));
        assert_eq!((cable.paths, cable.credits), (24, 120));
        let cable: Cable = "a:1-b:1,paths=2,credits=1023".parse().unwrap();
        assert_eq!((cable.paths, cable.credits), (2, 1023));
    }

    #[test]
    fn says_what_is_wrong() {
        for text in [
            "a:1",
            "a-b",
            "a:0-b:1",
            "a:3-b:1",
            "a:1-a:1",
            "a:1-b:1,gen=5",
            "a:1-b:1,gen=4,lanes=1",
            "a:1-b:1,x=1",
            "a:1-b:1,paths=0",
            "a:1-b:1,paths=25",
            "a:1-b:1,credits=2",
            "a:1-b:1,credits=1024",
            "a:1-b:1,gen=259",
        ] {
            assert!(text.parse::<Cable>().is_err(), "{text}");
        }
    }
}
