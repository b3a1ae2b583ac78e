// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server under measurement: a process on some cores, its address, and the memory of all processes it consists of.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{OURS, model};
use crate::spawn;

/// What every process of a server has in its environment, so that they are found again.
const MARK: &str = "STASIS_BENCH_SERVER";

/// A running server. It ends with its handle.
#[derive(Debug)]
pub struct Serving {
    /// What computes in it.
    pub engine: &'static str,
    child: Child,
    address: String,
    mark: String,
}

/// A program of the workspace, beside this one.
pub fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("Cannot find this program's own path")?;
    let path = own.with_file_name(name);
    if !path.exists() {
        bail!("{} is not built: run `cargo xtask bench`", path.display());
    }
    Ok(path)
}

impl Serving {
    /// Starts a server on the first `cores` cores and waits until it listens.
    pub fn start(engine: &'static str, cores: usize, scratch: &Path) -> Result<Self> {
        let mark = format!("{engine}-{cores}-{}", std::process::id());
        let program = match engine {
            OURS => {
                let mut command = Command::new(beside("embed-server")?);
                command.args(["--listen", "127.0.0.1:0", "--model"]).arg(model()?);
                command
            }
            peer => spawn(peer, &[&cores.to_string()])?,
        };
        let mut command = Command::new("taskset");
        command.args(["-c", &format!("0-{}", cores - 1)]).arg(program.get_program()).args(program.get_args());
        command.env(MARK, &mark).env("STASIS_SOFTGPU_INSTANCE", &mark).env("RUST_LOG", "warn");
        command.env("RAYON_NUM_THREADS", cores.to_string());
        let log = fs::File::create(scratch.join(format!("{mark}.log")))?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("Cannot start a server through taskset (util-linux)")?;
        let output = child.stdout.take().context("a server without output")?;
        let line = BufReader::new(output).lines().next();
        let address = line.and_then(|line| Some(line.ok()?.strip_prefix("listening on ")?.to_owned()));
        let Some(address) = address else {
            let _ = child.kill();
            let said = fs::read_to_string(scratch.join(format!("{mark}.log"))).unwrap_or_default();
            bail!("The server with {engine} did not start: {}", said.trim());
        };
        Ok(Self { engine, child, address, mark })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Bytes of memory of its processes; what two of them share counts once.
    pub fn memory(&self) -> Result<u64> {
        let wanted = format!("{MARK}={}", self.mark);
        let mut bytes = 0;
        for entry in fs::read_dir("/proc")?.flatten() {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            if !environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes()) {
                continue;
            }
            let rollup = fs::read_to_string(entry.path().join("smaps_rollup")).unwrap_or_default();
            let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
            let kilobytes = pss.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
            bytes += kilobytes.unwrap_or(0) << 10;
        }
        Ok(bytes)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
