// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two transports, the kernel's driver and the software device, behind a pair of object-safe traits.
//!
//! INVARIANT: both transports take the real ioctl numbers, structs and mmap cookies. Only [`Transport::name`] tells a
//! caller which transport it has.

pub mod beside;
pub mod control;
mod doorbell;
pub mod gate;
pub mod kernel;
mod limit;
pub mod machine;
mod mapping;
pub mod run;
pub mod soft;
mod spec;
pub mod wire;

use std::ffi::c_void;
use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
pub use nix::sys::mman::ProtFlags;

pub use self::doorbell::{Doorbell, DoorbellSlice};
pub use self::limit::CallLimit;
pub(crate) use self::mapping::Mapping;
pub use self::mapping::map_fixed;
pub use self::soft::StartError;
pub use self::spec::{DEVICE_VARIABLE, DeviceSpec, SpecError, default_devices};
use crate::ids::GpuId;
use crate::topology::SysfsSource;
use crate::written::Units;

/// The path of KFD's character device.
pub const KFD_PATH: &str = "/dev/kfd";

/// The path of the render node with this minor number, the topology's `drm_render_minor`.
pub fn render_node_path(minor: u32) -> PathBuf {
    PathBuf::from(format!("/dev/dri/renderD{minor}"))
}

/// A source of device files and of the topology.
pub trait Transport: Send + Sync + Debug {
    /// `kfd`, or the soft device's specification such as `soft:gfx1100`.
    fn name(&self) -> &str;

    /// The topology's files, for [`crate::Topology::read`].
    fn sysfs(&self) -> &dyn SysfsSource;

    /// What executes waves, as `key value` lines ([`wire::ENGINE_FILE`]). `None` for hardware, and for a software
    /// device that does not answer.
    fn engine(&self) -> Option<String> {
        None
    }

    /// What this process has had the device do so far, as `key value` lines ([`wire::COUNTS_FILE`]). `None` for hardware, and for a
    /// software device that does not answer.
    fn counts(&self) -> Option<String> {
        None
    }

    /// Picoseconds that a byte read of a GPU's memory through its PCI aperture is to take beyond what memory takes: what a
    /// software device was told to imitate ([`wire::APERTURE_FILE`]). Readers wait so long by themselves. 0 for hardware,
    /// where the bus takes the time.
    fn aperture_read_cost(&self, gpu: GpuId) -> u64 {
        let _ = gpu;
        0
    }

    /// Which units of `unit` bytes of these ranges, addresses and bytes, ascending, GPUs have written since this was last asked; it begins anew.
    /// Of a range that was not asked of then, all count as written. `None` for hardware, which nobody sees write; for a software device that was not
    /// told to look (`SOFTGPU_WRITES=on`), or has no answer: then, too, all is written, the next time as well.
    fn written(&self, ranges: &[(u64, u64)], unit: u64) -> Option<Vec<Units>> {
        let _ = (ranges, unit);
        None
    }

    /// Opens [`KFD_PATH`] or a render node, close-on-exec.
    ///
    /// # Errors
    /// [`OpenError`] names the path and the error of the driver or of the connection.
    fn open(&self, path: &Path) -> Result<Arc<dyn File>, OpenError>;

    /// Makes a file of a descriptor that was kept elsewhere. It is the same open file as before.
    ///
    /// # Errors
    /// As for [`Transport::open`]; the descriptor is closed then.
    fn adopt(&self, path: &Path, fd: OwnedFd) -> Result<Arc<dyn File>, OpenError>;

    /// Closes what the transport itself holds (sockets), so that the process has no trace of it. The caller drops files
    /// first. A later [`Transport::open`] connects again.
    ///
    /// # Errors
    /// [`CloseError::Busy`] if a call is under way; nothing changed then.
    fn close(&self) -> Result<(), CloseError>;
}

/// One open device file.
#[allow(unsafe_code)] // Declares unsafe methods; the transports implement them.
pub trait File: Send + Sync + Debug {
    /// The path it was opened with.
    fn path(&self) -> &Path;

    /// The descriptor that identifies the file. ACQUIRE_VM's `drm_fd` names it, and it may be duplicated, or sent to
    /// another process and adopted there.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// Issues one ioctl. It may return EINTR; the wrappers of [`crate::ioctl`] retry.
    ///
    /// # Errors
    /// The driver's errno; ENODEV also if the soft device is gone, EBADF in a forked child, ETIMEDOUT if it did not
    /// answer within the thread's [`CallLimit`].
    ///
    /// # Safety
    /// `arg` must point to as many bytes as `cmd` encodes, readable and writable. Each pointer in them must name memory
    /// that the driver may access as the ioctl does.
    unsafe fn ioctl(&self, cmd: u32, arg: *mut c_void) -> Result<u32, Errno>;

    /// Maps `len` bytes of the file at `offset` shared and fixed at `at`.
    ///
    /// # Errors
    /// The errno of the driver's mmap.
    ///
    /// # Safety
    /// What was mapped in `at..at + len` is replaced; nothing may rely on it.
    unsafe fn mmap_fixed(&self, at: *mut u8, len: usize, prot: ProtFlags, offset: u64) -> Result<(), Errno>;

    /// Maps the process' doorbell slice that the cookie `offset` names at `at`.
    ///
    /// # Errors
    /// EINVAL if `len` is no power of two of at least 8, else the errno of the driver's mmap.
    ///
    /// # Safety
    /// As for [`File::mmap_fixed`]; and the mapping must stay writable at `at` for as long as the slice
    /// or any doorbell of it is rung.
    unsafe fn map_doorbells(&self, at: *mut u8, len: usize, offset: u64) -> Result<DoorbellSlice, Errno>;
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file could not be opened.
    #[error(
        "Cannot open {path} on {transport} ({errno}); {}",
        advice(*errno)
    )]
    File {
        /// The file.
        path: PathBuf,
        /// The transport's name.
        transport: String,
        /// The driver's answer.
        errno: Errno,
    },
    /// The soft device knows no such file or refuses this process.
    #[error("The soft device refused {what} ({errno}): {message}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// The errno it gave.
        errno: Errno,
        /// The device's message.
        message: String,
    },
    /// The soft device speaks another version of the protocol.
    #[error("softgpud uses protocol {found}, this library uses {wanted}; install both from one build")]
    Protocol {
        /// The library's version.
        wanted: u32,
        /// The device's version.
        found: u32,
    },
    /// The process that listens on the socket belongs to another user.
    #[error(
        "The socket {name} belongs to user {found}, not to {wanted}; set STASIS_SOFTGPU_INSTANCE to another name"
    )]
    Peer {
        /// The abstract socket's name.
        name: String,
        /// Our effective user.
        wanted: u32,
        /// The listener's user.
        found: u32,
    },
    /// softgpud could not be started.
    #[error("Cannot start softgpud for {devices}")]
    Start {
        /// The devices asked for.
        devices: String,
        /// Why.
        #[source]
        source: StartError,
    },
    /// softgpud did not answer within the caller's [`CallLimit`], or within the default limit.
    #[error("No answer from softgpud on socket {name} within {seconds} s ({errno}); is it stopped?")]
    Unreachable {
        /// The abstract socket's name.
        name: String,
        /// How long the caller waited.
        seconds: u64,
        /// The last failure to connect.
        errno: Errno,
    },
    /// A message to or from the soft device failed.
    #[error("Cannot exchange a message with the soft device about {what}")]
    Wire {
        /// What was asked.
        what: &'static str,
        /// Why.
        #[source]
        source: wire::WireError,
    },
}

fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT => "is the amdgpu driver loaded?",
        Errno::EACCES | Errno::EPERM => "is the user in the render group?",
        Errno::EINVAL => "the driver has no GPU, or it is resetting",
        Errno::ENODEV => "the device is gone",
        Errno::EMFILE | Errno::ENFILE => "raise the limit of open files (ulimit -n)",
        _ => "see the kernel log",
    }
}

/// Why a transport could not be closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Calls are in progress. End them (destroy the events they wait for) and try again.
    #[error("Cannot close the transport while {calls} calls are in progress")]
    Busy {
        /// How many.
        calls: usize,
    },
    /// Pages lent to the device could not be made the process' own again.
    #[error("Cannot take back the pages at {address:#x} (+{bytes:#x}) from the soft device ({errno})")]
    Userptr {
        /// First address.
        address: usize,
        /// Bytes.
        bytes: usize,
        /// The failing call's errno.
        errno: Errno,
    },
}

/// The transport that `spec` names; [`DeviceSpec::Auto`] is the kernel's if it has a GPU node, else soft.
///
/// # Errors
/// [`OpenError`] if the soft device cannot be reached or started. The kernel's files are opened later.
pub fn open_default(spec: DeviceSpec) -> Result<Arc<dyn Transport>, OpenError> {
    open_instance(&spec, None)
}

/// The same, where `instance` names the softgpud instead of [`soft::INSTANCE_VARIABLE`].
///
/// # Errors
/// As [`open_default`].
pub fn open_instance(spec: &DeviceSpec, instance: Option<&str>) -> Result<Arc<dyn Transport>, OpenError> {
    Ok(match soft_devices(spec)? {
        None => Arc::new(kernel::KernelTransport::new()),
        Some(devices) => Arc::new(soft::SoftTransport::connect_instance(&devices, instance)?),
    })
}

/// What [`Transport::name`] of the transport that `spec` names would say; opens and starts nothing.
///
/// # Errors
/// [`OpenError::File`] for a topology file that cannot be read.
pub fn name_of(spec: &DeviceSpec) -> Result<String, OpenError> {
    Ok(soft_devices(spec)?.map_or_else(|| "kfd".to_owned(), |devices| format!("soft:{devices}")))
}

/// The soft device's own name for what `spec` names; `None` is the kernel's driver.
fn soft_devices(spec: &DeviceSpec) -> Result<Option<String>, OpenError> {
    Ok(match spec {
        DeviceSpec::Kfd => None,
        DeviceSpec::Auto if kernel::KernelTransport::new().has_gpu() => None,
        DeviceSpec::Auto => Some(spec::default_devices().join(",")),
        DeviceSpec::Soft(devices) => Some(devices.join(",")),
        DeviceSpec::SoftFile(path) => Some(soft::machine_name(path)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_says_what_the_transport_would_and_starts_nothing() {
        let name = |text: &str| name_of(&text.parse().unwrap()).unwrap();
        assert_eq!(name("kfd"), kernel::KernelTransport::new().name());
        assert_eq!(name("soft"), "soft:gfx1100");
        assert_eq!(name("soft:gfx1100*2,gfx1201"), "soft:gfx1100,gfx1100,gfx1201");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().canonicalize().unwrap().join("machine.toml");
        let of_file = || name_of(&DeviceSpec::SoftFile(file.clone()));
        assert!(matches!(of_file(), Err(OpenError::File { errno: Errno::ENOENT, .. })));
        std::fs::write(&file, "pcie_p2p = true").unwrap();
        let first = of_file().unwrap();
        assert!(first.starts_with(&format!("soft:{}#", file.display())), "{first}");
        std::fs::write(&file, "pcie_p2p = false").unwrap();
        assert_ne!(of_file().unwrap(), first, "an edited file is another machine");
    }
}
