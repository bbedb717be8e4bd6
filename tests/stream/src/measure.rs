//! Traffic and what it took.

use crate::pipe::Pipe;
use crate::Mode;
use anyhow::{anyhow, Result};
use std::fmt::{Display, Formatter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that are read at once, if there are so many.
const CHUNK: usize = 1 << 20;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found {
    /// Of half a round trip, nanoseconds.
    Latency { trips: usize, median: u64, p99: u64 },
    /// Bytes of both directions together, and nanoseconds.
    Bandwidth { bytes: u64, ns: u64 },
}

impl Display for Found {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Latency { trips, median, p99 } => {
                write!(f, "trips={trips} median_ns={median} p99_ns={p99}")
            }
            Self::Bandwidth { bytes, ns } => write!(f, "bytes={bytes} ns={ns}"),
        }
    }
}

/// The end that begins, for about this long.
pub fn client(pipe: &Pipe, mode: Mode, size: usize, time: Duration) -> Result<Found> {
    let start = Instant::now();
    if mode == Mode::Pingpong {
        return pingpong(pipe, size, start + time);
    }
    let end = start + time;
    let both = mode == Mode::Both;
    let (sent, came) = thread::scope(|scope| {
        // The other end's answer to the last message is a byte, or the last of its own messages.
        let reader = scope.spawn(move || drain(pipe, if both { size } else { 1 }));
        let sent = send(pipe, size, || Instant::now() >= end);
        (sent, reader.join())
    });
    let ns = nanos(start.elapsed());
    let came = came.map_err(|_| anyhow!("the reader has panicked"))??;
    let bytes = sent? + if both { came } else { 0 };
    Ok(Found::Bandwidth { bytes, ns })
}

/// The end that answers, until the client's last message.
pub fn server(pipe: &Pipe, mode: Mode, size: usize) -> Result<()> {
    match mode {
        Mode::Pingpong => {
            let mut message = vec![0; size];
            loop {
                pipe.read_exact(&mut message)?;
                pipe.write_all(&message)?;
                if message[0] != 0 {
                    return Ok(());
                }
            }
        }
        Mode::Blast => {
            drain(pipe, size)?;
            pipe.write_all(&[1])
        }
        Mode::Both => {
            let over = AtomicBool::new(false);
            thread::scope(|scope| {
                let writer = scope.spawn(|| send(pipe, size, || over.load(Ordering::Relaxed)));
                let came = drain(pipe, size);
                over.store(true, Ordering::Relaxed);
                writer
                    .join()
                    .map_err(|_| anyhow!("the writer has panicked"))??;
                came.map(drop)
            })
        }
    }
}

fn pingpong(pipe: &Pipe, size: usize, end: Instant) -> Result<Found> {
    let mut message = vec![0; size];
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        message[0] = u8::from(start >= end);
        let last = message[0] != 0;
        pipe.write_all(&message)?;
        pipe.read_exact(&mut message)?;
        times.push(nanos(start.elapsed()));
        if last {
            break;
        }
    }
    times.sort_unstable();
    // There is one at least.
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)] / 2;
    Ok(Found::Latency {
        trips: times.len(),
        median: at(50),
        p99: at(99),
    })
}

/// Sends messages until `over`, and then the last one. Returns how many bytes.
fn send(pipe: &Pipe, size: usize, over: impl Fn() -> bool) -> Result<u64> {
    let mut message = vec![0; size];
    let mut bytes = 0;
    while message[0] == 0 {
        message[0] = over().into();
        pipe.write_all(&message)?;
        bytes += size as u64;
    }
    Ok(bytes)
}

/// Takes messages until the last one has come as a whole. Returns how many bytes.
fn drain(pipe: &Pipe, size: usize) -> Result<u64> {
    let mut buf = vec![0; CHUNK];
    let mut bytes = 0;
    // Of the message that is coming.
    let mut missing = 0;
    let mut last = false;
    loop {
        let count = pipe.read(&mut buf)?;
        let mut came = &buf[..count];
        bytes += came.len() as u64;
        while let Some(&first) = came.first() {
            if missing == 0 {
                missing = size;
                last = first != 0;
            }
            let part = missing.min(came.len());
            missing -= part;
            came = &came[part..];
        }
        if last && missing == 0 {
            return Ok(bytes);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Pipe, Pipe) {
        let (a, b) = UnixStream::pair().unwrap();
        let of = |end: UnixStream| {
            let other = end.try_clone().unwrap();
            let [read, write] = [end, other].map(|end| File::from(OwnedFd::from(end)));
            Pipe::of(read, write)
        };
        (of(a), of(b))
    }

    fn both_ends(mode: Mode, size: usize) -> Found {
        let (here, there) = pair();
        thread::scope(|scope| {
            let server = scope.spawn(|| server(&there, mode, size));
            let found = client(&here, mode, size, Duration::from_millis(20)).unwrap();
            server.join().unwrap().unwrap();
            found
        })
    }

    #[test]
    fn every_mode_ends_and_finds_something() {
        for size in [1, 2, 64, 4096, 100_000] {
            match both_ends(Mode::Pingpong, size) {
                Found::Latency { trips, median, p99 } => {
                    assert!(trips > 0 && median > 0 && p99 >= median);
                }
                other => panic!("{other}"),
            }
            for mode in [Mode::Blast, Mode::Both] {
                match both_ends(mode, size) {
                    Found::Bandwidth { bytes, ns } => {
                        assert!(bytes > 0 && bytes % size as u64 == 0, "{size} {bytes}");
                        assert!(ns >= 20_000_000);
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }

    #[test]
    fn an_end_that_closes_is_noticed() {
        let (here, there) = pair();
        drop(there);
        assert!(client(&here, Mode::Pingpong, 64, Duration::from_millis(1)).is_err());
        let (here, there) = pair();
        drop(here);
        assert!(server(&there, Mode::Blast, 64).is_err());
    }
}
