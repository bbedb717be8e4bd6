//! The device: a pipe in both directions.

use anyhow::{ensure, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

/// One end of a stream. Both directions may be used at once.
pub struct Pipe {
    read: File,
    write: File,
}

impl Pipe {
    /// Opens the device, which joins its rings to the cable.
    pub fn open(path: &Path) -> Result<Self> {
        let read = OpenOptions::new().read(true).write(true).open(path)?;
        let write = read.try_clone()?;
        Ok(Self { read, write })
    }

    /// Reads what has come; waits for something.
    pub fn read(&self, to: &mut [u8]) -> Result<usize> {
        let count = (&self.read).read(to)?;
        ensure!(count > 0, "the other end has closed the stream");
        Ok(count)
    }

    /// Reads exactly so much.
    pub fn read_exact(&self, to: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < to.len() {
            at += self.read(&mut to[at..])?;
        }
        Ok(())
    }

    /// Writes everything.
    pub fn write_all(&self, from: &[u8]) -> Result<()> {
        Ok((&self.write).write_all(from)?)
    }

    #[cfg(test)]
    pub fn of(read: File, write: File) -> Self {
        Self { read, write }
    }
}
