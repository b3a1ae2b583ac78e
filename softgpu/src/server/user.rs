// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of the client's memory, and the descriptors, that came with one message.
//!
//! INVARIANT: what is not in the message cannot be read or written; reads see earlier writes of the same call.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use kfd::transport::wire::{FdPlace, PageRun, Segment, SharedSegment};
use nix::errno::Errno;
use nix::sys::uio::{pread, pwrite};

use crate::driver::{Caller, FdTable, UserMemory, UserPages, sealed_bytes};

/// The memory that a request's segments hold.
#[derive(Debug)]
pub(super) struct Segments {
    segments: RefCell<Vec<Segment>>,
    shared: Vec<Shared>,
    written: RefCell<Written>,
    caller: Caller,
}

/// What a call wrote.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Contents, of memory that travels in messages.
    pub(super) segments: Vec<Segment>,
    /// Address and bytes, of memory that travels beside them.
    pub(super) shared: Vec<(u64, u64)>,
}

/// Memory that came beside the message.
#[derive(Debug)]
struct Shared {
    segment: SharedSegment,
    fd: OwnedFd,
}

impl Shared {
    /// Where `length` bytes at `address` lie in the file, if all of them do.
    fn place(&self, address: u64, length: usize) -> Option<u64> {
        let begin = address.checked_sub(self.segment.address)?;
        // CAST: usize to u64 on a 64-bit target.
        let end = begin.checked_add(length as u64)?;
        (end <= self.segment.bytes).then_some(begin)
    }
}

impl Segments {
    /// Takes over a request's segments. `shared` come with their files; one that could shrink, or is too short, is left
    /// out.
    pub(super) fn new(segments: Vec<Segment>, shared: Vec<(SharedSegment, OwnedFd)>, caller: Caller) -> Self {
        let whole = |(segment, fd): (SharedSegment, OwnedFd)| {
            let bytes = sealed_bytes(fd.as_fd())?;
            (segment.bytes <= bytes).then_some(Shared { segment, fd })
        };
        let shared = shared.into_iter().filter_map(whole).collect();
        Self { segments: RefCell::new(segments), shared, written: RefCell::default(), caller }
    }

    /// What was written, for the reply.
    pub(super) fn into_written(self) -> Written {
        self.written.into_inner()
    }

    fn record(&self, address: u64, bytes: &[u8]) {
        let mut written = self.written.borrow_mut();
        if let Some(last) = written.segments.last_mut()
            && last.address.checked_add(last.bytes.len() as u64) == Some(address)
        {
            last.bytes.extend_from_slice(bytes);
            return;
        }
        written.segments.push(Segment { address, bytes: bytes.to_vec(), writable: true });
    }

    fn record_shared(&self, address: u64, bytes: u64) {
        let mut written = self.written.borrow_mut();
        if let Some((start, length)) = written.shared.last_mut()
            && start.checked_add(*length) == Some(address)
        {
            *length += bytes;
            return;
        }
        written.shared.push((address, bytes));
    }

    fn write_shared(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let mut writable = self.shared.iter().filter(|shared| shared.segment.writable);
        let found = writable.find_map(|shared| Some((shared, shared.place(address, bytes.len())?)));
        let (shared, mut offset) = found.ok_or(Errno::EFAULT)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let at = i64::try_from(offset).map_err(|_| Errno::EFAULT)?;
            let done = pwrite(&shared.fd, rest, at).map_err(|_| Errno::EFAULT)?;
            rest = rest.get(done..).filter(|_| done > 0).ok_or(Errno::EFAULT)?;
            offset += done as u64;
        }
        self.record_shared(address, bytes.len() as u64);
        Ok(())
    }

    fn read_shared(&self, address: u64, mut buf: &mut [u8]) -> Result<(), Errno> {
        let found = self.shared.iter().find_map(|shared| Some((shared, shared.place(address, buf.len())?)));
        let (shared, mut offset) = found.ok_or(Errno::EFAULT)?;
        while !buf.is_empty() {
            let at = i64::try_from(offset).map_err(|_| Errno::EFAULT)?;
            let done = pread(&shared.fd, buf, at).map_err(|_| Errno::EFAULT)?;
            buf = buf.get_mut(done..).filter(|_| done > 0).ok_or(Errno::EFAULT)?;
            offset += done as u64;
        }
        Ok(())
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
        let bytes =
            segments.iter().find_map(|segment| segment.bytes.get(place(segment, address, buf.len())?));
        match bytes {
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                Ok(())
            }
            None => self.read_shared(address, buf),
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut segments = self.segments.borrow_mut();
        let target = segments.iter_mut().filter(|segment| segment.writable).find_map(|segment| {
            let place = place(segment, address, bytes.len())?;
            segment.bytes.get_mut(place)
        });
        let Some(target) = target else { return self.write_shared(address, bytes) };
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
    incoming: RefCell<HashMap<FdPlace, OwnedFd>>,
    pages: RefCell<Vec<UserPages>>,
    outgoing: RefCell<Vec<(FdPlace, OwnedFd)>>,
}

impl Descriptors {
    /// Sorts a request's descriptors: those of `places`, the files of `shared`, and those of `pages`. The files are answered.
    ///
    /// # Errors
    /// `EBADMSG` when there are fewer descriptors than that, or more.
    pub(super) fn sort(
        places: &[FdPlace],
        shared: Vec<SharedSegment>,
        pages: Vec<PageRun>,
        fds: Vec<OwnedFd>,
    ) -> Result<(Self, Vec<(SharedSegment, OwnedFd)>), Errno> {
        let new = pages.iter().filter(|run| matches!(run, PageRun::New { .. })).count();
        if fds.len() != places.len().saturating_add(shared.len()).saturating_add(new) {
            return Err(Errno::EBADMSG);
        }
        let mut fds = fds.into_iter();
        let incoming = places.iter().copied().zip(fds.by_ref()).collect();
        let shared = shared.into_iter().zip(fds.by_ref()).collect();
        let of_run = |run| match run {
            PageRun::New { bytes, writable } => Some(UserPages::New { fd: fds.next()?, bytes, writable }),
            PageRun::Unchanged { bytes } => Some(UserPages::Unchanged { bytes }),
            PageRun::Of { handle, offset, bytes } => Some(UserPages::Of { handle, offset, bytes }),
        };
        let pages = pages.into_iter().map_while(of_run).collect();
        Ok((
            Self {
                incoming: RefCell::new(incoming),
                pages: RefCell::new(pages),
                outgoing: RefCell::default(),
            },
            shared,
        ))
    }

    /// What goes back: places and descriptors, in the same order.
    pub(super) fn into_outgoing(self) -> (Vec<FdPlace>, Vec<OwnedFd>) {
        self.outgoing.into_inner().into_iter().unzip()
    }
}

impl FdTable for Descriptors {
    fn take_in(&self, place: FdPlace) -> Option<OwnedFd> {
        self.incoming.borrow_mut().remove(&place)
    }

    fn pages(&self) -> Vec<UserPages> {
        self.pages.take()
    }

    fn give_out(&self, place: FdPlace, fd: OwnedFd) {
        self.outgoing.borrow_mut().push((place, fd));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use nix::fcntl::SealFlag;

    use super::*;

    fn memfd(bytes: u64) -> OwnedFd {
        kfd::linux::memfd("test", bytes, SealFlag::F_SEAL_SHRINK).unwrap()
    }

    fn shared(address: u64, bytes: u64) -> (SharedSegment, OwnedFd) {
        (SharedSegment { address, bytes, writable: true }, memfd(16))
    }

    fn segments() -> Segments {
        let segment = |address, writable| Segment { address, bytes: vec![7; 16], writable };
        Segments::new(vec![segment(100, false), segment(200, true)], vec![shared(300, 16)], Caller::default())
    }

    #[test]
    fn read_outside_any_segment_is_efault() {
        let memory = segments();
        let mut byte = [0; 2];
        assert_eq!(memory.read(114, &mut byte), Ok(()));
        for address in [0, 99, 115, 116, u64::MAX] {
            assert_eq!(memory.read(address, &mut byte), Err(Errno::EFAULT), "{address}");
        }
    }

    #[test]
    fn write_to_read_only_segment_is_efault() {
        let memory = segments();
        assert_eq!(memory.write(100, &[1]), Err(Errno::EFAULT));
        assert_eq!(memory.into_written().segments, []);
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
        let written = memory.into_written().segments;
        assert_eq!(written.iter().map(|segment| segment.address).collect::<Vec<_>>(), [200, 210]);
        assert_eq!(written[0].bytes, [1, 2, 3]);
    }

    #[test]
    fn shared_memory_is_read_written_and_recorded_by_range() {
        let memory = segments();
        memory.write(302, &[1, 2]).unwrap();
        memory.write(304, &[3]).unwrap();
        memory.write(310, &[4]).unwrap();
        let mut bytes = [9; 4];
        memory.read(301, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 1, 2, 3]);
        assert_eq!(memory.read(313, &mut bytes), Err(Errno::EFAULT));
        assert_eq!(memory.write(316, &[1]), Err(Errno::EFAULT));
        assert_eq!(memory.into_written().shared, [(302, 3), (310, 1)]);
    }

    #[test]
    fn shared_memory_that_could_end_too_early_is_left_out() {
        let null = OwnedFd::from(File::open("/dev/null").unwrap());
        let all = SharedSegment { address: 100, bytes: 8, writable: true };
        for hostile in [shared(100, 17), (all, null)] {
            let memory = Segments::new(vec![], vec![hostile], Caller::default());
            assert_eq!(memory.read(100, &mut [0]), Err(Errno::EFAULT));
            assert_eq!(memory.write(100, &[0]), Err(Errno::EFAULT));
        }
    }

    #[test]
    fn descriptors_must_match_their_places() {
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        let segment = SharedSegment { address: 1, bytes: 1, writable: false };
        assert!(Descriptors::sort(&[FdPlace::Field(4)], vec![], vec![], vec![]).is_err());
        assert!(Descriptors::sort(&[], vec![], vec![], vec![null()]).is_err());
        assert!(Descriptors::sort(&[], vec![segment], vec![], vec![]).is_err());
        let places = [FdPlace::Field(4), FdPlace::Memory(4)];
        let pages = vec![
            PageRun::Of { handle: 7, offset: 0, bytes: 4096 },
            PageRun::New { bytes: 4096, writable: true },
        ];
        assert!(
            Descriptors::sort(&places, vec![segment], pages.clone(), vec![null(), null(), null()]).is_err()
        );
        let fds = vec![null(), null(), null(), null()];
        let (table, shared) = Descriptors::sort(&places, vec![segment], pages, fds).unwrap();
        assert_eq!(shared.len(), 1);
        assert!(table.take_in(FdPlace::Field(8)).is_none());
        for place in places {
            assert!(table.take_in(place).is_some());
            assert!(table.take_in(place).is_none());
        }
        assert!(matches!(*table.pages(), [UserPages::Of { handle: 7, .. }, UserPages::New { .. }]));
        assert!(table.pages().is_empty());
    }
}
