//! Where things are in a host router: registers of the NHI (the PCI function), and the configuration spaces
//! behind its control channel.
//!
//! Sources: USB4 specification, chapters 4 (control packets), 8 (configuration spaces) and 12 (host
//! interface); the kernel's `drivers/thunderbolt/{nhi_regs,tb_regs,tb_msgs}.h` for what its drivers use.

/// Bytes of BAR 0. The highest register that the driver touches is at 0x39944.
pub(crate) const BAR0_SIZE: usize = 0x4_0000;
/// Rings in each direction, at most 16 so that the interrupt bits of all rings fit into 32.
pub(crate) const RINGS: usize = 16;
/// Bytes of a page of guest memory, and the most that a frame carries.
pub(crate) const FRAME_MAX: usize = 4096;

/// NHI registers.
pub(crate) mod nhi {
    /// Descriptors of transmit rings, 16 bytes a ring: base (8), indexes (4), size (4).
    pub(crate) const TX_RING: usize = 0x0_0000;
    /// The same for receive rings.
    pub(crate) const RX_RING: usize = 0x0_8000;
    /// Distance of two rings.
    pub(crate) const RING_STRIDE: usize = 16;
    /// Options of transmit rings.
    pub(crate) const TX_OPTIONS: usize = 0x1_9800;
    /// Options of receive rings.
    pub(crate) const RX_OPTIONS: usize = 0x2_9800;
    /// Distance of the options of two rings.
    pub(crate) const OPTIONS_STRIDE: usize = 32;
    /// Which rings want attention: transmit rings first, then receive rings, one bit each.
    pub(crate) const NOTIFY: usize = 0x3_7800;
    /// Writing a one clears that bit of `NOTIFY`.
    pub(crate) const INTERRUPT_CLEAR: usize = 0x3_7808;
    /// Which of them interrupt.
    pub(crate) const INTERRUPT_ENABLE: usize = 0x3_8200;
    /// Writing a one clears that bit of `INTERRUPT_ENABLE`.
    pub(crate) const INTERRUPT_MASK_CLEAR: usize = 0x3_8208;
    /// MSI-X vector of each ring, four bits each.
    pub(crate) const VECTORS: usize = 0x3_8c40;
    /// Number of rings (bits 9:0), version (bits 23:16).
    pub(crate) const CAPABILITIES: usize = 0x3_9640;
    /// Bit 0 resets the host router and clears itself (version 2).
    pub(crate) const RESET: usize = 0x3_9898;

    /// Options: the ring runs.
    pub(crate) const ENABLED: u32 = 1 << 31;
    /// Options: end-to-end flow control.
    pub(crate) const END_TO_END: u32 = 1 << 28;
}

/// Descriptors in guest memory: address (8 bytes), then this word, then a time stamp (4).
pub(crate) mod descriptor {
    /// Bytes of a descriptor.
    pub(crate) const SIZE: u64 = 16;
    /// Length; 0 stands for 4096.
    pub(crate) const LENGTH: u32 = 0xfff;
    /// The frame's end-of-frame PDF.
    pub(crate) const EOF_SHIFT: u32 = 12;
    /// The frame's start-of-frame PDF.
    pub(crate) const SOF_SHIFT: u32 = 16;
    /// Set by the NHI on receive: the frame's CRC was wrong.
    pub(crate) const CRC_ERROR: u32 = 1 << 20;
    /// Set by the NHI when it is done with the descriptor.
    pub(crate) const DONE: u32 = 2 << 20;
    /// Set by the NHI on receive: the buffer was too small.
    pub(crate) const OVERRUN: u32 = 4 << 20;
}

/// Adapters of our routers. Adapter 0 is the router itself.
pub(crate) mod adapter {
    /// USB4 ports.
    pub(crate) const PORTS: usize = 2;
    /// The host interface.
    pub(crate) const NHI: usize = 2 * PORTS + 1;
    /// Number of adapters with the router itself.
    pub(crate) const COUNT: usize = NHI + 1;
    /// First HopID of a lane adapter that a path can have.
    pub(crate) const FIRST_HOP: u16 = 8;
    /// Most paths that a lane adapter takes in.
    pub(crate) const PATHS_MAX: u16 = 24;
    /// Buffers of a lane adapter if the cable does not say otherwise.
    pub(crate) const CREDITS: u16 = 120;

    /// First lane of a port (counted from 0).
    pub(crate) const fn lane0(port: usize) -> usize {
        1 + 2 * port
    }

    /// The port (from 0) and lane (0 or 1) of an adapter, if it is a lane adapter.
    pub(crate) const fn lane(adapter: usize) -> Option<(usize, usize)> {
        if adapter >= 1 && adapter <= 2 * PORTS {
            Some(((adapter - 1) / 2, (adapter - 1) % 2))
        } else {
            None
        }
    }
}

/// Router configuration space.
pub(crate) mod router {
    /// Bits 31:24: USB4 version.
    pub(crate) const VERSION: usize = 4;
    /// Low half of the UID; the UUID of the router is made from it.
    pub(crate) const UID: usize = 7;
    /// Data of a router operation.
    pub(crate) const OPERATION_DATA: usize = 9;
    /// Metadata of a router operation.
    pub(crate) const OPERATION_METADATA: usize = 25;
    /// A router operation: valid (31), not supported (30), opcode.
    pub(crate) const OPERATION: usize = 26;
    /// Opcode that asks for the router's buffers.
    pub(crate) const BUFFER_ALLOCATION: u32 = 0x33;
    /// Index of the buffers for host interface paths (baMaxHI) in the answer.
    pub(crate) const BUFFERS_HOST_INTERFACE: u32 = 5;
    /// Where the time management capability is; it must exist and may be empty.
    pub(crate) const TIME_MANAGEMENT: usize = 0x40;
    /// Words of the space.
    pub(crate) const WORDS: usize = 0x80;
}

/// Adapter configuration space.
pub(crate) mod port {
    /// Total buffers (29:20).
    pub(crate) const CS_4: usize = 4;
    /// Highest HopIDs, and bit 31: plug events are off.
    pub(crate) const CS_5: usize = 5;
    /// Bit 31 of `CS_5`.
    pub(crate) const NO_PLUG_EVENTS: u32 = 1 << 31;
    /// Where the lane capability is.
    pub(crate) const LANE: usize = 0x10;
    /// Second word of the lane capability: target and current speed and width, state.
    pub(crate) const LANE_CS_1: usize = LANE + 1;
    /// `LANE_CS_1`: lane is off.
    pub(crate) const LANE_DISABLED: u32 = 1 << 14;
    /// `LANE_CS_1`: bond the lanes.
    pub(crate) const LANE_BONDING: u32 = 1 << 15;
    /// `LANE_CS_1`: where the current width is.
    pub(crate) const WIDTH_SHIFT: u32 = 20;
    /// `LANE_CS_1`: where the state is.
    pub(crate) const STATE_SHIFT: u32 = 26;
    /// Where the USB4 port capability is (first lane only).
    pub(crate) const USB4: usize = 0x20;
    /// Sideband access: pending (31), no response (25), write (24), target (18:16), register (7:0).
    pub(crate) const SIDEBAND: usize = USB4 + 1;
    /// First data word of a sideband access.
    pub(crate) const SIDEBAND_DATA: usize = USB4 + 2;
    /// Port status.
    pub(crate) const CS_18: usize = USB4 + 0x12;
    /// Port control.
    pub(crate) const CS_19: usize = USB4 + 0x13;
    /// `CS_19`: the port is being reset, the link is down.
    pub(crate) const DOWNSTREAM_RESET: u32 = 1 << 0;
    /// Words of the space.
    pub(crate) const WORDS: usize = 0x60;
}
