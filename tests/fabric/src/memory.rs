//! The guest's memory, as the VMM maps it for us.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
    MmapRegion,
};

/// Everything that the device may read and write.
#[derive(Default)]
pub(crate) struct Memory {
    map: GuestMemoryMmap,
}

impl Memory {
    pub(crate) fn map(
        &mut self,
        address: u64,
        size: u64,
        file: File,
        offset: u64,
    ) -> io::Result<()> {
        let size = usize::try_from(size).map_err(io::Error::other)?;
        let region =
            MmapRegion::from_file(FileOffset::new(file, offset), size).map_err(io::Error::other)?;
        let region = GuestRegionMmap::new(region, GuestAddress(address))
            .ok_or_else(|| io::Error::other("address out of range"))?;
        self.map = self
            .map
            .insert_region(Arc::new(region))
            .map_err(io::Error::other)?;
        Ok(())
    }

    /// Takes away every mapping that lies in the range.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) {
        let gone: Vec<(GuestAddress, u64)> = self
            .regions()
            .filter(|&(start, length)| {
                start >= address && start - address <= size && length <= size - (start - address)
            })
            .map(|(start, length)| (GuestAddress(start), length))
            .collect();
        for (start, length) in gone {
            if let Ok((rest, _)) = self.map.remove_region(start, length) {
                self.map = rest;
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.map = GuestMemoryMmap::default();
    }

    fn regions(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        use vm_memory::GuestMemoryBackend;
        self.map.iter().map(|r| (r.start_addr().0, r.len()))
    }

    /// Reads bytes; false if they are not all mapped.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.map.read_slice(bytes, GuestAddress(address)).is_ok()
    }

    /// Writes bytes; false if they are not all mapped.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.map.write_slice(bytes, GuestAddress(address)).is_ok()
    }

    /// Writes a word so that whoever sees it also sees what was written before.
    pub(crate) fn publish(&self, address: u64, word: u32) -> bool {
        self.map
            .store(word, GuestAddress(address), Ordering::Release)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        file
    }

    #[test]
    fn sees_what_is_mapped_and_nothing_else() {
        let mut memory = Memory::default();
        memory.map(0x1000, 0x1000, file(0x2000), 0x1000).unwrap();
        memory.map(0x8000, 0x1000, file(0x1000), 0).unwrap();
        assert!(memory.write(0x1ff0, &[1; 16]));
        assert!(!memory.write(0x1ff8, &[1; 16]));
        let mut bytes = [0; 16];
        assert!(memory.read(0x1ff0, &mut bytes));
        assert_eq!(bytes, [1; 16]);
        assert!(memory.publish(0x8000, 7));
        memory.unmap(0x1000, 0x1000);
        assert!(!memory.read(0x1ff0, &mut bytes));
        assert!(memory.read(0x8000, &mut bytes));
        memory.unmap(0, u64::MAX);
        assert!(!memory.read(0x8000, &mut bytes));
    }
}
