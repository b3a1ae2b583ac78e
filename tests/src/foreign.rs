// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program of `stasis run` that is frozen and thawed without its knowledge.
//!
//! INVARIANT: everything of the program is in a directory of its own, and every process of it, `softgpud` and the commands
//! included, has the name of that directory in its environment; so [`Program::finish`] sees whatever is left. This process
//! reaps all of them: it is the parent of what has lost its own.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::clients::{hip_program, on_device, own_directory, surround};
use crate::python::{source, tinygrad};
use crate::worker::{has_client, is_alive, kill, parent, succeeded, wait_until};
use crate::{criu, detached, program};

/// TIMEOUT: how long a program may take for anything on a busy machine, its kernels included.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often a test looks again.
const PAUSE: Duration = Duration::from_millis(2);

/// A program under `stasis run`, or restored. It ends with its handle, and so does all that belongs to it.
#[derive(Debug)]
pub struct Program {
    directory: TempDir,
    run: Child,
    pid: i32,
}

impl Program {
    /// Starts a command of `stasis run`, in a session of its own; to the program's arguments, `more` of them are added, each the
    /// path of a file in the program's directory.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(command: &Command, more: &[&str]) -> Self {
        set_child_subreaper(true).expect("PR_SET_CHILD_SUBREAPER");
        // Images of CRIU are written faster there, too.
        Self::start_in(own_directory("stasis-foreign-"), command, more)
    }

    /// The same for a command that becomes another user, to whom the program's directory is given.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn of_user(user: u32, command: &Command, more: &[&str]) -> Self {
        set_child_subreaper(true).expect("PR_SET_CHILD_SUBREAPER");
        let directory = own_directory("stasis-foreign-");
        for own in ["", "runtime", "temporary"] {
            chown(directory.path().join(own), Some(user), Some(user)).expect("the rights of root");
        }
        Self::start_in(directory, command, more)
    }

    /// The same for a program that has a device without `stasis run`: its pid is known at once.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn plain(command: &Command, more: &[&str]) -> Self {
        let mut program = Self::start(command, more);
        program.pid = program.run_pid();
        program
    }

    fn start_in(directory: TempDir, command: &Command, more: &[&str]) -> Self {
        let mut whole = detached(directory.path());
        whole.arg(command.get_program()).args(command.get_args());
        whole.args(more.iter().map(|name| directory.path().join(name)));
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => whole.env(name, value),
                None => whole.env_remove(name),
            };
        }
        surround(&mut whole, directory.path());
        let run = whole.spawn().expect("setsid (util-linux)");
        Self { directory, run, pid: 0 }
    }

    /// A program of `tests/clients/hip` on these devices, with the path of the file that ends it.
    ///
    /// # Panics
    /// When it does not compile or start.
    #[must_use]
    pub fn hip(name: &str, devices: &str) -> Self {
        Self::start(on_device(devices).arg(hip_program(name, "gfx1100")), &["stop"])
    }

    /// The program's pid, which it keeps; 0 until [`Self::wait_lines`] has returned once.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The pid of the `stasis run` that has started it.
    #[must_use]
    pub fn run_pid(&self) -> i32 {
        self.run.id().cast_signed()
    }

    /// A path in its directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What the program and its `stasis run` have printed.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("log")).unwrap_or_default()).into_owned()
    }

    /// How many lines of its log begin so.
    #[must_use]
    pub fn count(&self, beginning: &str) -> usize {
        self.log().lines().filter(|line| line.starts_with(beginning)).count()
    }

    /// Whether the program exists and is no zombie.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.pid > 0 && is_alive(self.pid)
    }

    /// Waits until there are `count` lines that begin so.
    ///
    /// # Panics
    /// When the program ends before, or the lines do not come.
    pub fn wait_lines(&mut self, beginning: &str, count: usize) {
        let begun = Instant::now();
        while self.count(beginning) < count {
            let is_there = self.pid == 0 || self.is_alive();
            // It may have ended after the last line.
            assert!(is_there || self.count(beginning) >= count, "it ended: {}", self.log());
            assert!(begun.elapsed() < PATIENCE, "no {count} lines {beginning:?}: {}", self.log());
            if self.pid == 0 {
                let ended = self.run.try_wait().expect("a child");
                assert!(ended.is_none(), "it ended ({ended:?}): {}", self.log());
            }
            std::thread::sleep(PAUSE);
        }
        if self.pid == 0 {
            let path = format!("/proc/{0}/task/{0}/children", self.run_pid());
            let text = fs::read_to_string(path).expect("stasis run");
            let mut children = text.split_whitespace().map(|pid| pid.parse::<i32>().expect("a pid"));
            // Its device comes first.
            self.pid = children.nth(1).unwrap_or_else(|| panic!("no program: {}", self.log()));
        }
    }

    /// Waits for `more` lines that begin so, from now on.
    ///
    /// # Panics
    /// As [`Program::wait_lines`].
    pub fn goes_on(&mut self, beginning: &str, more: usize) {
        self.wait_lines(beginning, self.count(beginning) + more);
    }

    /// Gives a command the environment by which it, and what it starts, belongs to this program.
    pub fn surround(&self, command: &mut Command) {
        surround(command, self.directory.path());
    }

    /// `stasis` with these arguments, in this program's environment.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("stasis"));
        command.args(arguments).current_dir("/").env("STASIS_CRIU", criu()).env_remove("STASIS_DEVICE");
        surround(&mut command, self.directory.path());
        command
    }

    /// `stasis checkpoint` of it into the directory `name` of its own.
    ///
    /// # Panics
    /// When its directory's name is not UTF-8.
    #[must_use]
    pub fn checkpointing(&self, name: &str, more: &[&str]) -> Command {
        let (pid, directory) = (self.pid.to_string(), self.path(name));
        let directory = directory.to_str().expect("a path in UTF-8");
        self.command(&[&["checkpoint", "--json", &pid, directory], more].concat())
    }

    /// `stasis restore` from the directory `name`.
    ///
    /// # Panics
    /// When its directory's name is not UTF-8.
    #[must_use]
    pub fn restoring(&self, name: &str, more: &[&str]) -> Command {
        let directory = self.path(name);
        let directory = directory.to_str().expect("a path in UTF-8");
        self.command(&[&["restore", "--json", directory], more].concat())
    }

    /// Freezes it into `name`; it is gone then. What the command says.
    ///
    /// # Panics
    /// When it is not frozen, or not gone.
    pub fn freeze(&mut self, name: &str) -> Value {
        self.freeze_with(name, &[])
    }

    /// The same with more options.
    ///
    /// # Panics
    /// As [`Program::freeze`].
    pub fn freeze_with(&mut self, name: &str, options: &[&str]) -> Value {
        let tree = tree_of(self.pid);
        let outcome = succeeded(&self.checkpointing(name, options).output().expect("stasis"));
        tree.into_iter().for_each(bury);
        self.wait_run();
        outcome
    }

    /// Restores it from `name`. What the command says.
    ///
    /// # Panics
    /// When it is not restored.
    pub fn restore(&mut self, name: &str) -> Value {
        succeeded(&self.restoring(name, &[]).output().expect("stasis"))
    }

    /// Freezes it into `name`, restores it, and removes the checkpoint. What the first command says.
    ///
    /// # Panics
    /// As [`Program::freeze`] and [`Program::restore`].
    pub fn freeze_and_restore(&mut self, name: &str) -> Value {
        let outcome = self.freeze(name);
        self.restore(name);
        fs::remove_dir_all(self.path(name)).expect("the checkpoint's directory");
        outcome
    }

    /// Waits until its `stasis run` has ended.
    ///
    /// # Panics
    /// When it does not end.
    pub fn wait_run(&mut self) {
        if self.pid == self.run_pid() {
            // There is none, and the program's end was seen.
            return;
        }
        wait_until("the end of stasis run", || self.run.try_wait().expect("a child").is_some());
    }

    /// Has it see the file that ends it, and checks that it says so, ends well, and leaves nothing. Its log.
    ///
    /// # Panics
    /// When it does not.
    pub fn stop(&mut self, last_line: &str) -> String {
        fs::write(self.path("stop"), "").expect("the file that ends it");
        self.finish(last_line)
    }

    /// Waits for its end and checks the line of it, its exit status, and that nothing is left. Its log.
    ///
    /// # Panics
    /// When it ends otherwise.
    pub fn finish(&mut self, last_line: &str) -> String {
        let status = self.status();
        let log = self.log();
        assert!(status.success(), "it ended with {status}: {log}");
        assert!(log.lines().any(|line| line == last_line), "no {last_line:?}: {log}");
        self.leaves_nothing();
        log
    }

    /// How the program ended, or its `stasis run` where it was never restored; asked for once.
    ///
    /// # Panics
    /// When it does not end.
    pub fn status(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            // Once it was restored it is a child of this process.
            let restored = match waitpid(Pid::from_raw(self.pid), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => Some(ExitStatus::from_raw(code << 8)),
                Ok(WaitStatus::Signaled(_, signal, _)) => Some(ExitStatus::from_raw(signal as i32)),
                Ok(_) => None,
                Err(_) => self.run.try_wait().expect("a child"),
            };
            if let Some(status) = restored {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end: {}", self.log());
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until no process and no file of the run is left.
    ///
    /// # Panics
    /// When one stays.
    pub fn leaves_nothing(&self) {
        let begun = Instant::now();
        loop {
            let mut left: Vec<String> = self.processes().into_iter().map(described).collect();
            for own in ["runtime", "temporary"] {
                let entries = fs::read_dir(self.path(own)).expect("the run's directory").flatten();
                left.extend(entries.map(|entry| entry.path().display().to_string()));
            }
            if left.is_empty() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "the run left {left:?}\n{}", self.log());
            std::thread::sleep(PAUSE);
        }
    }

    /// All processes of the run, `softgpud` included, but no zombies.
    ///
    /// # Panics
    /// When `/proc` cannot be read.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        let own = self.directory.path().as_os_str().as_encoded_bytes();
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_ours = |pid: &i32| {
            // A process that ends meanwhile, or of another user, has none.
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(own.len()).any(|window| window == own)
        };
        pids.filter(is_ours).collect()
    }

    /// The commands at work on it, CRIU, its script and their guards included.
    #[must_use]
    pub fn commands(&self) -> Vec<i32> {
        let is_command = |pid: &i32| {
            let path = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let is_stasis = *pid != self.run_pid() && path.file_name().is_some_and(|name| name == "stasis");
            is_alive(*pid) && (is_stasis || is_criu(*pid))
        };
        self.processes().into_iter().filter(is_command).collect()
    }

    /// Waits until no command is at work on it.
    ///
    /// # Panics
    /// When one stays.
    pub fn wait_commands(&self) {
        wait_until("the end of the commands", || self.commands().is_empty());
    }

    /// The processes of its `softgpud`: the broker and the executors.
    #[must_use]
    pub fn devices(&self) -> Vec<i32> {
        let is_device = |pid: &i32| {
            let path = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            path.file_name().is_some_and(|name| name == "softgpud")
        };
        self.processes().into_iter().filter(is_device).collect()
    }

    /// The executor of the program, or of another process of its tree.
    #[must_use]
    pub fn executors(&self) -> Vec<i32> {
        let devices = self.devices();
        let is_executor =
            |pid: &i32| parent(*pid).is_some_and(|of| devices.contains(&of)) && has_client(*pid);
        devices.iter().copied().filter(is_executor).collect()
    }
}

impl Drop for Program {
    /// Also what a failed test leaves.
    fn drop(&mut self) {
        let left = self.processes();
        left.iter().copied().for_each(kill);
        let _ = self.run.kill();
        let _ = self.run.wait();
        for pid in left {
            let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// A process and all below it.
#[must_use]
pub fn tree_of(pid: i32) -> Vec<i32> {
    std::iter::once(pid).chain(crate::tree::descendants(pid)).collect()
}

/// A number in what a command said.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn number(outcome: &Value, name: &str) -> u64 {
    outcome[name].as_u64().unwrap_or_else(|| panic!("no {name} in {outcome}"))
}

/// Waits until nothing has this pid.
///
/// # Panics
/// When something has.
pub fn bury(pid: i32) {
    wait_until("the end of a process that was frozen", || {
        !fs::exists(format!("/proc/{pid}")).unwrap_or(true) || {
            // It is a child of this process, if of any that would reap it.
            let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
            false
        }
    });
}

/// Whether a process is CRIU or its script, by the words of its command: what it executes may be the dynamic linker.
#[must_use]
pub fn is_criu(pid: i32) -> bool {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = command.split(|byte| *byte == 0);
    words.any(|word| word.ends_with(b"/criu") || word.ends_with(b"/commit.sh") || word.ends_with(b"/thaw.sh"))
}

fn described(pid: i32) -> String {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("{pid}: {}", String::from_utf8_lossy(&command).replace('\0', " "))
}

/// Training with tinygrad, which prints a line `loss …` a step, and ends after so many or when its file is there.
///
/// # Panics
/// When it does not start.
#[must_use]
pub fn training(steps: usize) -> Program {
    let mut command = tinygrad("soft:gfx1100");
    command.arg(source("tinygrad/steps.py")).arg(steps.to_string());
    Program::start(&command, &["stop"])
}

/// The losses in the log of [`training`].
fn losses(log: &str) -> Vec<String> {
    log.lines().filter(|line| line.starts_with("loss ")).map(str::to_owned).collect()
}

/// `rounds` twice below a shell, which says so at the end.
///
/// # Panics
/// When it does not start.
#[must_use]
pub fn two_below_a_shell(devices: &str) -> Program {
    let mut command = on_device(devices);
    let script = "\"$0\" \"$1\" & one=$!; \"$0\" \"$1\" & other=$!; \
                  wait $one && wait $other && echo both have ended";
    command.args(["sh", "-c", script]).arg(hip_program("rounds", "gfx1100"));
    Program::start(&command, &["stop"])
}

/// Has [`training`] do one more step, ends it, and checks that its losses are those of one that nobody has disturbed.
///
/// # Panics
/// When they are not.
pub fn compare_losses(program: &mut Program) {
    program.goes_on("loss ", 1);
    let frozen = losses(&program.stop("done"));
    let mut undisturbed = training(frozen.len());
    undisturbed.wait_lines("loss ", 1);
    assert_eq!(losses(&undisturbed.finish("done")), frozen);
}
