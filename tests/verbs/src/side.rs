//! What the two ends tell each other beside the RDMA path: one JSON object a line over TCP.

use anyhow::{Context, Result};
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long the other end may take to answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// What one end tells of its QP and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    pub qpn: u32,
    pub gid: [u8; 16],
    /// Where messages may be written or read.
    pub data_addr: u64,
    pub data_key: u32,
    /// Where the number of messages taken may be written.
    pub credit_addr: u64,
    pub credit_key: u32,
    /// Messages and their size, which have to be equal at both ends.
    pub size: u64,
    pub depth: u64,
    pub count: u64,
}

/// The connection.
pub struct Side {
    stream: BufReader<TcpStream>,
}

/// Waits for the other end.
pub fn accept(address: &str, port: u16) -> Result<Side> {
    let listener = TcpListener::bind((address, port))
        .with_context(|| format!("cannot listen at {address}:{port}"))?;
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Side::new(stream),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                anyhow::ensure!(
                    start.elapsed() < PATIENCE,
                    "nobody came to {address}:{port}"
                );
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

/// Goes to the other end, which may not be there yet.
pub fn connect(address: &str, port: u16) -> Result<Side> {
    let start = Instant::now();
    loop {
        match TcpStream::connect((address, port)) {
            Ok(stream) => return Side::new(stream),
            Err(_) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(100)),
            Err(e) => return Err(e).with_context(|| format!("cannot reach {address}:{port}")),
        }
    }
}

impl Side {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// How long to wait for the other end from now on.
    pub fn set_patience(&mut self, patience: Duration) -> Result<()> {
        Ok(self.stream.get_mut().set_read_timeout(Some(patience))?)
    }

    /// Tells something.
    pub fn tell(&mut self, what: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(what)?;
        line.push('\n');
        Ok(self.stream.get_mut().write_all(line.as_bytes())?)
    }

    /// Hears something.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        let read = self
            .stream
            .read_line(&mut line)
            .context("the other end says nothing")?;
        anyhow::ensure!(read > 0, "the other end has gone");
        Ok(serde_json::from_str(&line)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_hear_each_other() {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let server = std::thread::spawn(move || {
            let mut side = accept("127.0.0.1", port).unwrap();
            let heard: String = side.hear().unwrap();
            side.tell(&heard.len()).unwrap();
        });
        let mut side = connect("127.0.0.1", port).unwrap();
        side.tell(&"hello").unwrap();
        assert_eq!(side.hear::<usize>().unwrap(), 5);
        server.join().unwrap();
        assert!(side.hear::<usize>().is_err());
    }
}
