// SPDX-License-Identifier: MIT OR Apache-2.0
//! The extension module `stasis._stasis`: the runtime's agents, buffers, executables, queues and checkpoints as Python
//! classes. `stasis/__init__.pyi` documents them for Python's users.
//!
//! INVARIANT: whatever may wait does so without the interpreter's lock, and gives Ctrl-C its chance; and a child that
//! `os.fork` made never speaks to its parent's device ([`process`]).

mod arguments;
mod buffer;
mod checkpoint;
mod device;
mod dlpack;
mod error;
mod event;
mod kernel;
mod launcher;
mod memory;
mod printed;
mod process;
mod queue;
mod raw;
mod restored;
mod saved;
mod wait;

use pyo3::prelude::*;

/// What `stasis/__init__.py` exports.
#[pymodule]
mod _stasis {
    #[pymodule_export]
    use crate::buffer::Buffer;
    #[pymodule_export]
    use crate::checkpoint::{Checkpoint, activity, checkpoint};
    #[pymodule_export]
    use crate::device::{Device, counts, device_count, open};
    #[pymodule_export]
    use crate::error::{
        CheckpointError, DeviceLost, Error, Forked, KernelFault, LaunchError, LoadError, OutOfMemory, Timeout,
    };
    #[pymodule_export]
    use crate::event::Event;
    #[pymodule_export]
    use crate::kernel::{Kernel, Launch, Module};
    #[pymodule_export]
    use crate::launcher::Launcher;
    #[pymodule_export]
    use crate::printed::pass_on;
    #[pymodule_export]
    use crate::process::forked;
    #[pymodule_export]
    use crate::queue::{Queue, synchronize};
    #[pymodule_export]
    use crate::raw::RawQueue;
    #[pymodule_export]
    use crate::saved::{adopt, save};

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
