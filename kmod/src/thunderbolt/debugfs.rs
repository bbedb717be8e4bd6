// SPDX-License-Identifier: GPL-2.0-only
//! `/sys/kernel/debug/tbrdma/state`: what root may see of the module's inside, one object per
//! line.

use crate::sys;
use core::fmt::{self, Write};
use core::ptr::NonNull;
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;
use kernel::sync::Arc;

/// Writes the text of the file.
pub(crate) trait Report: Send + Sync + 'static {
    /// May be called at any time, by several readers at once. The text may be cut off and asked
    /// for again if it is long.
    fn report(&self, out: &mut Writer) -> fmt::Result;
}

/// Where a report goes.
pub(crate) struct Writer {
    /// A `seq_file` that is being shown.
    file: *mut c_void,
}

impl Write for Writer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: the file is valid while `show` runs, which is as long as a `Writer` lives. An
        // overflow is noticed by the core, which shows again with more room.
        unsafe { sys::tbrdma_debugfs_write(self.file, text.as_ptr().cast(), text.len()) };
        Ok(())
    }
}

/// The file, until dropped.
pub(crate) struct StateFile<R: Report> {
    /// `None` on kernels without debugfs.
    dir: Option<NonNull<c_void>>,
    _report: Arc<R>,
}

// SAFETY: removal works from any thread; the report is `Send + Sync`.
unsafe impl<R: Report> Send for StateFile<R> {}
// SAFETY: no shared access.
unsafe impl<R: Report> Sync for StateFile<R> {}

impl<R: Report> StateFile<R> {
    /// Makes the file; there must be only one at a time.
    pub(crate) fn new(report: Arc<R>) -> Self {
        let data = Arc::as_ptr(&report).cast_mut().cast();
        // SAFETY: `show` fits the data, which lives until the file is removed.
        let dir = unsafe { sys::tbrdma_debugfs_create(Some(show::<R>), data) };
        Self {
            dir: NonNull::new(dir),
            _report: report,
        }
    }
}

impl<R: Report> Drop for StateFile<R> {
    fn drop(&mut self) {
        if let Some(dir) = self.dir {
            // SAFETY: made in `new`, removed once; no reader is left afterwards.
            unsafe { sys::tbrdma_debugfs_remove(dir.as_ptr()) };
        }
    }
}

unsafe extern "C" fn show<R: Report>(file: *mut c_void, data: *mut c_void) -> c_int {
    // SAFETY: the shim passes the data of `new`, which is an `R` that lives while files are shown.
    let report = unsafe { &*data.cast::<R>() };
    match report.report(&mut Writer { file }) {
        Ok(()) => 0,
        Err(fmt::Error) => EIO.to_errno(),
    }
}
