// SPDX-License-Identifier: MIT OR Apache-2.0
//! Containers of Debian's engines, podman and runc, with the CRIU of `cargo xtask setup` and the plugin of this
//! repository.
//!
//! INVARIANT: an engine of a test has its own storage, state and settings in one temporary directory. Nothing is
//! downloaded: an image has programs that cargo built, and the libraries that they are linked with. The processes that
//! an engine started end with its handle.

mod bundle;
mod containerd;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use nix::sys::resource::{Resource, getrlimit};
use tempfile::TempDir;

pub use self::bundle::Bundle;
pub use self::containerd::Containerd;
use crate::plain_criu::Plugins;
use crate::tree::descendants;
use crate::worker::{is_alive, wait_until};
use crate::{criu, program};

/// Open files, and processes, that a container may have.
const LIMIT: u64 = 4096;
/// The directories of podman's storage, of its mounts' state, and of its own state.
const DIRECTORIES: [&str; 3] = ["storage", "run", "state"];
/// The pause before an engine is asked again: each question starts a process.
const AGAIN: Duration = Duration::from_millis(100);

/// Runs a command that has to succeed.
///
/// # Panics
/// With the command's output, when it fails.
pub fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("a program of the setup step");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Puts programs, softgpud and all libraries they need into a directory that becomes a container's root.
///
/// # Panics
/// When one of them is not there.
pub fn fill_root(root: &Path, programs: &[&str]) {
    for directory in ["app", "dev", "etc", "out", "proc", "run", "sys", "tmp"] {
        fs::create_dir_all(root.join(directory)).expect("a directory");
    }
    for name in programs.iter().chain(&["softgpud"]) {
        let built = program(name);
        // With symbols half a gigabyte would be copied and packed several times.
        run(Command::new("llvm-strip-19").arg("-o").arg(root.join("app").join(name)).arg(&built));
        for library in run(Command::new("ldd").arg(&built)).split_ascii_whitespace() {
            let inside = root.join(library.trim_start_matches('/'));
            if library.starts_with('/') && !inside.exists() {
                fs::create_dir_all(inside.parent().expect("a directory")).expect("a directory");
                fs::copy(library, inside).expect("a library");
            }
        }
    }
}

/// The environment of every engine: CRIU on its path, the plugin in CRIU's settings.
#[derive(Debug)]
struct Tools {
    directory: TempDir,
    _plugins: Plugins,
}

impl Tools {
    fn new() -> Self {
        let (directory, plugins) = (tempfile::tempdir().expect("a temporary directory"), Plugins::ours());
        let tools = Self { directory, _plugins: plugins };
        fs::create_dir(tools.path("bin")).expect("a directory");
        std::os::unix::fs::symlink(criu(), tools.path("bin/criu")).expect("a link to CRIU");
        let plugins = tools._plugins.path().display();
        fs::write(tools.path("criu.conf"), format!("libdir {plugins}\nverbosity 4\n")).expect("a file");
        tools
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let search = std::iter::once(self.path("bin")).chain(std::env::split_paths(&inherited));
        let search =
            std::env::join_paths(search.chain(["/usr/sbin".into(), "/sbin".into()])).expect("a search path");
        let mut command = Command::new(program);
        command.env("PATH", search).current_dir("/").stdin(Stdio::null());
        command
    }
}

/// A podman that shares nothing with the machine's podman. It stands for one of several hosts.
#[derive(Debug)]
pub struct Podman {
    tools: Tools,
}

impl Podman {
    /// A host without images.
    ///
    /// # Panics
    /// When there is no temporary directory.
    #[must_use]
    pub fn new() -> Self {
        let tools = Tools::new();
        // A user who may not raise limits cannot start a container with podman's default limits; these settings lower
        // them.
        let limit = |name: &str, which| {
            let most = getrlimit(which).map_or(LIMIT, |(_, most)| most.min(LIMIT));
            format!("\"{name}={most}:{most}\"")
        };
        let limits =
            [limit("nofile", Resource::RLIMIT_NOFILE), limit("nproc", Resource::RLIMIT_NPROC)].join(", ");
        let settings = format!(
            "[containers]\ndefault_ulimits = [{limits}]\n\
             [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\nlock_type = \"file\"\n"
        );
        fs::write(tools.path("containers.conf"), settings).expect("a file");
        Self { tools }
    }

    /// A path in its directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.tools.path(name)
    }

    /// `podman` on this host.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        let mut command = self.tools.command("podman");
        command.env("CONTAINERS_CONF", self.path("containers.conf"));
        for (option, below) in ["--root", "--runroot", "--tmpdir"].into_iter().zip(DIRECTORIES) {
            command.arg(option).arg(self.path(below));
        }
        command.args(["--storage-driver", "vfs"]).args(arguments);
        command
    }

    /// Makes an image of a root directory.
    ///
    /// # Panics
    /// When podman does not take it.
    pub fn import(&self, root: &Path, image: &str) {
        let archive = self.path("root.tar");
        run(Command::new("tar").arg("-C").arg(root).arg("-cf").arg(&archive).arg("."));
        run(self.command(&["import", "-q"]).arg(&archive).arg(image));
        fs::remove_file(archive).expect("an archive");
    }

    /// Becomes another host with the same directories, which has only this image, unchanged.
    ///
    /// # Panics
    /// When podman does not.
    pub fn start_over(&self, image: &str) {
        let archive = self.path("image.tar");
        run(self.command(&["save", "-q", "--output"]).arg(&archive).arg(image));
        self.remove_all();
        for directory in DIRECTORIES {
            fs::remove_dir_all(self.path(directory)).expect("a directory of podman's");
        }
        run(self.command(&["load", "-q", "--input"]).arg(&archive));
        fs::remove_file(archive).expect("an archive");
    }

    fn remove_all(&self) {
        let _ = self.command(&["rm", "--all", "--force", "--time", "0"]).output();
    }

    /// Starts a container, in a network of its own, with `shared` as its `/out`. `criu_settings` are settings for CRIU.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(
        &self,
        name: &str,
        image: &str,
        shared: &Path,
        criu_settings: &str,
        command: &[&str],
    ) -> Container<'_> {
        let settings = self.path(&format!("criu-{name}.conf"));
        let common = fs::read_to_string(self.path("criu.conf")).expect("settings");
        fs::write(&settings, common + criu_settings).expect("a file");
        let options = ["run", "--detach", "--network", "none", "--log-driver", "k8s-file", "--name", name];
        let mut start = self.command(&options);
        start.arg("--annotation").arg(format!("org.criu.config={}", settings.display()));
        run(start.arg("--volume").arg(format!("{}:/out", shared.display())).arg(image).args(command));
        Container { host: self, name: name.to_owned() }
    }

    /// Starts a container from an archive, under this name.
    ///
    /// # Panics
    /// With CRIU's log when it is not restored.
    pub fn restore(&self, archive: &Path, name: &str) -> Container<'_> {
        let output =
            self.command(&["container", "restore", "--name", name, "--import"]).arg(archive).output();
        self.check(&output.expect("podman"));
        Container { host: self, name: name.to_owned() }
    }

    fn check(&self, output: &Output) {
        assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), self.criu_logs());
    }

    /// CRIU's log of a failure.
    #[must_use]
    pub fn criu_logs(&self) -> String {
        let containers = fs::read_dir(self.path("storage/vfs-containers")).into_iter().flatten().flatten();
        let logs = containers
            .flat_map(|entry| ["dump.log", "restore.log"].map(|log| entry.path().join("userdata").join(log)));
        logs.filter_map(|log| fs::read_to_string(log).ok()).collect()
    }
}

impl Default for Podman {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        self.remove_all();
    }
}

/// A container of a host.
#[derive(Debug)]
pub struct Container<'h> {
    host: &'h Podman,
    name: String,
}

impl Container<'_> {
    fn ask(&self, arguments: &[&str]) -> String {
        run(self.host.command(arguments).arg(&self.name))
    }

    /// What its program has printed.
    ///
    /// # Panics
    /// When podman does not say.
    #[must_use]
    pub fn log(&self) -> String {
        self.ask(&["logs"])
    }

    /// Whether podman says that it runs.
    ///
    /// # Panics
    /// When podman does not say.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.ask(&["inspect", "--format", "{{.State.Running}}"]).trim() == "true"
    }

    /// The pid of its first process as the host knows it.
    ///
    /// # Panics
    /// When podman does not say.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.ask(&["inspect", "--format", "{{.State.Pid}}"]).trim().parse().expect("a pid")
    }

    /// The pids, in the host's namespace, of all its processes that have not ended.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        let first = self.pid();
        let all = std::iter::once(first).chain(descendants(first));
        all.filter(|pid| *pid > 0 && is_alive(*pid)).collect()
    }

    /// Does something in its network namespace.
    ///
    /// # Panics
    /// When it does not run.
    pub fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let network = fs::File::open(format!("/proc/{}/ns/net", self.pid())).expect("its network");
        // A network namespace belongs to a thread.
        let enter = move || {
            setns(network, CloneFlags::CLONE_NEWNET).expect("a way into its network");
            act()
        };
        let done = std::thread::scope(|scope| scope.spawn(enter).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Freezes it into an archive.
    ///
    /// # Panics
    /// When there is no podman.
    #[must_use]
    pub fn try_checkpoint(&self, archive: &Path, more: &[&str]) -> Output {
        let mut command = self.host.command(&["container", "checkpoint", "--export"]);
        command.arg(archive).args(more).arg(&self.name).output().expect("podman")
    }

    /// The same.
    ///
    /// # Panics
    /// With CRIU's log when it is not frozen.
    pub fn checkpoint(&self, archive: &Path, more: &[&str]) {
        self.host.check(&self.try_checkpoint(archive, more));
    }

    /// Rounds of a worker in it.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        rounds(&self.log()).last().copied().unwrap_or(0)
    }

    /// Waits until a worker in it has done more rounds.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait_rounds(&self, more: u64) {
        let start = self.rounds();
        wait_until("the rounds of a worker in a container", || {
            std::thread::sleep(AGAIN);
            self.rounds() >= start + more
        });
    }

    /// Asks it to end: SIGTERM, without SIGKILL for a while.
    ///
    /// # Panics
    /// When podman does not.
    pub fn stop(&self) {
        self.ask(&["stop", "--time", "60"]);
    }

    /// Waits for its end, and returns what its program ended with.
    ///
    /// # Panics
    /// When podman does not say.
    #[must_use]
    pub fn wait(&self) -> i32 {
        self.ask(&["wait"]).trim().parse().expect("an exit code")
    }

    /// Removes all that is left of it.
    ///
    /// # Panics
    /// When it is not removed, for example because it runs.
    pub fn remove(self) {
        self.ask(&["rm"]);
    }
}

/// The rounds in a worker's log.
#[must_use]
pub fn rounds(log: &str) -> Vec<u64> {
    log.lines().filter_map(|line| line.strip_prefix("round ")?.parse().ok()).collect()
}

/// Waits until none of these processes lives any more.
///
/// # Panics
/// When one does.
pub fn wait_for_the_end_of(processes: &[i32]) {
    wait_until("the end of a container's processes", || !processes.iter().any(|pid| is_alive(*pid)));
}
