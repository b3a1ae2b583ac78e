// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's memory and descriptors, as far as one message brought them.
//!
//! Invariant: what is not in the message cannot be read or written; reads see earlier writes of the same call.

use std::cell::RefCell;
use std::os::fd::OwnedFd;

use kfd::transport::wire::Segment;
use rustix::io::Errno;

use crate::driver::{Caller, FdTable, UserMemory};

/// The memory that a request's segments hold.
#[derive(Debug)]
pub(super) struct Segments {
    segments: RefCell<Vec<Segment>>,
    written: RefCell<Vec<Segment>>,
    caller: Caller,
}

impl Segments {
    /// Takes over a request's segments.
    pub(super) fn new(segments: Vec<Segment>, caller: Caller) -> Self {
        Self { segments: RefCell::new(segments), written: RefCell::default(), caller }
    }

    /// What was written, for the reply.
    pub(super) fn into_written(self) -> Vec<Segment> {
        self.written.into_inner()
    }

    fn record(&self, address: u64, bytes: &[u8]) {
        let mut written = self.written.borrow_mut();
        if let Some(last) = written.last_mut()
            && last.address.checked_add(last.bytes.len() as u64) == Some(address)
        {
            last.bytes.extend_from_slice(bytes);
            return;
        }
        written.push(Segment { address, bytes: bytes.to_vec(), writable: true });
    }
}

/// Where `length` bytes at `address` lie in a segment, if all of them do.
fn place(segment: &Segment, address: u64, length: usize) -> Option<std::ops::Range<usize>> {
    let begin = usize::try_from(address.checked_sub(segment.address)?).ok()?;
    let end = begin.checked_add(length)?;
    (end <= segment.bytes.len()).then_some(begin..end)
}

impl UserMemory for Segments {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), Errno> {
        if buf.is_empty() {
            return Ok(());
        }
        let segments = self.segments.borrow();
        let bytes = segments
            .iter()
            .find_map(|segment| segment.bytes.get(place(segment, address, buf.len())?))
            .ok_or(Errno::FAULT)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut segments = self.segments.borrow_mut();
        let target = segments
            .iter_mut()
            .filter(|segment| segment.writable)
            .find_map(|segment| {
                let place = place(segment, address, bytes.len())?;
                segment.bytes.get_mut(place)
            })
            .ok_or(Errno::FAULT)?;
        target.copy_from_slice(bytes);
        self.record(address, bytes);
        Ok(())
    }

    fn caller(&self) -> Caller {
        self.caller
    }
}

/// The descriptors that came with an ioctl, and those that go back.
#[derive(Debug)]
pub(super) struct Descriptors {
    incoming: RefCell<Vec<(u16, OwnedFd)>>,
    userptr: RefCell<Option<OwnedFd>>,
    outgoing: RefCell<Vec<(u16, OwnedFd)>>,
}

impl Descriptors {
    /// Pairs the fields of a request with its descriptors; one more is the memory of a USERPTR allocation.
    ///
    /// # Errors
    /// `EBADMSG` when there are fewer descriptors than fields, or more than one beside them.
    pub(super) fn new(fields: &[u16], fds: Vec<OwnedFd>) -> Result<Self, Errno> {
        if fds.len() < fields.len() || fds.len() > fields.len() + 1 {
            return Err(Errno::BADMSG);
        }
        let mut fds = fds.into_iter();
        let incoming = fields.iter().copied().zip(fds.by_ref()).collect();
        let userptr = RefCell::new(fds.next());
        Ok(Self { incoming: RefCell::new(incoming), userptr, outgoing: RefCell::default() })
    }

    /// What goes back: fields and descriptors, in the same order.
    pub(super) fn into_outgoing(self) -> (Vec<u16>, Vec<OwnedFd>) {
        self.outgoing.into_inner().into_iter().unzip()
    }
}

impl FdTable for Descriptors {
    fn take_in(&self, field_offset: u16) -> Option<OwnedFd> {
        let mut incoming = self.incoming.borrow_mut();
        let at = incoming.iter().position(|(field, _)| *field == field_offset)?;
        Some(incoming.swap_remove(at).1)
    }

    fn userptr(&self) -> Option<OwnedFd> {
        self.userptr.borrow_mut().take()
    }

    fn give_out(&self, field_offset: u16, fd: OwnedFd) {
        self.outgoing.borrow_mut().push((field_offset, fd));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn segments() -> Segments {
        let segment = |address, writable| Segment { address, bytes: vec![7; 16], writable };
        Segments::new(vec![segment(100, false), segment(200, true)], Caller::default())
    }

    #[test]
    fn read_outside_any_segment_is_efault() {
        let memory = segments();
        let mut byte = [0; 2];
        assert_eq!(memory.read(114, &mut byte), Ok(()));
        for address in [0, 99, 115, 116, u64::MAX] {
            assert_eq!(memory.read(address, &mut byte), Err(Errno::FAULT), "{address}");
        }
    }

    #[test]
    fn write_to_read_only_segment_is_efault() {
        let memory = segments();
        assert_eq!(memory.write(100, &[1]), Err(Errno::FAULT));
        assert_eq!(memory.into_written(), []);
    }

    #[test]
    fn write_is_read_back_and_adjacent_writes_are_one_segment() {
        let memory = segments();
        memory.write(200, &[1, 2]).unwrap();
        memory.write(202, &[3]).unwrap();
        memory.write(210, &[4]).unwrap();
        let mut bytes = [0; 3];
        memory.read(200, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3]);
        let written = memory.into_written();
        assert_eq!(written.iter().map(|segment| segment.address).collect::<Vec<_>>(), [200, 210]);
        assert_eq!(written[0].bytes, [1, 2, 3]);
    }

    #[test]
    fn descriptors_must_match_their_fields() {
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        assert!(Descriptors::new(&[4], vec![]).is_err());
        assert!(Descriptors::new(&[], vec![null(), null()]).is_err());
        let table = Descriptors::new(&[4], vec![null(), null()]).unwrap();
        assert!(table.take_in(8).is_none());
        assert!(table.take_in(4).is_some());
        assert!(table.take_in(4).is_none());
        assert!(table.userptr().is_some());
        assert!(table.userptr().is_none());
    }
}
