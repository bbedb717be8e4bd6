//! RCCL/NCCL net plugin for tbrdma: nothing yet (see README.md).
