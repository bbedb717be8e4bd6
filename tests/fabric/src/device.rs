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
/// Where the power management capability is.
const PM: usize = 0x60;
/// Its status register, low byte: power state (1:0). No_Soft_Reset (3) says that D3hot forgets nothing.
const PM_STATUS: usize = PM + 4;
/// High byte: PME enable (0) and PME status (7).
const PM_WAKE: usize = PM + 5;

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
    config[MSIX..MSIX + 12].copy_from_slice(&[
        0x11,
        PM as u8,
        last_vector,
        0,
        2,
        0,
        0,
        0,
        2,
        8,
        0,
        0,
    ]);
    // Power management, version 3, PME from D0 and D3hot. Without it a driver lets the device suspend all the
    // same, and nothing tells it of a cable that is plugged in later. The kernel looks at the PME status every second.
    config[PM..PM + 6].copy_from_slice(&[1, 0, 0x03, 0x48, 1 << 3, 0]);
    config
}

/// Bits of a byte of the configuration space that the guest may write. BARs are the VMM's business.
fn writable(offset: usize) -> u8 {
    const MSIX_CONTROL: usize = MSIX + 3;
    match offset {
        4 | 5 | 0x3c | MSIX_CONTROL => 0xff,
        PM_STATUS => 3,
        PM_WAKE => 1,
        _ => 0,
    }
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

impl Device {
    fn config_byte(&self, offset: usize) -> u8 {
        let byte = self.config.get(offset).copied().unwrap_or(0);
        // The PME status is not kept: it is set for as long as an event waits for a host that sleeps and wants
        // to be woken. Clearing it therefore needs no code: whoever wakes up disables PME or starts its rings.
        let wake =
            offset == PM_WAKE && byte & 1 != 0 && lock(&self.fabric).hosts[self.host].calls();
        byte | u8::from(wake) << 7
    }
}

impl ServerBackend for Device {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => {
                for (n, byte) in data.iter_mut().enumerate() {
                    *byte = self.config_byte(offset + n);
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
                for (offset, new) in (offset..).zip(data) {
                    let mask = writable(offset);
                    if let Some(byte) = self.config.get_mut(offset) {
                        *byte = *byte & !mask | new & mask;
                    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{adapter, port};

    fn read(device: &mut Device, offset: usize) -> u8 {
        let mut byte = [0];
        device
            .region_read(VFIO_PCI_CONFIG_REGION_INDEX, offset as u64, &mut byte)
            .unwrap();
        byte[0]
    }

    fn write(device: &mut Device, offset: usize, byte: u8) {
        device
            .region_write(VFIO_PCI_CONFIG_REGION_INDEX, offset as u64, &[byte])
            .unwrap();
    }

    fn device() -> Device {
        let names = ["a".to_owned(), "b".to_owned()];
        let (mut fabric, _) = Fabric::new(&names, &["a:1-b:1".parse().unwrap()]).unwrap();
        fabric.set_plugged(0, false).unwrap();
        fabric.set_power(0, true);
        fabric.set_power(1, true);
        Device {
            fabric: Arc::new(Mutex::new(fabric)),
            host: 0,
            config: config(),
        }
    }

    #[test]
    fn the_capabilities_are_a_list() {
        let mut device = device();
        let mut found = Vec::new();
        let mut at = read(&mut device, 0x34);
        while at != 0 {
            found.push(read(&mut device, at.into()));
            at = read(&mut device, usize::from(at) + 1);
            assert!(found.len() < 10, "they form a ring");
        }
        assert_eq!(found, [0x11, 1]);
    }

    #[test]
    fn only_what_is_writable_is_written() {
        let mut device = device();
        for offset in 0..CONFIG_SIZE + 8 {
            write(&mut device, offset, 0xff);
        }
        assert_eq!(read(&mut device, 0), 0x34);
        assert_eq!(read(&mut device, 4), 0xff);
        assert_eq!(read(&mut device, PM_STATUS), 1 << 3 | 3);
        assert_eq!(read(&mut device, PM_WAKE), 1);
        assert_eq!(read(&mut device, CONFIG_SIZE + 4), 0);
    }

    #[test]
    fn a_cable_wakes_a_host_that_sleeps() {
        let mut device = device();
        // A driver that wants plug events, and has stopped its rings.
        let space = [0];
        lock(&device.fabric).hosts[0]
            .router
            .write(1, adapter::lane0(0), port::CS_5, &space)
            .unwrap();
        write(&mut device, PM_WAKE, 1);
        assert_eq!(read(&mut device, PM_WAKE), 1, "nothing has happened");
        lock(&device.fabric).set_plugged(0, true).unwrap();
        assert_eq!(read(&mut device, PM_WAKE), 0x81);
        // Who has disabled PME is not told.
        write(&mut device, PM_WAKE, 0x80);
        assert_eq!(read(&mut device, PM_WAKE), 0);
    }
}
