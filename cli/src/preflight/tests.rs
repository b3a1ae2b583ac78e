// SPDX-License-Identifier: MIT OR Apache-2.0
//! The judges on processes made up of captured /proc texts, and on this very process with real descriptors.

use std::fs::{self, File as StdFile};
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::makedev;

use std::collections::HashSet;

use super::dump_flags::DumpFlags;
use super::finding::{Finding, Severity};
use super::privileges::{CAP_CHECKPOINT_RESTORE, CAP_NET_ADMIN, CAP_SETPCAP, CAP_SYS_PTRACE, Own};
use stasis_criu_foreign::Mapping;

use super::tree::{Descriptor, File, Process, Runtime, Stat};
use super::*;

const CHARACTER: u32 = 0o020_666;
const REGULAR: u32 = 0o100_644;

fn root_user() -> Own {
    Own { uid: 0, capabilities: u64::MAX, ptrace_scope: 0, criu: Ok(PathBuf::from("/usr/sbin/criu")) }
}

/// A session leader without anything.
fn process(pid: i32) -> Process {
    Process {
        pid,
        name: "made-up".into(),
        status: "Name:\tmade-up\nUid:\t1000\t1000\t1000\t1000\nTracerPid:\t0\nSeccomp:\t0\nNoNewPrivs:\t0\n"
            .into(),
        stat: Stat { state: 'S', session: pid, terminal: 0 },
        fds: Ok(Vec::new()),
        maps: Ok(Vec::new()),
        mounts: vec!["21".into()],
        runtime: None,
    }
}

/// This process, with only these of its descriptors.
fn this_with(kept: &[i32]) -> Process {
    let mut own = Process::read(std::process::id().cast_signed()).unwrap();
    if let Ok(fds) = &mut own.fds {
        fds.retain(|fd| kept.contains(&fd.number));
    }
    own.maps = Ok(Vec::new());
    own
}

fn judged(
    tree: &[Process],
    flags: &DumpFlags,
    own: &Own,
    judge: impl Fn(&Scene<'_>, &mut Vec<Finding>),
) -> Vec<Finding> {
    let mut found = Vec::new();
    judge(&Scene { tree, flags, own, session: &HashSet::new(), executors: None }, &mut found);
    found
}

fn refused_of(found: &[Finding]) -> Vec<&Finding> {
    found.iter().filter(|finding| finding.severity == Severity::Refused).collect()
}

fn fd(number: i32, link: &str, mode: u32, info: &str) -> Descriptor {
    let file = File { id: (1, number.cast_unsigned().into()), mode, links: 1, ..File::default() };
    Descriptor { number, link: link.into(), file, info: info.into() }
}

fn descriptors_of(fds: Vec<Descriptor>, flags: &DumpFlags) -> Vec<Finding> {
    let mut made_up = process(i32::MAX);
    made_up.fds = Ok(fds);
    judged(&[made_up], flags, &root_user(), descriptors::judge)
}

#[test]
fn known_anonymous_inodes_pass_and_others_are_named() {
    let names = ["[eventfd]", "[eventpoll]", "inotify", "[signalfd]", "[timerfd]", "[fanotify]"];
    let fds =
        names.iter().zip(3..).map(|(name, n)| fd(n, &format!("anon_inode:{name}"), 0o600, "")).collect();
    assert_eq!(descriptors_of(fds, &DumpFlags::default()), []);
    for name in
        ["[io_uring]", "[userfaultfd]", "[perf_event]", "seccomp notify", "bpf-prog", "[landlock-ruleset]"]
    {
        let found =
            descriptors_of(vec![fd(9, &format!("anon_inode:{name}"), 0o600, "")], &DumpFlags::default());
        assert_eq!(found.len(), 1, "{name}");
        assert_eq!((found[0].severity, found[0].place.as_str()), (Severity::Refused, "fd 9"));
        assert!(found[0].what.ends_with(name) && !found[0].remedy.is_empty());
    }
}

#[test]
fn userfaultfd_passes_where_a_runtime_hears_of_stores_by_it() {
    let watch = |api: &str| fd(5, "anon_inode:[userfaultfd]", 0o600, &format!("pending:\t0\nAPI:\t{api}\n"));
    let (tells, waits) = ("aa:8000b000:80000000000001ff", "aa:80003000:1ff");
    let judged_in = |is_ours: bool, api: &str| {
        let mut made_up = process(i32::MAX);
        made_up.runtime = is_ours.then(|| Runtime::Silent("for the test".into()));
        made_up.fds = Ok(vec![watch(api)]);
        judged(&[made_up], &DumpFlags::default(), &root_user(), descriptors::judge).len()
    };
    assert_eq!((judged_in(true, tells), judged_in(true, waits), judged_in(false, tells)), (0, 1, 1));
}

#[test]
fn pidfds_pass_inside_the_tree_and_of_the_dead() {
    let pidfd =
        |pid: &str| fd(5, "anon_inode:[pidfd]", 0o600, &format!("flags:\t02\nPid:\t{pid}\nNSpid:\t{pid}\n"));
    assert_eq!(descriptors_of(vec![pidfd("2147483647")], &DumpFlags::default()), []);
    assert_eq!(descriptors_of(vec![pidfd("-1")], &DumpFlags::default()), []);
    let found = descriptors_of(vec![pidfd("1")], &DumpFlags::default());
    assert!(found[0].why.contains("process 1"), "{found:?}");
}

#[test]
fn devices_are_known_by_number() {
    let device = |link: &str, major, minor| {
        let mut found = fd(4, link, CHARACTER, "flags:\t02\nmnt_id:\t21\n");
        found.file.device = makedev(major, minor);
        descriptors_of(vec![found], &DumpFlags::default())
    };
    for minor in [3, 5, 7, 8, 9] {
        assert_eq!(device("/dev/some-memory", 1, minor), []);
    }
    assert_eq!(device("/dev/ptmx", 5, 2), []);
    assert!(device("/dev/fuse", 10, 229)[0].why.contains("10:229"));
    assert!(device("/dev/kfd", 234, 0)[0].why.contains("no Stasis runtime"));
    assert!(device("/dev/dri/renderD128", 226, 128)[0].why.contains("no Stasis runtime"));
    let disk = descriptors_of(vec![fd(4, "/dev/vda", 0o060_660, "")], &DumpFlags::default());
    assert!(disk[0].why.contains("block device"));
}

#[test]
fn device_files_of_our_own_processes_pass() {
    let mut ours = process(i32::MAX);
    let mut kfd = fd(4, "/dev/kfd", CHARACTER, "");
    kfd.file.device = makedev(234, 0);
    ours.fds = Ok(vec![kfd, fd(5, "/memfd:softgpu:file (deleted)", REGULAR, "")]);
    ours.maps = Ok(vec![Mapping {
        name: "/memfd:softgpu:vram-public:1 (deleted)".into(),
        shared: true,
        ..Mapping::default()
    }]);
    ours.runtime = Some(Runtime::Silent("for the test".into()));
    let tree = [ours];
    for judge in [descriptors::judge, mappings::judge, shared::judge] {
        assert_eq!(judged(&tree, &DumpFlags::default(), &root_user(), judge), []);
    }
}

#[test]
fn terminals_need_their_master_or_a_shell_job() {
    let slave = || {
        let mut slave = fd(0, "/dev/pts/7", CHARACTER, "flags:\t02\n");
        slave.file.device = makedev(136, 7);
        slave
    };
    let master = fd(3, "/dev/ptmx", CHARACTER, "flags:\t02\ntty-index:\t7\n");
    assert_eq!(refused_of(&descriptors_of(vec![slave()], &DumpFlags::default())).len(), 1);
    let with_job = DumpFlags { shell_job: true, ..DumpFlags::default() };
    assert_eq!(descriptors_of(vec![slave()], &with_job), []);
    let mut other = fd(4, "/dev/ptmx", CHARACTER, "tty-index:\t8\n");
    (other.file.device, other.file.id) = (makedev(5, 2), (1, 99));
    assert_eq!(refused_of(&descriptors_of(vec![slave(), other], &DumpFlags::default())).len(), 1);
    let mut master = master;
    master.file.device = makedev(5, 2);
    assert_eq!(descriptors_of(vec![slave(), master], &DumpFlags::default()), []);
}

#[test]
fn locks_are_read_from_fdinfo() {
    let info = "pos:\t0\nflags:\t0100002\nmnt_id:\t21\nlock:\t1: POSIX  ADVISORY  WRITE 12 fe:00:17 0 EOF\n";
    let held = || vec![fd(6, "/srv/db", REGULAR, info)];
    let found = descriptors_of(held(), &DumpFlags::default());
    assert!(found[0].why.contains("POSIX") && found[0].remedy.contains("--file-locks"), "{found:?}");
    assert_eq!(descriptors_of(held(), &DumpFlags { file_locks: true, ..DumpFlags::default() }), []);
}

#[test]
fn lock_of_this_process_is_found() {
    let file = Flock::lock(tempfile::tempfile().unwrap(), FlockArg::LockExclusive).unwrap();
    let tree = [this_with(&[file.as_raw_fd()])];
    let found = judged(&tree, &DumpFlags::default(), &root_user(), descriptors::judge);
    assert!(found.iter().any(|f| f.why.contains("FLOCK") && f.place == format!("fd {}", file.as_raw_fd())));
}

#[test]
fn mount_nobody_sees_is_refused() {
    let mut device = fd(6, "/dev/null", CHARACTER, "flags:\t02\nmnt_id:\t99\n");
    device.file.device = makedev(1, 3);
    for elsewhere in [fd(6, "/queue", REGULAR, "flags:\t02\nmnt_id:\t99\n"), device] {
        assert!(descriptors_of(vec![elsewhere], &DumpFlags::default())[0].why.contains("mount"));
    }
    let here = [fd(6, "/file", REGULAR, "mnt_id:\t21\n"), fd(7, "/memfd:x", REGULAR, "mnt_id:\t99\n")];
    assert_eq!(descriptors_of(here.to_vec(), &DumpFlags::default()), []);
}

#[test]
fn logs_without_append_are_warned_of() {
    let log = |number, link, flags: &str| {
        descriptors_of(vec![fd(number, link, REGULAR, &format!("flags:\t{flags}\n"))], &DumpFlags::default())
    };
    assert_eq!(log(1, "/out", "0100001")[0].severity, Severity::Warning);
    assert_eq!(log(7, "/var/log/x.log", "0100002")[0].severity, Severity::Warning);
    assert_eq!(log(1, "/out", "0102001"), []);
    assert_eq!(log(7, "/var/log/x.log", "0100000"), []);
    assert_eq!(log(7, "/data", "0100002"), []);
}

#[test]
fn deleted_files_of_this_process_count_what_they_take() {
    let directory = tempfile::tempdir().unwrap();
    let deleted = |name: &str, bytes: usize, length: u64| {
        let path = directory.path().join(name);
        let mut file = StdFile::create_new(&path).unwrap();
        file.write_all(&vec![1; bytes]).unwrap();
        file.set_len(length).unwrap();
        file.sync_all().unwrap();
        fs::remove_file(path).unwrap();
        file
    };
    let (large, sparse, small) =
        (deleted("large", 2 << 20, 2 << 20), deleted("sparse", 1, 1 << 30), deleted("small", 9, 9));
    let tree = [this_with(&[large.as_raw_fd(), sparse.as_raw_fd(), small.as_raw_fd()])];
    let found = judged(&tree, &DumpFlags::default(), &root_user(), descriptors::judge);
    let refused = refused_of(&found);
    assert_eq!(refused.len(), 1, "{found:?}");
    assert_eq!(refused[0].place, format!("fd {}", large.as_raw_fd()));
    let flags = DumpFlags { ghost_limit: 4 << 20, ..DumpFlags::default() };
    assert!(refused_of(&judged(&tree, &flags, &root_user(), descriptors::judge)).is_empty());
}

#[test]
fn pipe_is_warned_of_unless_both_ends_are_inside() {
    let (reader, writer) = io::pipe().unwrap();
    let pipe =
        |kept: &[i32]| judged(&[this_with(kept)], &DumpFlags::default(), &root_user(), descriptors::judge);
    assert_eq!(pipe(&[reader.as_raw_fd()])[0].severity, Severity::Warning);
    assert_eq!(pipe(&[writer.as_raw_fd()])[0].severity, Severity::Warning);
    assert_eq!(pipe(&[reader.as_raw_fd(), writer.as_raw_fd()]), []);
}

#[test]
fn mappings_are_judged_by_name() {
    let one = |line: &str| {
        let mut made_up = process(i32::MAX);
        made_up.maps = Ok(vec![Mapping::parse(line).unwrap()]);
        judged(&[made_up], &DumpFlags::default(), &root_user(), mappings::judge)
    };
    let refused = |name: &str| refused_of(&one(&format!("1000-2000 rw-s 00000000 00:01 7   {name}"))).len();
    for name in
        ["/SYSV00000000 (deleted)", "/secretmem (deleted)", "anon_inode:[io_uring]", "/dmabuf:x", "/dev/full"]
    {
        assert_eq!(refused(name), 1, "{name}");
    }
    for name in [
        "",
        "[heap]",
        "/usr/lib/x.so",
        "/dev/zero (deleted)",
        "/memfd:x (deleted)",
        "/anon_hugepage (deleted)",
    ] {
        assert_eq!(refused(name), 0, "{name}");
    }
    let named = one("1000-2000 rw-s 00000000 00:1a 7   /dev/shm/psm_1");
    assert!(named[0].severity == Severity::Warning && named[0].why.contains("not in the images"));
    assert_eq!(one("1000-2000 r--p 00000000 00:1a 7   /dev/shm/psm_1"), []);
}

#[test]
fn unix_peer_is_inside_or_outside() {
    let (a, b) = UnixStream::pair().unwrap();
    let judge =
        |kept: &[i32], flags: &DumpFlags| judged(&[this_with(kept)], flags, &root_user(), sockets::judge);
    let half = judge(&[a.as_raw_fd()], &DumpFlags { ext_unix_sk: true, ..DumpFlags::default() });
    assert!(half[0].severity == Severity::Refused && half[0].what.contains("stream"), "{half:?}");
    assert_eq!(judge(&[a.as_raw_fd(), b.as_raw_fd()], &DumpFlags::default()), []);
    let (c, _d) = UnixDatagram::pair().unwrap();
    assert!(judge(&[c.as_raw_fd()], &DumpFlags::default())[0].remedy.contains("--ext-unix-sk"));
    assert_eq!(judge(&[c.as_raw_fd()], &DumpFlags { ext_unix_sk: true, ..DumpFlags::default() }), []);
}

#[test]
fn tcp_needs_a_flag_and_a_capability() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let judge =
        |fd: i32, flags: &DumpFlags, own: &Own| judged(&[this_with(&[fd])], flags, own, sockets::judge);
    let found = judge(client.as_raw_fd(), &DumpFlags::default(), &root_user());
    assert!(found[0].what.contains(&listener.local_addr().unwrap().to_string()), "{found:?}");
    let keep = DumpFlags { tcp_established: true, ..DumpFlags::default() };
    assert_eq!(judge(client.as_raw_fd(), &keep, &root_user()), []);
    assert_eq!(
        judge(client.as_raw_fd(), &DumpFlags { tcp_close: true, ..DumpFlags::default() }, &root_user()),
        []
    );
    let ordinary = DumpFlags { unprivileged: true, ..keep };
    let own = Own { uid: 1000, capabilities: 1 << CAP_CHECKPOINT_RESTORE, ..root_user() };
    assert!(judge(client.as_raw_fd(), &ordinary, &own)[0].why.contains("CAP_NET_ADMIN"));
    let own = Own { capabilities: own.capabilities | 1 << CAP_NET_ADMIN, ..own };
    assert_eq!(judge(client.as_raw_fd(), &ordinary, &own), []);
    assert!(
        judge(listener.as_raw_fd(), &DumpFlags::default(), &root_user())[0]
            .why
            .contains("1 connections wait")
    );
    let accepted = listener.accept().unwrap();
    assert_eq!(judge(listener.as_raw_fd(), &DumpFlags::default(), &root_user()), []);
    drop(accepted);
}

#[test]
fn memory_shared_with_another_process_is_found_and_its_own_is_not() {
    let memory = memfd_create("shared-or-not", MFdFlags::empty()).unwrap();
    let tree = [this_with(&[memory.as_raw_fd()])];
    // A descriptor without CLOEXEC: the child has it, too; other tests of this process may start one as well.
    let mut child = Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().unwrap();
    let found = judged(&tree, &DumpFlags::default(), &root_user(), shared::judge);
    child.kill().unwrap();
    child.wait().unwrap();
    let refused = refused_of(&found);
    assert_eq!(refused.len(), 1, "{found:?}");
    assert!(
        refused[0].what.starts_with("/memfd:shared-or-not") && refused[0].why.contains("sleep"),
        "{found:?}"
    );
    let own = memfd_create("own", MFdFlags::MFD_CLOEXEC).unwrap();
    let tree = [this_with(&[own.as_raw_fd()])];
    assert!(refused_of(&judged(&tree, &DumpFlags::default(), &root_user(), shared::judge)).is_empty());
}

fn process_findings(change: impl Fn(&mut Process), flags: &DumpFlags, own: &Own) -> Vec<Finding> {
    let mut made_up = process(i32::MAX);
    change(&mut made_up);
    judged(&[made_up], flags, own, process::judge)
}

#[test]
fn sessions_tracers_and_zombies() {
    let plain = DumpFlags::default();
    let judge = |change: fn(&mut Process)| process_findings(change, &plain, &root_user());
    assert_eq!(judge(|_| {}), []);
    assert!(judge(|p| p.stat.session = 1)[0].remedy.contains("setsid"));
    let job = DumpFlags { shell_job: true, ..DumpFlags::default() };
    assert_eq!(process_findings(|p| p.stat.session = 1, &job, &root_user()), []);
    let outside = process_findings(|p| p.stat.session = 0, &job, &root_user());
    assert!(outside.len() == 1 && outside[0].severity == Severity::Refused, "{outside:?}");
    let terminal = judge(|p| (p.stat.session, p.stat.terminal) = (1, 34816));
    assert!(terminal.len() == 1 && terminal[0].severity == Severity::Note, "{terminal:?}");
    let traced = judge(|p| p.status = "TracerPid:\t77\n".into());
    assert!(traced[0].severity == Severity::Refused && traced[0].what.contains("77"));
    assert_eq!(judge(|p| p.stat.state = 'Z')[0].severity, Severity::Refused);
    let mut dead = process(i32::MAX - 1);
    dead.stat.state = 'Z';
    let found = judged(&[process(i32::MAX), dead], &plain, &root_user(), process::judge);
    assert!(found.len() == 1 && found[0].severity == Severity::Note, "{found:?}");
    let hidden = judge(|p| p.fds = Err(io::ErrorKind::PermissionDenied));
    assert!(hidden[0].what.contains("user 1000"), "{hidden:?}");
}

#[test]
fn unprivileged_needs_more() {
    let ordinary = DumpFlags { unprivileged: true, ..DumpFlags::default() };
    let own = Own { uid: 1000, capabilities: 1 << CAP_CHECKPOINT_RESTORE, ..root_user() };
    let full = format!("CapBnd:\t{:016x}\n", privileges::full_bounding_set());
    let filter = format!("Seccomp:\t2\n{full}");
    let found = process_findings(|p| p.status.clone_from(&filter), &ordinary, &own);
    assert!(found.len() == 1 && found[0].why.contains("CAP_SYS_ADMIN"), "{found:?}");
    assert_eq!(process_findings(|p| p.status.clone_from(&filter), &DumpFlags::default(), &root_user()), []);
    let limited = |p: &mut Process| p.status = "CapBnd:\t0000000000000001\n".into();
    let found = process_findings(limited, &ordinary, &own);
    assert!(found[0].severity == Severity::Warning && found[0].why.contains("CAP_SETPCAP"), "{found:?}");
    let more = Own { capabilities: own.capabilities | 1 << CAP_SETPCAP, ..own.clone() };
    assert_eq!(process_findings(limited, &ordinary, &more), []);
    let careful = |p: &mut Process| p.status = "CapBnd:\t0000000000000001\nNoNewPrivs:\t1\n".into();
    assert_eq!(process_findings(careful, &ordinary, &own), []);
    let mut watching = process(i32::MAX);
    watching.fds = Ok(vec![fd(3, "anon_inode:inotify", 0o600, "")]);
    let found = judged(&[watching], &ordinary, &own, descriptors::judge);
    assert!(found[0].why.contains("CAP_DAC_READ_SEARCH"), "{found:?}");
}

#[test]
fn own_rights_are_judged() {
    let judge = |flags: &DumpFlags, own: &Own| judged(&[process(i32::MAX)], flags, own, privileges::judge);
    let ordinary = DumpFlags { unprivileged: true, ..DumpFlags::default() };
    assert_eq!(judge(&DumpFlags::default(), &root_user()), []);
    let user = Own { uid: 1000, capabilities: 0, ..root_user() };
    assert!(judge(&DumpFlags::default(), &user)[0].remedy.contains("--unprivileged"));
    assert!(judge(&ordinary, &user)[0].what.contains("CAP_CHECKPOINT_RESTORE"));
    let able = Own { capabilities: 1 << CAP_CHECKPOINT_RESTORE, ..user };
    assert_eq!(judge(&ordinary, &able), []);
    assert!(judge(&ordinary, &Own { uid: 1001, ..able.clone() })[0].why.contains("1001"));
    let scoped = Own { ptrace_scope: 1, ..able };
    assert!(judge(&ordinary, &scoped)[0].remedy.contains("CAP_SYS_PTRACE"));
    let tracer = Own { capabilities: scoped.capabilities | 1 << CAP_SYS_PTRACE, ..scoped };
    assert_eq!(judge(&ordinary, &tracer), []);
    assert_eq!(judge(&ordinary, &Own { ptrace_scope: 3, ..tracer }).len(), 1);
    let missing = Own { criu: Err("No CRIU".into()), ..root_user() };
    assert_eq!(judge(&DumpFlags::default(), &missing)[0].place, "criu");
}

#[test]
fn refusal_names_every_thing_and_the_way_past_it() {
    let finding = |place| Finding::new(Severity::Refused, 7, place, "a thing").why("it is").remedy("do");
    let error = Refused { pids: vec![7], findings: vec![finding("fd 3"), finding("fd 4")] }.to_string();
    assert_eq!(
        error,
        "Process 7 was not touched; 2 things stand in the way (--no-preflight tries nevertheless): \
         fd 3 of process 7 is a thing: it is (do); fd 4 of process 7 is a thing: it is (do)"
    );
}
