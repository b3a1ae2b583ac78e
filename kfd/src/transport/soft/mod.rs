// SPDX-License-Identifier: MIT OR Apache-2.0
//! The software device: the client side of [`super::wire`], which softgpud answers.
//!
//! INVARIANT: everything that belongs to one run of softgpud belongs to one `Session`. A session that has ended stays
//! ended. Its files answer ENODEV (the device died) or EBADF (the transport was closed, or this is a forked child).
//! Only [`Transport::open`] and [`Transport::adopt`] begin a new session.

mod address;
mod channel;
mod file;
mod fork;
mod interposed;
mod local;
mod marshal;
mod remote;
mod session;
mod sessions;
mod shared_memory;
mod start;
mod user_memory;
mod userptr;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;

use self::address::Address;
pub use self::address::INSTANCE_VARIABLE;
use self::file::SoftFile;
pub use self::fork::Fork;
pub use self::interposed::{Interposed, InterposedFile};
pub use self::local::LocalDevice;
pub use self::remote::DeviceMemory;
use self::session::Channels;
use self::sessions::Sessions;
use self::start::Start;
pub use self::start::{Launch, SETTINGS, SOFTGPUD_VARIABLE, StartError, find as find_softgpud};
use super::wire::{APERTURE_FILE, COUNTS_FILE, ENGINE_FILE, Reply, Request, WireError};
use super::{CloseError, File, OpenError, Transport, machine};
use crate::errno;
use crate::topology::{MemorySource, SysfsSource};
use crate::written::Units;

/// The transport of the software device.
#[derive(Debug)]
pub struct SoftTransport {
    name: String,
    sessions: Sessions,
}

impl SoftTransport {
    /// Connects to the softgpud that serves `devices` (targets such as `gfx1100`), starting it if there is
    /// none.
    ///
    /// # Errors
    /// [`OpenError`] if softgpud cannot be found, started or talked to within the thread's [`super::CallLimit`], or
    /// within half a minute if there is no limit.
    pub fn connect(devices: &[String]) -> Result<Self, OpenError> {
        Self::connect_instance(&devices.join(","), None)
    }

    /// Connects to the softgpud that serves the machine which the topology file at `path` describes now, starting it
    /// if there is none. `path` is absolute and canonical ([`machine::canonical`]).
    ///
    /// # Errors
    /// [`OpenError::File`] if it cannot be read, else as [`SoftTransport::connect`]; [`OpenError::Refused`] says what
    /// is wrong with its contents.
    pub fn connect_file(path: &Path) -> Result<Self, OpenError> {
        Self::connect_instance(&machine_name(path)?, None)
    }

    /// Connects to the instance `instance` (`None`: as [`INSTANCE_VARIABLE`] says) of the softgpud that serves
    /// `devices`, comma-separated targets or a machine by name.
    pub(super) fn connect_instance(devices: &str, instance: Option<&str>) -> Result<Self, OpenError> {
        Self::connect_to(Address::new(devices, instance))
    }

    /// Connects to a softgpud that somebody else started for `devices` on the abstract socket `name`
    /// (without the leading zero byte); never starts one.
    ///
    /// # Errors
    /// [`OpenError`] if nobody listens there or the greeting fails.
    pub fn connect_socket(name: &str, devices: &[String]) -> Result<Self, OpenError> {
        Self::connect_to(Address { name: name.to_owned(), devices: devices.join(","), start: Start::Never })
    }

    fn connect_to(address: Address) -> Result<Self, OpenError> {
        let name = format!("soft:{}", address.devices);
        let sessions = Sessions::new(address, Channels::Kept);
        sessions.begin()?;
        Ok(Self { name, sessions })
    }

    /// The transport to a device in this process, which serves `devices`.
    pub fn local(devices: &str, device: Arc<dyn LocalDevice>) -> Self {
        let name = format!("soft:{devices}");
        let address = Address { name: String::new(), devices: devices.to_owned(), start: Start::Never };
        Self { name, sessions: Sessions::local(address, device) }
    }
}

/// The name of the machine that a topology file describes now.
pub(super) fn machine_name(path: &Path) -> Result<String, OpenError> {
    let shown = path.to_string_lossy();
    let text = machine::read(path).map_err(|error| OpenError::File {
        path: path.to_owned(),
        transport: format!("soft:{shown}"),
        errno: errno::of_io(&error).unwrap_or(Errno::EINVAL),
    })?;
    Ok(machine::name(&shown, text.as_bytes()))
}

impl Transport for SoftTransport {
    fn name(&self) -> &str {
        &self.name
    }

    fn sysfs(&self) -> &dyn SysfsSource {
        self
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn File>, OpenError> {
        let request = Request::Open { path: path.to_string_lossy().into_owned() };
        let (session, reply, fds) = match self.sessions.exchange("open", &request, &[]) {
            // The device's refusal of a path is what open(2) would have said.
            Err(OpenError::Refused { errno, .. }) => {
                return Err(OpenError::File { path: path.to_owned(), transport: self.name.clone(), errno });
            }
            outcome => outcome?,
        };
        match (reply, fds.into_iter().next()) {
            (Reply::Opened { file }, Some(token)) => Ok(Arc::new(SoftFile::new(path, file, token, session))),
            _ => Err(OpenError::Wire { what: "open", source: WireError::UnexpectedReply }),
        }
    }

    fn adopt(&self, path: &Path, fd: OwnedFd) -> Result<Arc<dyn File>, OpenError> {
        let request = Request::Adopt { path: path.to_string_lossy().into_owned() };
        let (session, reply, _) = self.sessions.exchange("adopt", &request, &[fd.as_fd()])?;
        match reply {
            Reply::Opened { file } => Ok(Arc::new(SoftFile::new(path, file, fd, session))),
            _ => Err(OpenError::Wire { what: "adopt", source: WireError::UnexpectedReply }),
        }
    }

    fn engine(&self) -> Option<String> {
        SysfsSource::read(self, ENGINE_FILE).ok()
    }

    fn counts(&self) -> Option<String> {
        SysfsSource::read(self, COUNTS_FILE).ok()
    }

    fn aperture_read_cost(&self, gpu: crate::GpuId) -> u64 {
        let text = SysfsSource::read(self, APERTURE_FILE).unwrap_or_default();
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        let cost = pairs.filter(|(id, _)| id.parse() == Ok(gpu.0)).find_map(|(_, cost)| cost.parse().ok());
        cost.unwrap_or(0)
    }

    fn written(&self, ranges: &[(u64, u64)], unit: u64) -> Option<Vec<Units>> {
        let session = self.sessions.current()?;
        let _inside = session.enter();
        let request = Request::Written { ranges: ranges.to_vec(), unit };
        match session.exchange(&request, &[]) {
            Ok((Reply::Written(Some(units)), _)) if units.len() == ranges.len() => Some(units),
            _ => None,
        }
    }

    fn close(&self) -> Result<(), CloseError> {
        self.sessions.close()
    }
}

impl SysfsSource for SoftTransport {
    fn read(&self, path: &str) -> io::Result<String> {
        let request = Request::ReadSysfs { path: path.to_owned() };
        match self.sessions.exchange("read the topology", &request, &[]).map_err(io::Error::other)? {
            (_, Reply::Sysfs(outcome), _) => outcome.map_err(io::Error::from_raw_os_error),
            _ => Err(io::Error::other(WireError::UnexpectedReply)),
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.topology()?.list(path)
    }

    fn whole(&self) -> io::Result<Option<MemorySource>> {
        self.topology().map(Some)
    }
}

impl SoftTransport {
    fn topology(&self) -> io::Result<MemorySource> {
        let mut topology = MemorySource::default();
        let mut skipped = 0;
        loop {
            let request = Request::ReadTopology { skipped };
            let reply =
                self.sessions.exchange("read the topology", &request, &[]).map_err(io::Error::other)?;
            let (_, Reply::Topology { entries, more }, _) = reply else {
                return Err(io::Error::other(WireError::UnexpectedReply));
            };
            // A reply without entries would have the client ask for ever.
            let count = u32::try_from(entries.len()).ok().filter(|count| *count > 0 || !more);
            let next = count.and_then(|count| count.checked_add(skipped));
            skipped = next.ok_or_else(|| io::Error::other(WireError::UnexpectedReply))?;
            for (path, text) in entries {
                match text {
                    Some(text) => topology.add(path, text),
                    None => topology.add_directory(path),
                }
            }
            if !more {
                return Ok(topology);
            }
        }
    }
}
