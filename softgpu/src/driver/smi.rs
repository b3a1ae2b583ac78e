// SPDX-License-Identifier: MIT OR Apache-2.0
//! SMI_EVENTS: streams in which a client reads, a line each, what happens to a GPU (`kfd_smi_events.c`).
//!
//! A stream is a pair of sockets, of which the client has one. It writes the mask of the events that it wants, and reads;
//! without an event a read answers EAGAIN, as of KFD's file. Of KFD's events those exist that this device has: memory faults
//! and resets. A stream gets what concerns its own process: others have drivers of their own. ROCr opens one for its SVM
//! profiler only (`HSA_SVM_PROFILE`).
//!
//! INVARIANT: nothing here waits: a line for which a stream has no room is dropped, as by KFD.

use std::os::fd::{AsRawFd, OwnedFd};

use kfd::sys::*;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use parking_lot::Mutex;

use super::process::KfdProcess;
use super::{Call, FdPlace};

const STREAM_FD: u16 = KfdIoctl::SmiEvents.row().descriptor_field();

/// The streams of a process.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<Vec<Stream>>);

#[derive(Debug)]
struct Stream {
    gpu: usize,
    /// Bit `event - 1` of each event that is wanted.
    wanted: u64,
    socket: OwnedFd,
}

/// What a line tells.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notice {
    /// A memory fault, by which process.
    Fault { pid: u32 },
    /// A reset begins, which one since the process began.
    ResetBegins { number: u32 },
    /// It is over.
    ResetEnds { number: u32 },
}

impl Notice {
    fn event(self) -> u32 {
        match self {
            Self::Fault { .. } => KFD_SMI_EVENT_VMFAULT,
            Self::ResetBegins { .. } => KFD_SMI_EVENT_GPU_PRE_RESET,
            Self::ResetEnds { .. } => KFD_SMI_EVENT_GPU_POST_RESET,
        }
    }

    fn line(self) -> String {
        let event = self.event();
        match self {
            // The name of the process would follow, which the driver does not know.
            Self::Fault { pid } => format!("{event:x} {pid:x}:\n"),
            // The scheduler could not take a queue off the hardware.
            Self::ResetBegins { number } => format!("{event:x} {number:x} HWS hang\n"),
            Self::ResetEnds { number } => format!("{event:x} {number:x} \n"),
        }
    }
}

impl Stream {
    /// Takes the masks that the client wrote meanwhile; the last one counts. Whether the client still has its end.
    fn take_masks(&mut self) -> bool {
        loop {
            let mut mask = [0; 8];
            match recv(self.socket.as_raw_fd(), &mut mask, MsgFlags::MSG_DONTWAIT) {
                Ok(8) => self.wanted = u64::from_le_bytes(mask),
                // A part of a mask is none.
                Ok(1..) => {}
                Err(Errno::EAGAIN | Errno::EINTR) => return true,
                Ok(0) | Err(_) => return false,
            }
        }
    }
}

impl Streams {
    fn open(&self, gpu: usize) -> Result<OwnedFd, Errno> {
        let mut streams = self.0.lock();
        streams.retain_mut(Stream::take_masks);
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (socket, of_client) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
        streams.push(Stream { gpu, wanted: 0, socket });
        Ok(of_client)
    }

    /// The GPU of a stream whose other end the client still has.
    pub(super) fn open_one(&self) -> Option<usize> {
        let mut streams = self.0.lock();
        streams.retain_mut(Stream::take_masks);
        streams.first().map(|stream| stream.gpu)
    }

    /// Writes the line into each stream of the GPU that wants it.
    pub(super) fn tell(&self, gpu: usize, notice: Notice) {
        let wants = |stream: &Stream| stream.gpu == gpu && stream.wanted >> (notice.event() - 1) & 1 == 1;
        let mut streams = self.0.lock();
        streams.retain_mut(Stream::take_masks);
        for stream in streams.iter().filter(|stream| wants(stream)) {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            // Who reads nothing loses lines.
            let _ = send(stream.socket.as_raw_fd(), notice.line().as_bytes(), flags);
        }
    }
}

impl KfdProcess {
    /// SMI_EVENTS. While the process is paused the answer is `ERESTART`: a stream cannot be saved.
    pub(super) fn smi_events(
        &self,
        args: &mut kfd_ioctl_smi_events_args,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let gpu = self.gpu_by_id(args.gpuid)?;
        // Held until the stream is there, so that a pause sees it.
        let state = self.state.lock();
        if state.paused {
            return Err(Errno::ERESTART);
        }
        call.fds.give_out(FdPlace::Field(STREAM_FD), self.streams.open(gpu)?);
        Ok(())
    }
}
