// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells the client that started softgpud why there is no device. The client sees neither the exit code nor stderr.
//!
//! INVARIANT: only the first client and those that wait at the same time are told; then the socket's name is free again,
//! so that a corrected topology file can be tried at once.

use std::error::Error;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use kfd::linux::{self, set_receive_timeout};
use kfd::transport::wire::{self, Reply, Request};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::stat::{FileStat, SFlag, fstat, major, minor};

use super::broker::{PATIENCE, listen};
use super::error::ServeError;
use super::sys;

/// How long a client that has connected may take to greet.
const GREETING: Duration = Duration::from_secs(1);

/// Answers the next client, if it asks for `devices`, with `reason`. Returns at once when another instance has the
/// socket's name.
///
/// # Errors
/// [`ServeError`] for an impossible name, or a lack of resources.
pub(super) fn tell(socket: &str, devices: &str, reason: &ServeError) -> Result<(), ServeError> {
    let message = with_causes(reason);
    tracing::error!(target: "server", socket, "{message}");
    // A client that starts softgpud gives it no terminal; a user who runs it by hand reads its exit message.
    if !is_null(std::io::stderr().as_fd()) {
        return Ok(());
    }
    let Some(listener) = listen(socket)? else { return Ok(()) };
    // The client that started softgpud waits for the end of its output before it connects.
    sys::null_stdio(true).map_err(ServeError::system("dup2"))?;
    let deadline = Instant::now() + PATIENCE;
    let mut told = false;
    loop {
        match linux::accept(&listener) {
            Ok(connection) => {
                answer(&connection, devices, &message);
                told = true;
            }
            Err(Errno::EINTR | Errno::ECONNABORTED) => {}
            Err(Errno::EAGAIN) if told || Instant::now() >= deadline => return Ok(()),
            Err(Errno::EAGAIN) => wait(&listener, deadline)?,
            Err(errno) => return Err(ServeError::System { what: "accept", errno }),
        }
    }
}

/// Whether a descriptor is `/dev/null`, character device 1:3.
fn is_null(fd: BorrowedFd<'_>) -> bool {
    let is_device = |stat: &FileStat| stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFCHR.bits();
    fstat(fd).is_ok_and(|stat| is_device(&stat) && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3))
}

/// Waits until a client connects or the deadline passes.
fn wait(listener: &OwnedFd, deadline: Instant) -> Result<(), ServeError> {
    let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    match linux::poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], Some(left)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(ServeError::System { what: "poll", errno }),
    }
}

/// Takes the greeting first: a connection that is closed with unread data also loses what was sent. A client
/// that asks for other devices, by a socket name that is shared, finds this process gone and tries again.
fn answer(connection: &OwnedFd, devices: &str, message: &str) {
    let reply = Reply::Error { errno: Errno::EINVAL as i32, message: message.to_owned() };
    // A missing or malformed greeting is answered, too.
    if let Err(errno) = set_receive_timeout(connection, GREETING) {
        tracing::debug!(target: "server", %errno, "waiting for a greeting without limit");
    }
    match wire::receive::<Request>(connection.as_fd(), &mut wire::ReceiveBuffer::new()) {
        Ok(greeting) if !asks_for(&greeting.message, devices) => return,
        Ok(_) => {}
        Err(error) => tracing::debug!(target: "server", %error, "no greeting"),
    }
    if let Err(error) = wire::send(connection.as_fd(), &reply, &[] as &[BorrowedFd<'_>]) {
        tracing::debug!(target: "server", %error, "refusal not delivered");
    }
}

fn asks_for(request: &Request, wanted: &str) -> bool {
    matches!(request, Request::Hello { devices, .. } if devices == wanted)
}

/// An error with all its sources.
pub(super) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(error.to_string().trim_end());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_told_from_other_devices_and_files() {
        let directory = tempfile::tempdir().unwrap();
        let plain = directory.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        for (path, null) in
            [("/dev/null".as_ref(), true), ("/dev/zero".as_ref(), false), (plain.as_path(), false)]
        {
            assert_eq!(is_null(std::fs::File::open(path).unwrap().as_fd()), null, "{}", path.display());
        }
    }

    #[test]
    fn causes_are_told_in_one_line() {
        let source = std::io::Error::other("b\n");
        let error = ServeError::Topology { path: "a".to_owned(), source };
        assert_eq!(with_causes(&error), "Cannot read the topology file a: b");
    }
}
