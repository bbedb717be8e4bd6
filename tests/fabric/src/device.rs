//! A host router as a PCI device that a VMM attaches over vfio-user.

use crate::fabric::Fabric;
use crate::layout::BAR0_SIZE;
use crate::nhi::{SHARED, SHARED_SIZE, VECTORS};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vfio_bindings::bindings::vfio::{
    vfio_region_info, vfio_region_sparse_mmap_area, VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
    VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
};
use vfio_user::{
    DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion, SparseArea,
};

const CONFIG_SIZE: usize = 256;
/// BAR 2 holds the MSI-X table, which the VMM keeps for itself.
const BAR2_SIZE: u64 = 0x1000;
/// Where the MSI-X capability is.
const MSIX: usize = 0x50;

/// Serves one host's device for ever: one VMM after the other.
pub(crate) fn serve(
    fabric: &Arc<Mutex<Fabric>>,
    host: usize,
    socket: &Path,
    shared: &File,
) -> Result<(), vfio_user::Error> {
    loop {
        // What a killed process has left would be in the way.
        let _ = std::fs::remove_file(socket);
        let server = Server::new(socket, true, interrupts(), regions(shared))?;
        let mut device = Device {
            fabric: Arc::clone(fabric),
            host,
            config: config(),
        };
        if let Err(error) = server.run(&mut device) {
            log::warn!("{}: {error}", socket.display());
        }
        let mut fabric = lock(fabric);
        fabric.set_power(host, false);
        for vector in 0..VECTORS {
            fabric.hosts[host].nhi.set_vector(vector, None);
        }
    }
}

/// A thread that panicked has left the state as it was between two steps, which is good enough to go on.
pub(crate) fn lock(fabric: &Mutex<Fabric>) -> MutexGuard<'_, Fabric> {
    fabric.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Device {
    fabric: Arc<Mutex<Fabric>>,
    host: usize,
    config: [u8; CONFIG_SIZE],
}

/// PCI configuration space after reset.
fn config() -> [u8; CONFIG_SIZE] {
    let mut config = [0; CONFIG_SIZE];
    config[0..4].copy_from_slice(&[0x34, 0x12, 0xb4, 0x05]); // nobody's identity
    config[6] = 0x10; // status: there are capabilities
    config[8..12].copy_from_slice(&[1, 0x40, 0x03, 0x0c]); // revision 1, class USB4 host interface
    config[0x2c..0x30].copy_from_slice(&[0x34, 0x12, 0xb4, 0x05]);
    config[0x34] = MSIX as u8;
    let last_vector = VECTORS as u8 - 1;
    // MSI-X: table in BAR 2 at 0, pending bits in BAR 2 at 0x800
    config[MSIX..MSIX + 12].copy_from_slice(&[0x11, 0, last_vector, 0, 2, 0, 0, 0, 2, 8, 0, 0]);
    config
}

/// Bytes of the configuration space that the guest may write. BARs are the VMM's business.
fn writable(offset: usize) -> bool {
    matches!(offset, 4 | 5 | 0x3c) || offset == MSIX + 3
}

fn regions(shared: &File) -> Vec<ServerRegion> {
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| {
            let size = match index {
                VFIO_PCI_BAR0_REGION_INDEX => BAR0_SIZE as u64,
                VFIO_PCI_BAR2_REGION_INDEX => BAR2_SIZE,
                VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_SIZE as u64,
                _ => 0,
            };
            let mut region = ServerRegion {
                region_info: vfio_region_info {
                    argsz: std::mem::size_of::<vfio_region_info>() as u32,
                    flags: 0,
                    index,
                    cap_offset: 0,
                    size,
                    offset: 0,
                },
                sparse_areas: Vec::new(),
                mmap_fd: None,
            };
            if size > 0 {
                region.region_info.flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
            }
            if index == VFIO_PCI_BAR0_REGION_INDEX {
                region.region_info.flags |= VFIO_REGION_INFO_FLAG_MMAP;
                region.mmap_fd = Some(shared.as_raw_fd());
                region.sparse_areas = SHARED
                    .iter()
                    .map(|&offset| SparseArea {
                        area: vfio_region_sparse_mmap_area {
                            offset: offset as u64,
                            size: SHARED_SIZE as u64,
                        },
                    })
                    .collect();
            }
            region
        })
        .collect()
}

fn interrupts() -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| {
            let msix = index == VFIO_PCI_MSIX_IRQ_INDEX;
            IrqInfo {
                index,
                flags: if msix {
                    VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE
                } else {
                    0
                },
                count: if msix { VECTORS as u32 } else { 0 },
            }
        })
        .collect()
}

impl ServerBackend for Device {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => {
                for (n, byte) in data.iter_mut().enumerate() {
                    *byte = self.config.get(offset + n).copied().unwrap_or(0);
                }
            }
            VFIO_PCI_BAR0_REGION_INDEX if offset < BAR0_SIZE => {
                let mut fabric = lock(&self.fabric);
                let mut at = offset;
                let end = offset + data.len();
                while at < end {
                    let word = fabric.read_register(self.host, at & !3).to_le_bytes();
                    let within = at & 3;
                    let count = (4 - within).min(end - at);
                    data[at - offset..][..count].copy_from_slice(&word[within..within + count]);
                    at += count;
                }
            }
            _ => data.fill(0),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => {
                for (n, byte) in data
                    .iter()
                    .enumerate()
                    .filter(|(n, _)| writable(offset + n))
                {
                    self.config[offset + n] = *byte;
                }
            }
            VFIO_PCI_BAR0_REGION_INDEX if offset % 4 == 0 && data.len() % 4 == 0 => {
                let mut fabric = lock(&self.fabric);
                for (n, word) in data.chunks_exact(4).enumerate() {
                    let value = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                    if offset + n * 4 < BAR0_SIZE {
                        fabric.write_register(self.host, offset + n * 4, value);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        _flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        // Without a file it is no memory, but another device.
        let Some(file) = file else {
            return Ok(());
        };
        log::debug!("host {}: memory {address:#x}+{size:#x}", self.host);
        lock(&self.fabric).hosts[self.host]
            .nhi
            .memory
            .map(address, size, file, offset)
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        let mut fabric = lock(&self.fabric);
        let memory = &mut fabric.hosts[self.host].nhi.memory;
        if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            memory.clear();
        } else {
            memory.unmap(address, size);
        }
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.config = config();
        lock(&self.fabric).set_power(self.host, true);
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        events: Vec<File>,
    ) -> io::Result<()> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX {
            return Ok(());
        }
        let mut fabric = lock(&self.fabric);
        let nhi = &mut fabric.hosts[self.host].nhi;
        if count == 0 {
            for vector in 0..VECTORS {
                nhi.set_vector(vector, None);
            }
        } else if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 {
            let mut events = events.into_iter();
            for vector in start..start.saturating_add(count).min(VECTORS as u32) {
                nhi.set_vector(vector as usize, events.next());
            }
        }
        Ok(())
    }
}
