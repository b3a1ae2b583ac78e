// SPDX-License-Identifier: MIT OR Apache-2.0
//! A containerd that shares nothing with the machine's: of its own root, state and socket. It stands for one of several hosts.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use super::{Tools, run};
use crate::worker::wait_until;

/// One host.
#[derive(Debug)]
pub struct Containerd {
    tools: Tools,
    daemon: Child,
}

/// The programs of the setup.
fn programs() -> PathBuf {
    let named = std::env::var_os("STASIS_CONTAINERD").map(PathBuf::from);
    let prefix = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.stasis/containerd");
    let programs = named.into_iter().chain([prefix]).map(|prefix| prefix.join("root/usr/bin"));
    programs
        .into_iter()
        .find(|path| path.join("ctr").is_file())
        .expect("no containerd: run `cargo xtask setup --clients`")
}

impl Containerd {
    /// A host without images.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start() -> Self {
        let tools = Tools::new();
        let [root, state, socket] =
            ["root", "state", "socket"].map(|name| tools.path(name).display().to_string());
        let unused = [
            "grpc.v1.cri",
            "snapshotter.v1.btrfs",
            "snapshotter.v1.zfs",
            "snapshotter.v1.devmapper",
            "snapshotter.v1.aufs",
        ];
        let unused: Vec<String> = unused.iter().map(|plugin| format!("\"io.containerd.{plugin}\"")).collect();
        let settings = format!(
            "version = 2\nroot = \"{root}\"\nstate = \"{state}\"\ndisabled_plugins = [{}]\n[grpc]\naddress = \"{socket}\"\n",
            unused.join(", ")
        );
        fs::write(tools.path("config.toml"), settings).expect("a file");
        let log = File::create(tools.path("log")).expect("a log");
        let mut command = tools.command(programs().join("containerd").to_str().expect("a path"));
        // Its shims are beside it.
        let path = command
            .get_envs()
            .find(|(name, _)| *name == "PATH")
            .and_then(|(_, path)| path.map(ToOwned::to_owned));
        let path = std::env::split_paths(&path.unwrap_or_default()).chain([programs()]).collect::<Vec<_>>();
        command.env("PATH", std::env::join_paths(path).expect("a search path"));
        command.arg("--config").arg(tools.path("config.toml"));
        let daemon = command.stdout(log.try_clone().expect("a log")).stderr(log).spawn().expect("containerd");
        let host = Self { tools, daemon };
        wait_until("containerd", || {
            host.ctr(&["version"]).output().is_ok_and(|output| output.status.success())
        });
        host
    }

    /// A path in its directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.tools.path(name)
    }

    /// `ctr` on this host.
    ///
    /// # Panics
    /// When a path is no text.
    #[must_use]
    pub fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = self.tools.command(programs().join("ctr").to_str().expect("a path"));
        command.arg("--address").arg(self.path("socket")).args(arguments);
        command
    }

    /// Takes an archive of images.
    pub fn import(&self, archive: &Path, is_unpacked: bool) {
        let mut import = self.ctr(&["images", "import"]);
        import.args(if is_unpacked { ["--snapshotter", "native"].as_slice() } else { &["--no-unpack"] });
        run(import.arg(archive));
    }

    /// Starts a container; its output goes to the end of `log`.
    pub fn run(&self, id: &str, image: &str, shared: &Path, log: &Path, command: &[&str]) {
        let mount = format!("type=bind,src={},dst=/out,options=rbind:rw", shared.display());
        let mut start = self.ctr(&["run", "--detach", "--snapshotter", "native"]);
        start.arg("--annotation").arg(format!("org.criu.config={}", self.path("criu.conf").display()));
        start.arg("--mount").arg(mount).arg("--log-uri").arg(format!("file://{}", log.display()));
        run(start.args(["--env", "STASIS_DEVICE=soft:gfx1100", image, id]).args(command));
    }

    /// Writes a container with its task as an image, into an archive; it runs on.
    pub fn checkpoint(&self, id: &str, archive: &Path) {
        const IMAGE: &str = "localhost/checkpoint:1";
        run(&mut self.ctr(&["containers", "checkpoint", "--rw", "--image", "--task", id, IMAGE]));
        run(self
            .ctr(&["images", "export", "--skip-manifest-json", "--all-platforms"])
            .arg(archive)
            .arg(IMAGE));
    }

    /// Brings a container back from such an archive.
    pub fn restore(&self, id: &str, archive: &Path) {
        self.import(archive, false);
        run(&mut self.ctr(&["containers", "restore", "--rw", "--live", id, "localhost/checkpoint:1"]));
    }

    /// What its task does: `RUNNING`, `STOPPED`.
    #[must_use]
    pub fn state(&self, id: &str) -> Option<String> {
        let listed = run(&mut self.ctr(&["tasks", "list"]));
        let mut rows = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.find(|row| row.first() == Some(&id)).and_then(|row| row.get(2).map(|state| (*state).to_owned()))
    }

    /// Waits until its task has ended, and removes it; its exit status.
    ///
    /// # Panics
    /// When it does not end.
    pub fn end(&self, id: &str) -> i32 {
        wait_until("the end of a task", || {
            std::thread::sleep(Duration::from_millis(50));
            self.state(id).as_deref() == Some("STOPPED")
        });
        // It ends well whatever the status was, and warns of another one than 0.
        let output = self.ctr(&["tasks", "delete", id]).output().expect("ctr");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let status = said.split("exit with non-zero exit code ").nth(1);
        let digits = status.map(|text| text.chars().take_while(char::is_ascii_digit).collect::<String>());
        digits.map_or(0, |digits| digits.parse().expect("a status"))
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // What still runs has shims that outlive the daemon.
        let listed = self.ctr(&["tasks", "list", "--quiet"]).output();
        let listed =
            listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        for id in listed.split_whitespace() {
            let _ = self.ctr(&["tasks", "delete", "--force", id]).output();
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
