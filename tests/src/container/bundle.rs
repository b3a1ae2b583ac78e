// SPDX-License-Identifier: MIT OR Apache-2.0
//! A container of runc, without an engine above it.
//!
//! INVARIANT: the container's bundle, state and images are in one temporary directory; the container ends with its
//! handle.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Tools, fill_root, run};

/// A bundle for runc: a root directory and the command that runs in it.
#[derive(Debug)]
pub struct Bundle {
    tools: Tools,
    id: String,
}

impl Bundle {
    /// With `programs` in `/app`, to run `command`, and `shared` as `/out`.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn new(programs: &[&str], shared: &Path, command: &[&str]) -> Self {
        let tools = Tools::new();
        fill_root(&tools.path("bundle/rootfs"), programs);
        run(tools.command("runc").arg("spec").arg("--bundle").arg(tools.path("bundle")));
        let path = tools.path("bundle/config.json");
        let text = fs::read(&path).expect("what runc wrote");
        let mut spec: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        spec["process"]["terminal"] = false.into();
        spec["process"]["args"] = command.into();
        spec["process"]["rlimits"] = serde_json::json!([]);
        spec["annotations"] = serde_json::json!({ "org.criu.config": tools.path("criu.conf") });
        let mount = serde_json::json!({
            "destination": "/out", "type": "bind", "source": shared, "options": ["rbind", "rw"]
        });
        spec["mounts"].as_array_mut().expect("mounts").push(mount);
        fs::write(&path, spec.to_string()).expect("a file");
        let id = format!("stasis-{}", tools.directory.path().file_name().expect("a name").to_string_lossy());
        Self { tools, id: id.replace('.', "") }
    }

    /// A path beside the bundle.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.tools.path(name)
    }

    /// `runc` with a state of its own.
    #[must_use]
    pub fn runc(&self, arguments: &[&str]) -> Command {
        let mut command = self.tools.command("runc");
        command.arg("--root").arg(self.path("runc")).args(arguments);
        command
    }

    /// Runs `runc run` or `runc restore` with more arguments, detached; the container's output goes to `log`.
    ///
    /// # Panics
    /// With CRIU's log when it does not succeed.
    pub fn start(&self, arguments: &[&str], log: &Path) {
        // A pipe, because CRIU would look in the container for a file of the host.
        let file = fs::OpenOptions::new().create(true).append(true).open(log).expect("a log");
        let mut drain = Command::new("cat").stdin(Stdio::piped()).stdout(file).spawn().expect("cat");
        let pipe = OwnedFd::from(drain.stdin.take().expect("a pipe"));
        let bundle = self.path("bundle");
        let mut command = self.runc(arguments);
        command.args(["--detach", "--bundle"]).arg(bundle).arg(&self.id);
        command.stderr(pipe.try_clone().expect("a pipe")).stdout(pipe);
        let status = command.status().expect("runc");
        // This process's ends of the pipe are closed.
        drop(command);
        let said = || fs::read_to_string(log).unwrap_or_default() + &self.criu_logs();
        assert!(status.success(), "{arguments:?}: {}", said());
        // The output ends when no process has the other end any more; who waits for that end waits for the container.
        std::thread::spawn(move || drain.wait());
    }

    /// CRIU's log.
    #[must_use]
    pub fn criu_logs(&self) -> String {
        let logs = ["dump.log", "restore.log"].map(|log| self.path("work").join(log));
        logs.into_iter().filter_map(|log| fs::read_to_string(log).ok()).collect()
    }

    /// Its name for runc.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The pid of its first process; none if it does not run.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        let output = self.runc(&["state", &self.id]).output().ok()?;
        let state: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        i32::try_from(state["pid"].as_i64()?).ok().filter(|pid| *pid > 0)
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let _ = self.runc(&["delete", "--force", &self.id]).output();
    }
}
