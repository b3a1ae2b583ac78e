// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one place where an argument struct is handed to a transport, and where new descriptors get an owner.
//!
//! INVARIANT: a pointer and its length in an argument are written here, from a slice that is borrowed for the call; or
//! the caller of an unsafe function vouches for them.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd};

use nix::errno::Errno;

use super::drm::Render;
use super::error::IoctlError;
use super::file::Kfd;
use crate::sys;
use crate::sys::table::{Array, CloseOnExec, Command, Length, Part, Place, PlainArgs, Row};
use crate::transport::File;

/// Bytes of an argument that a command can encode (`_IOC_SIZEBITS`).
const MAX_ARGUMENT: usize = (1 << 14) - 1;
/// A descriptor field that holds none (`KFD_INVALID_FD`).
pub(super) const NO_FD: u32 = u32::MAX;

/// Memory for one array of an argument.
#[derive(Debug)]
pub(super) enum Slice<'a> {
    /// The driver reads it.
    Read(&'a [u8]),
    /// The driver reads and writes it.
    Write(&'a mut [u8]),
}

impl Slice<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Read(bytes) => bytes.len(),
            Self::Write(bytes) => bytes.len(),
        }
    }

    /// Its address, for a driver that writes it if `writable`.
    ///
    /// # Errors
    /// EINVAL if it may only be read.
    fn expose(&mut self, writable: bool) -> Result<u64, Errno> {
        match self {
            Self::Write(bytes) => Ok(bytes.as_mut_ptr().expose_provenance() as u64),
            Self::Read(bytes) if !writable => Ok(bytes.as_ptr().expose_provenance() as u64),
            Self::Read(_) => Err(Errno::EINVAL),
        }
    }
}

/// Writes the pointer and the length of each array into the argument: those of the slice at the array's index, or zero
/// if there are fewer slices. If a slice is longer than the count field can say, the count names its beginning.
///
/// # Errors
/// EINVAL if there are too many slices, if the driver writes an array whose slice may only be read, or if no field
/// alone holds the array's length.
fn point(row: &'static Row, args: &mut [u8], slices: &mut [Slice<'_>]) -> Result<(), Errno> {
    let arrays: Vec<Array> = row
        .parts_of(args)
        .filter_map(|part| if let Part::Array(array) = part { Some(*array) } else { None })
        .collect();
    if slices.len() > arrays.len() {
        return Err(Errno::EINVAL);
    }
    let mut slices = slices.iter_mut();
    for array in arrays {
        let (address, bytes) = match slices.next() {
            Some(slice) => (slice.expose(array.writable)?, slice.len()),
            None => (0, 0),
        };
        put(args, array.pointer, &address.to_ne_bytes())?;
        match array.length {
            Length::Count32 { count, element } => {
                let elements = u32::try_from(bytes / element).unwrap_or(u32::MAX);
                put(args, count, &elements.to_ne_bytes())?;
            }
            Length::Count64 { count, element } => {
                put(args, count, &((bytes / element) as u64).to_ne_bytes())?
            }
            Length::Bits { count, .. } => {
                let bits = u32::try_from((bytes / 4).saturating_mul(32)).unwrap_or(!31);
                put(args, count, &bits.to_ne_bytes())?;
            }
            Length::Product { .. } | Length::Fixed(_) => return Err(Errno::EINVAL),
        }
    }
    Ok(())
}

fn put(args: &mut [u8], at: usize, value: &[u8]) -> Result<(), Errno> {
    let field = args.get_mut(at..).and_then(|rest| rest.get_mut(..value.len()));
    field.ok_or(Errno::EINVAL)?.copy_from_slice(value);
    Ok(())
}

/// Issues a command once.
///
/// # Safety
/// Every array of the argument (`Command::ROW`) must name memory of its length that the driver may read, and write if
/// the array is writable, until the call returns.
unsafe fn issue<C: Command>(file: &dyn File, args: &mut C::Args) -> Result<u32, Errno> {
    let at = std::ptr::from_mut(args).cast();
    // SAFETY: `at` points to a `C::Args`, whose size the command encodes (contract of `Command`), and which is borrowed
    // mutably for the call. The driver accesses other memory only through the arrays of the row (the same contract),
    // for which the caller vouches.
    unsafe { file.ioctl(C::ROW.command, at) }
}

/// Issues a command once; its arrays are `slices`, in the order of the row, and no memory where there are fewer.
pub(super) fn once_with<C: Command>(
    file: &dyn File,
    args: &mut C::Args,
    slices: &mut [Slice<'_>],
) -> Result<u32, Errno> {
    point(C::ROW, bytemuck::bytes_of_mut(args), slices)?;
    // SAFETY: `point` wrote the pointer and the length of every array: those of a slice that is borrowed for the call,
    // mutably if the array is writable, or no memory at all.
    unsafe { issue::<C>(file, args) }
}

/// Repeats a call until it is not interrupted; the render node's driver may also ask for a repetition (EAGAIN), as
/// libdrm knows.
fn until_done<C: Command>(
    file: &dyn File,
    mut call: impl FnMut() -> Result<u32, Errno>,
) -> Result<u32, IoctlError> {
    let again = sys::ioc_type(C::ROW.command) == sys::DRM_IOCTL_BASE;
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) if again => {}
            outcome => return outcome.map_err(|errno| failed::<C>(file, errno)),
        }
    }
}

/// The error of a command on `file`.
pub(super) fn failed<C: Command>(file: &dyn File, errno: Errno) -> IoctlError {
    IoctlError { ioctl: C::ROW.name, path: file.path().to_owned(), errno }
}

/// An open file that takes ioctls.
pub(super) trait Issue {
    /// The file.
    fn target(&self) -> &dyn File;

    /// Issues a command whose argument names no memory of this process, until it is not interrupted.
    fn call_plain<C: PlainArgs>(&self, args: &mut C::Args) -> Result<u32, IoctlError> {
        // SAFETY: the row has no arrays: the driver accesses no memory but the argument (contract of `PlainArgs`).
        until_done::<C>(self.target(), || unsafe { issue::<C>(self.target(), args) })
    }

    /// Issues a command until it is not interrupted; its arrays are `slices`, as for [`once_with`].
    fn call_with<C: Command>(&self, args: &mut C::Args, slices: &mut [Slice<'_>]) -> Result<u32, IoctlError> {
        until_done::<C>(self.target(), || once_with::<C>(self.target(), args, slices))
    }

    /// Issues a command until it is not interrupted, with pointers that the caller wrote.
    ///
    /// # Safety
    /// Each pointer of the argument must name memory of the length that the driver expects there, which the driver may
    /// read, and write if it does, until the call returns.
    unsafe fn call_raw<C: Command>(&self, args: &mut C::Args) -> Result<u32, IoctlError> {
        // SAFETY: the caller vouches for all pointers of the argument, and so for those in the row.
        until_done::<C>(self.target(), || unsafe { issue::<C>(self.target(), args) })
    }

    /// Issues SVM, whose attributes lie behind its argument; the driver answers in their places.
    ///
    /// # Errors
    /// [`IoctlError`]; EINVAL for more attributes than a command can count.
    fn call_svm(
        &self,
        args: sys::kfd_ioctl_svm_args,
        attributes: &mut [sys::kfd_ioctl_svm_attribute],
    ) -> Result<(), IoctlError> {
        type Command = sys::kfd_ioctl::Svm;
        let invalid = || failed::<Command>(self.target(), Errno::EINVAL);
        let bytes = size_of_val(&args) + size_of_val(attributes);
        if bytes > MAX_ARGUMENT {
            return Err(invalid());
        }
        let count = u32::try_from(attributes.len()).map_err(|_| invalid())?;
        let args = sys::kfd_ioctl_svm_args { nattr: count, ..args };
        // Words, so that it is aligned as the structures are.
        let mut argument = vec![0u64; bytes.div_ceil(8)];
        let (head, tail) =
            bytemuck::cast_slice_mut::<u64, u8>(&mut argument).split_at_mut(size_of_val(&args));
        head.copy_from_slice(bytemuck::bytes_of(&args));
        tail.copy_from_slice(bytemuck::cast_slice(attributes));
        let command = sys::svm_command(attributes.len());
        until_done::<Command>(self.target(), || {
            // SAFETY: the argument has the bytes that the command encodes, and is borrowed mutably for the call; the row has no
            // arrays, so that the driver accesses no other memory for it.
            unsafe { self.target().ioctl(command, argument.as_mut_ptr().cast()) }
        })?;
        let (_, tail) = bytemuck::cast_slice::<u64, u8>(&argument).split_at(size_of_val(&args));
        bytemuck::cast_slice_mut::<_, u8>(attributes).copy_from_slice(tail);
        Ok(())
    }

    /// Issues a command that makes one descriptor in its argument, which closes on exec if the argument's flags say so.
    ///
    /// # Errors
    /// [`IoctlError`]; EBADF if the driver answers without a descriptor.
    fn call_for_descriptor<C: Command>(&self, args: &mut C::Args) -> Result<OwnedFd, IoctlError> {
        let (outcome, made) = self.call_for_descriptors::<C>(args, &mut [], |_| false);
        outcome?;
        let made = made.into_iter().next().flatten();
        made.ok_or_else(|| failed::<C>(self.target(), Errno::EBADF))
    }

    /// Issues a command that makes descriptors; `slices` as for [`once_with`]. Answers the outcome and the descriptor
    /// of each field that the row names, all close-on-exec unless the argument's flags say otherwise. `stays` says
    /// whether the driver leaves descriptors open when the command fails with this errno.
    fn call_for_descriptors<C: Command>(
        &self,
        args: &mut C::Args,
        slices: &mut [Slice<'_>],
        stays: impl FnOnce(Errno) -> bool,
    ) -> (Result<(), IoctlError>, Vec<Option<OwnedFd>>) {
        for (field, _) in new_descriptors(C::ROW, bytemuck::bytes_of_mut(args), slices) {
            *field = NO_FD.to_ne_bytes();
        }
        let outcome = self.call_with::<C>(args, slices).map(drop);
        if outcome.as_ref().is_err_and(|error| !stays(error.errno)) {
            return (outcome, Vec::new());
        }
        let fields = new_descriptors(C::ROW, bytemuck::bytes_of_mut(args), slices);
        let take = |(field, close_on_exec): (&mut [u8; 4], CloseOnExec)| {
            let number = i32::from_ne_bytes(std::mem::replace(field, NO_FD.to_ne_bytes()));
            if number < 0 {
                return None;
            }
            // SAFETY: the field held no number before the call, so that the driver put this one there. It made the
            // descriptor for this process (contract of `Command`), where nothing else owns it, and has not closed it.
            let fd = unsafe { OwnedFd::from_raw_fd(number) };
            if close_on_exec == CloseOnExec::Never {
                // A failure leaves the descriptor inheritable, which is no reason to lose it.
                let _ = crate::linux::set_close_on_exec(&fd, true);
            }
            Some(fd)
        };
        (outcome, fields.into_iter().map(take).collect())
    }
}

/// The fields in which the driver returns descriptors.
fn new_descriptors<'a>(
    row: &'static Row,
    args: &'a mut [u8],
    slices: &'a mut [Slice<'_>],
) -> Vec<(&'a mut [u8; 4], CloseOnExec)> {
    let made = row.parts_of(args).find_map(|part| match part {
        Part::NewDescriptor(place, close_on_exec) => Some((*place, *close_on_exec)),
        _ => None,
    });
    let Some((place, close_on_exec)) = made else { return Vec::new() };
    let (bytes, stride, at) = match place {
        Place::Argument(at) => {
            let whole = args.len();
            (args, whole, usize::from(at))
        }
        Place::Element { array, element, at } => {
            let mut arrays = row.parts_of(args).filter(|part| matches!(part, Part::Array(_)));
            let index = arrays.position(|part| *part == Part::Array(array));
            match index.and_then(|index| slices.get_mut(index)) {
                Some(Slice::Write(bytes)) => (&mut **bytes, element, at),
                _ => return Vec::new(),
            }
        }
    };
    let fields = bytes.chunks_exact_mut(stride.max(1));
    fields.filter_map(|chunk| Some((chunk.get_mut(at..)?.first_chunk_mut()?, close_on_exec))).collect()
}

impl Issue for Kfd {
    fn target(&self) -> &dyn File {
        self.file().as_ref()
    }
}

impl Issue for Render {
    fn target(&self) -> &dyn File {
        self.file().as_ref()
    }
}
