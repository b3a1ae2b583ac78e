// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain `criu dump` of whole process trees with the plugin: several processes with agents, other processes between
//! them, control groups, other users and other namespaces.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stasis_tests::criu;
use stasis_tests::gpu::skip_on_kernel_driver;
use stasis_tests::plain_criu::{Plugins, dump, restore, run};
use stasis_tests::tree::Tree;
use stasis_tests::worker::wait_until;

const NOTHING: [&str; 0] = [];

#[test]
fn tree_with_two_workers_and_bystanders_is_dumped_moved_and_restored() {
    let plugins = Plugins::ours();
    let mut tree = Tree::start(&["--threads 2", ""], &[]);
    for generation in ["first", "second"] {
        dump(tree.root(), &tree.path(generation), &plugins, &NOTHING).succeeded();
        tree.bury();
        assert_eq!(tree.contents(generation).len(), 2);
        // The directory of the rendezvous, which a restore would use if they shared memory.
        assert!(tree.path(generation).join("stasis-session").is_dir());
        let moved = tree.path(&format!("{generation}-moved"));
        fs::rename(tree.path(generation), &moved).unwrap();
        restore(&moved, &plugins).succeeded();
        tree.wait_rounds(2);
    }
    tree.goes_on();
}

#[test]
fn tree_runs_on_whole_when_one_of_it_cannot_be_frozen() {
    // The second worker refuses when the first has let go of its device, or is about to.
    let tree = Tree::start(&["", "--io-uring", "--threads 2"], &[]);
    let plugins = Plugins::ours();
    let error = dump(tree.root(), &tree.path("images"), &plugins, &NOTHING).refused();
    assert!(error.contains("io_uring"), "{error}");
    assert_eq!(tree.contents("images"), [] as [PathBuf; 0]);
    tree.goes_on();
}

#[test]
fn tree_left_running_runs_on_whole() {
    let tree = Tree::start(&["", ""], &[]);
    dump(tree.root(), &tree.path("images"), &Plugins::ours(), &["--leave-running"]).succeeded();
    tree.goes_on();
}

#[test]
fn process_of_another_user_gets_a_directory_of_its_own() {
    if skip_on_kernel_driver("its files are not for everybody") {
        return;
    }
    const NOBODY: u32 = 65_534;
    let user = NOBODY.to_string();
    let wrapper = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"];
    let mut tree = Tree::start(&[""], &wrapper);
    let plugins = Plugins::ours();
    let outcome = dump(tree.root(), &tree.path("images"), &plugins, &NOTHING);
    assert!(outcome.log.contains("1 processes have closed their devices"), "{}", outcome.log);
    let metadata = fs::metadata(&tree.contents("images")[0]).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (NOBODY, 0o700));
    if outcome.log.contains("Can't get rlimit") {
        // A root without CAP_SYS_RESOURCE may not read the limits of others: CRIU gives up, and the tree runs on.
        return tree.goes_on();
    }
    outcome.succeeded();
    tree.bury();
    restore(&tree.path("images"), &plugins).succeeded();
    tree.goes_on();
}

/// A control group that can be frozen; removed in the end.
struct Group(PathBuf);

impl Group {
    /// `None`, with the reason printed, where there are none.
    fn make() -> Option<Self> {
        let path = Path::new("/sys/fs/cgroup/freezer").join(format!("stasis-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                println!("ignored: no freezer control group can be made here ({}: {error})", path.display());
                None
            }
        }
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// The commands with which the wrapper of a tree enters the group: the device is in it too, as in a container.
    fn enter(&self) -> String {
        format!("echo $$ > '{}/cgroup.procs' && exec \"$@\"", self.path())
    }

    fn set(&self, state: &str) {
        fs::write(self.0.join("freezer.state"), state).unwrap();
        wait_until("the freezer", || {
            fs::read_to_string(self.0.join("freezer.state")).unwrap().trim() == state
        });
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        wait_until("the end of the control group's processes", || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn control_group_is_frozen_with_the_tree_in_it() {
    let Some(group) = Group::make() else { return };
    let plugins = Plugins::ours();
    let enter = group.enter();
    let mut tree = Tree::start(&["", ""], &["sh", "-c", &enter, "sh"]);
    let arguments = ["--freeze-cgroup", group.path(), "--manage-cgroups=ignore"];
    let leave = [&arguments[..], &["--leave-running"]].concat();
    dump(tree.root(), &tree.path("left"), &plugins, &leave).succeeded();
    tree.wait_rounds(3);
    // A group that was frozen before is thawed for the plugin, and frozen again afterwards.
    group.set("FROZEN");
    dump(tree.root(), &tree.path("frozen"), &plugins, &leave).succeeded();
    group.set("THAWED");
    tree.wait_rounds(3);
    dump(tree.root(), &tree.path("images"), &plugins, &arguments).succeeded();
    tree.bury();
    restore(&tree.path("images"), &plugins).succeeded();
    tree.goes_on();
}

#[test]
fn agent_in_another_network_namespace_is_reached() {
    if skip_on_kernel_driver("only the software device is reached by a socket") {
        return;
    }
    let tree = Tree::start(&[""], &["unshare", "--net"]);
    let namespace = fs::read_link(format!("/proc/{}/ns/net", tree.root())).unwrap();
    assert_ne!(namespace, fs::read_link("/proc/self/ns/net").unwrap());
    // CRIU needs more tools to dump a network namespace; here the namespace belongs to another process.
    let number = namespace.to_str().unwrap().trim_start_matches("net:");
    let arguments =
        ["--leave-running", "--network-lock", "skip", "--external", &format!("net{number}:outer")];
    let outcome = dump(tree.root(), &tree.path("images"), &Plugins::ours(), &arguments);
    outcome.succeeded();
    assert!(outcome.log.contains("1 processes have closed their devices"), "{}", outcome.log);
    tree.goes_on();
}

#[test]
fn copy_runs_beside_its_original_in_namespaces_of_its_own() {
    if Command::new("ip").arg("-V").output().is_err() {
        println!("ignored: there is no `ip` (iproute2) here");
        return;
    }
    let plugins = Plugins::ours();
    let tree = Tree::start(&[""], &[]);
    dump(tree.root(), &tree.path("images"), &plugins, &["--leave-running"]).succeeded();
    // CRIU does not end before the process has taken its contents back.
    tree.wait_rounds(2);
    fs::rename(tree.path("images"), tree.path("moved")).unwrap();
    let log = tree.path("moved/restore.log");
    let mut command = Command::new("unshare");
    // Abstract sockets are a network namespace's: beside its original the copy needs its own, and CRIU its loopback.
    command.args([
        "--pid",
        "--net",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        "ip link set lo up && exec \"$@\"",
        "sh",
    ]);
    command.arg(criu()).args(["restore", "-v4", "-o", "restore.log", "-D"]).arg(tree.path("moved"));
    command.arg("-L").arg(plugins.path()).stdin(Stdio::null());
    // The copy ends with the original: both look for the same file.
    let copy = std::thread::spawn(move || run(&mut command, &log));
    let log = tree.path("log-0");
    let known = fs::read_to_string(&log).unwrap().len();
    let counts_back = || {
        let text = fs::read_to_string(&log).unwrap();
        let rounds = text.lines().filter_map(|line| line.strip_prefix("round ")?.parse::<u64>().ok());
        let rounds: Vec<_> = rounds.collect();
        text.len() > known && rounds.windows(2).any(|pair| pair[1] < pair[0])
    };
    wait_until("the copy's rounds", || counts_back() || copy.is_finished());
    fs::write(tree.path("stop"), "").unwrap();
    copy.join().unwrap().succeeded();
    wait_until("both to be done", || tree.log(0).lines().filter(|line| *line == "done").count() == 2);
}
