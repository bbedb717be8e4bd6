//! Talking to a fabric that runs.

use crate::protocol::{Counters, Direction, Fault, Request, Response};
use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A control connection.
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to a control socket.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .map_err(|e| Error::new(e.kind(), format!("no fabric at {}: {e}", socket.display())))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a request and waits for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<Response> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes())?;
        let mut answer = String::new();
        if self.stream.read_line(&mut answer)? == 0 {
            return Err(Error::new(ErrorKind::UnexpectedEof, "the fabric has ended"));
        }
        match serde_json::from_str(&answer)? {
            Response::Error(reason) => Err(Error::other(reason)),
            response => Ok(response),
        }
    }

    fn done(&mut self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Response::Done => Ok(()),
            other => Err(Error::other(format!("unexpected answer {other:?}"))),
        }
    }

    /// Puts a cable in.
    pub fn plug(&mut self, cable: usize) -> Result<()> {
        self.done(&Request::Plug { cable })
    }

    /// Pulls a cable out.
    pub fn unplug(&mut self, cable: usize) -> Result<()> {
        self.done(&Request::Unplug { cable })
    }

    /// Sets a fault.
    pub fn set_fault(&mut self, cable: usize, direction: Direction, fault: Fault) -> Result<()> {
        self.done(&Request::SetFault {
            cable,
            direction,
            fault,
        })
    }

    /// Removes all faults.
    pub fn clear_faults(&mut self) -> Result<()> {
        self.done(&Request::ClearFaults)
    }

    /// What was counted.
    pub fn counters(&mut self) -> Result<Counters> {
        match self.ask(&Request::Counters)? {
            Response::Counters(counters) => Ok(counters),
            other => Err(Error::other(format!("unexpected answer {other:?}"))),
        }
    }

    /// Writes data frames of a cable to a file.
    pub fn start_pcap(&mut self, cable: usize, path: &Path) -> Result<()> {
        self.done(&Request::StartPcap {
            cable,
            path: path.to_owned(),
        })
    }

    /// Stops that.
    pub fn stop_pcap(&mut self) -> Result<()> {
        self.done(&Request::StopPcap)
    }

    /// Ends the fabric.
    pub fn quit(&mut self) -> Result<()> {
        self.done(&Request::Quit)
    }
}
