// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asks CRIU to dump the calling process: one request, and an answer that arrives twice, like a fork's.
//!
//! The server is `criu swrk FD` with one end of a SEQPACKET socket pair as FD; the messages are those of CRIU's
//! `images/rpc.proto`. It must not be in the dumped tree, so it is started as an orphan. It dumps whoever made the
//! socket pair. In the restored copy CRIU plants the answer in a new socket pair, and the same `recv` returns there.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kfd::linux::{retry, set_receive_timeout};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use prost::Message;
use thiserror::Error;

use super::layout::MANIFEST_FILE;
use super::options::CriuOptions;
use super::program::Program;

/// `criu_req_type` DUMP.
const DUMP: i32 = 1;
/// Longest answer, bytes; CRIU's are some dozens.
const MAX_ANSWER: usize = 4096;
/// What CRIU logs: warnings and errors, as with `-v2`.
const LOG_LEVEL: i32 = 2;
/// TIMEOUT: beyond CRIU's own for the dump, for it to start and to answer. After half of it CRIU is killed, which is an
/// answer too.
const GRACE: Duration = Duration::from_secs(30);

#[derive(Clone, PartialEq, Message)]
struct Opts {
    #[prost(int32, required, tag = "1")]
    images_dir_fd: i32,
    #[prost(bool, optional, tag = "3")]
    leave_running: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    tcp_established: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    shell_job: Option<bool>,
    #[prost(bool, optional, tag = "8")]
    file_locks: Option<bool>,
    #[prost(int32, optional, tag = "9")]
    log_level: Option<i32>,
    #[prost(string, optional, tag = "10")]
    log_file: Option<String>,
    #[prost(uint32, optional, tag = "45")]
    timeout: Option<u32>,
    #[prost(string, optional, tag = "51")]
    config_file: Option<String>,
    #[prost(bool, optional, tag = "52")]
    tcp_close: Option<bool>,
    #[prost(int32, optional, tag = "64")]
    network_lock: Option<i32>,
    #[prost(bool, optional, tag = "67")]
    unprivileged: Option<bool>,
    #[prost(string, optional, tag = "68")]
    images_dir: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Req {
    #[prost(int32, required, tag = "1")]
    kind: i32,
    #[prost(message, optional, tag = "2")]
    opts: Option<Opts>,
}

#[derive(Clone, PartialEq, Message)]
struct DumpResp {
    #[prost(bool, optional, tag = "1")]
    restored: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct Resp {
    #[prost(int32, required, tag = "1")]
    kind: i32,
    #[prost(bool, required, tag = "2")]
    success: bool,
    #[prost(message, optional, tag = "3")]
    dump: Option<DumpResp>,
    #[prost(int32, optional, tag = "7")]
    errno: Option<i32>,
    #[prost(string, optional, tag = "8")]
    message: Option<String>,
}

/// In which life the dump returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// In the process that asked; it was left running.
    Dumped,
    /// In a restored copy.
    Restored,
}

/// CRIU was asked and did not dump; the process runs on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The server could not be started.
    #[error("Cannot {act} for a CRIU to dump this process")]
    Start {
        /// What was tried.
        act: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The server ended, or said nothing in time.
    #[error("CRIU ended, or did not answer, before it had dumped this process; its log is {log}")]
    NoAnswer {
        /// Its log.
        log: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The answer is none.
    #[error("CRIU's answer is not one of its protocol")]
    Answer(#[from] prost::DecodeError),
    /// CRIU refused.
    #[error("criu dump failed: {reason} (errno {errno}); the whole log is {log}")]
    Failed {
        /// The last error in its log.
        reason: String,
        /// `cr_errno`, 0 if it gave none.
        errno: i32,
        /// Its log.
        log: String,
    },
}

impl RpcError {
    /// The same with the reason of whoever failed before CRIU did, if it has said one.
    pub(crate) fn because_of(self, said: Option<String>) -> Self {
        match (self, said) {
            (Self::Failed { errno, log, .. }, Some(reason)) => Self::Failed { reason, errno, log },
            (error, _) => error,
        }
    }
}

fn start(act: &'static str) -> impl FnOnce(io::Error) -> RpcError {
    move |source| RpcError::Start { act, source }
}

/// Starts the server (`$4`, with the other arguments) as an orphan: the shell ends at once. In a session of its own,
/// for a process of the dumped one's session would keep its pid from being free. The standard output is the socket: a
/// descriptor to inherit without a moment in which any other child of ours could.
const LAUNCHER: &str = r#"exec 3>&1 >/dev/null
setsid /bin/sh -c "$4" "$0" "$1" "$2" "$3" &"#;

/// Starts CRIU (`$0`) and stays beside it: CRIU waits without a limit for a task that has ended while it was seized,
/// and a process that it has frozen cannot look at a clock. So it is killed, with its group, when it is at work after
/// `$1` seconds, or when process `$2` has ended and there is no `$3`, after which CRIU ends it.
///
/// Nobody but CRIU may hold the socket then: its end is what tells that CRIU has ended.
const SERVER: &str = r#"setsid "$0" swrk 3 </dev/null 3>&3 2>/dev/null &
criu=$!
exec 3>&-
cd /
left=$1
[ -r "/proc/$2/stat" ] && sees=yes || sees=no
while kill -0 "$criu"; do
    state=gone
    read -r stat <"/proc/$2/stat" && state=${stat##*) }
    case $state in
    gone | [ZX]*) [ $sees = no ] || [ -e "$3" ] || left=0 ;;
    esac
    [ "$left" -gt 0 ] || kill -KILL "-$criu" || kill -KILL "$criu"
    left=$((left - 1))
    sleep 1
done"#;

/// Starts `criu swrk` outside this process's tree, for a dump that may take `limit`, and after which there is the file
/// `complete`; returns our end of its socket.
fn serve(program: &Program, limit: Duration, complete: &Path) -> Result<OwnedFd, RpcError> {
    let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let (ours, theirs) = pair.map_err(|error| start("make a socket pair")(error.into()))?;
    let status = Command::new("/bin/sh")
        .args(["-c", LAUNCHER])
        .arg(program.path())
        .arg(limit.as_secs().max(1).to_string())
        .arg(std::process::id().to_string())
        .arg(complete)
        .arg(SERVER)
        .stdin(Stdio::null())
        .stdout(theirs)
        .stderr(Stdio::null())
        .status();
    match status.map_err(start("start /bin/sh"))? {
        status if status.success() => Ok(ours),
        status => Err(start("start criu")(io::Error::other(format!("the shell ended with {status}")))),
    }
}

/// Has CRIU dump this process into `images`, which has a configuration file `config` for it. Returns in the process that
/// asked (unless it is not left running: then it has ended) and in every restored copy.
///
/// # Errors
/// [`RpcError`]; the process runs on.
pub fn dump_self(
    program: &Program,
    images: &Path,
    config: &Path,
    options: &CriuOptions,
    leave_running: bool,
    timeout: Duration,
) -> Result<Answer, RpcError> {
    let log = images.join("dump.log").display().to_string();
    let request = Req {
        kind: DUMP,
        opts: Some(Opts {
            // By its name: a descriptor of ours would be dumped too, and a copy could not open it were it moved.
            images_dir_fd: -1,
            images_dir: Some(images.display().to_string()),
            leave_running: Some(leave_running),
            tcp_established: Some(options.tcp_established),
            shell_job: Some(options.shell_job),
            file_locks: Some(options.file_locks),
            log_level: Some(LOG_LEVEL),
            log_file: Some("dump.log".into()),
            timeout: u32::try_from(timeout.as_secs().max(1)).ok(),
            config_file: Some(config.display().to_string()),
            tcp_close: Some(options.tcp_close),
            network_lock: options.lock().map(|lock| lock as i32),
            unprivileged: Some(options.unprivileged),
        }),
    };
    let complete = images.with_file_name(MANIFEST_FILE);
    let socket = serve(program, timeout + GRACE / 2, &complete)?;
    let lost = |error: Errno| RpcError::NoAnswer { log: log.clone(), source: error.into() };
    set_receive_timeout(&socket, timeout + GRACE).map_err(lost)?;
    send(socket.as_raw_fd(), &request.encode_to_vec(), MsgFlags::MSG_NOSIGNAL).map_err(lost)?;
    let mut answer = [0u8; MAX_ANSWER];
    // A restored copy comes out of this call too, interrupted or answered.
    let length = retry(|| recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())).map_err(lost)?;
    if length == 0 {
        return Err(RpcError::NoAnswer { log, source: io::ErrorKind::UnexpectedEof.into() });
    }
    judge(&answer[..length.min(MAX_ANSWER)], log)
}

fn judge(answer: &[u8], log: String) -> Result<Answer, RpcError> {
    let answer = Resp::decode(answer)?;
    if answer.success {
        let restored = answer.dump.and_then(|dump| dump.restored).unwrap_or(false);
        return Ok(if restored { Answer::Restored } else { Answer::Dumped });
    }
    let said = std::fs::read_to_string(&log).ok().map(|text| super::last_error(&text));
    let reason = said.or(answer.message).unwrap_or_else(|| "it did not say why".into());
    Err(RpcError::Failed { reason, errno: answer.errno.unwrap_or(0), log })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart() {
        // kind 1, success, dump { restored }: as CRIU encodes them.
        assert_eq!(judge(&[8, 1, 16, 1, 26, 2, 8, 1], String::new()).unwrap(), Answer::Restored);
        assert_eq!(judge(&[8, 1, 16, 1, 26, 0], String::new()).unwrap(), Answer::Dumped);
        let refused = judge(&[8, 1, 16, 0, 56, 3, 66, 2, b'n', b'o'], "/nowhere/dump.log".into());
        assert!(
            matches!(&refused, Err(RpcError::Failed { reason, errno: 3, .. }) if reason == "no"),
            "{refused:?}"
        );
        assert!(matches!(judge(&[255, 255], String::new()), Err(RpcError::Answer(_))));
    }

    #[test]
    fn request_has_the_fields_of_the_protocol() {
        let opts =
            Opts { images_dir_fd: 5, leave_running: Some(true), unprivileged: Some(true), ..Opts::default() };
        let bytes = Req { kind: DUMP, opts: Some(opts) }.encode_to_vec();
        // 67 << 3 = 536 = 0x98 0x04 as a varint.
        assert_eq!(bytes, [8, 1, 18, 7, 8, 5, 24, 1, 0x98, 4, 1]);
    }

    /// A CRIU that says its pid where it would answer, and works for ever; `$0` of the server's script.
    fn endless(directory: &Path) -> std::path::PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let program = directory.join("criu");
        let script = "#!/bin/sh\ntrap '' INT TERM HUP\necho $$ >&3\nwhile :; do sleep 1; done\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    /// Serves as for process `pid`; returns when the server's end of the pipe is closed, in whatever time.
    fn serve_endless(directory: &Path, seconds: &str, pid: u32, complete: &Path, begun: impl FnOnce()) {
        use std::io::{BufRead, BufReader, Read};
        let (reader, writer) = io::pipe().unwrap();
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", LAUNCHER]).arg(endless(directory)).args([seconds, &pid.to_string()]);
        shell.arg(complete).arg(SERVER);
        let shell = shell.stdin(Stdio::null()).stderr(Stdio::null()).stdout(writer);
        assert!(shell.status().unwrap().success());
        // Its own copy of the end that is written to.
        shell.stdout(Stdio::null());
        let mut reader = BufReader::new(reader);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.trim().parse::<i32>().is_ok(), "{line:?}");
        begun();
        reader.read_to_string(&mut line).unwrap();
    }

    #[test]
    fn server_that_does_not_end_is_killed_at_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        serve_endless(directory.path(), "2", std::process::id(), Path::new("/nowhere"), || {});
    }

    #[test]
    fn server_ends_with_a_process_that_ends_before_it_is_dumped_though_nobody_reaps_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut target = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = target.id();
        serve_endless(directory.path(), "1000", pid, Path::new("/nowhere"), || target.kill().unwrap());
        // One that is dumped may end; and one that cannot be seen has not.
        for (pid, complete) in [(pid, "/proc"), (u32::MAX, "/nowhere")] {
            let started = std::time::Instant::now();
            serve_endless(directory.path(), "4", pid, Path::new(complete), || {});
            assert!(started.elapsed() >= Duration::from_secs(3), "{pid} {complete}");
        }
        target.wait().unwrap();
    }
}
