// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening the runtime: once a process.
//!
//! INVARIANT: a process has one context, as it has one in the driver, so opening again gives the same one. A checkpoint
//! or the end of the process closes it; dropping handles does not.

use std::sync::Arc;

use kfd::DeviceSpec;
use parking_lot::Mutex;

use crate::checkpoint::agent_thread;
use crate::context::Context;
use crate::context::agent::spec;
use crate::context::error::OpenError;
use crate::context::open::{check_same, open};
use crate::runtime::Runtime;

/// The process's runtime, once it was opened.
static PROCESS: Mutex<Option<Arc<Context>>> = Mutex::new(None);

/// What to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Who answers; `None` reads `STASIS_DEVICE`.
    pub device: Option<DeviceSpec>,
    /// Which agents, such as `0` or `GPU-a1b2c3d4e5f60718,1` or `stasis://0,1`; `None` reads `ROCR_VISIBLE_DEVICES`, and
    /// takes all that can be used without it ([`Runtime::left_out`] says which cannot), as `stasis://` does.
    pub agents: Option<String>,
}

impl Runtime {
    /// Opens the process's runtime with the defaults of [`Options`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_default() -> Result<Self, OpenError> {
        Runtime::open(Options::default())
    }

    /// Opens the process's runtime, or gives another handle on it if it is open on the same agents.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left open then.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let mut process = PROCESS.lock();
        let list = match options.agents {
            Some(list) => Some(list),
            None => spec::from_env()?,
        };
        let list = list.filter(|list| !spec::is_all(list));
        if let Some(context) = &*process {
            if let Some(lost) = context.gate.lost() {
                return Err(lost.into());
            }
            check_same(context, list.as_deref())?;
            return Ok(Runtime::from_context(context));
        }
        // Not before: a copy on another machine may have an environment that names nothing there.
        let spec = match options.device {
            Some(spec) => spec,
            None => DeviceSpec::from_env().map_err(OpenError::Device)?,
        };
        let transport = kfd::open_default(spec).map_err(OpenError::Transport)?;
        let context = open(transport, list.as_deref())?;
        agent_thread::start(&context).map_err(OpenError::Agent)?;
        *process = Some(Arc::clone(&context));
        Ok(Runtime::from_context(&context))
    }

    /// The process's runtime if it was opened.
    pub fn current() -> Option<Self> {
        PROCESS.lock().as_ref().map(Runtime::from_context)
    }
}
