// SPDX-License-Identifier: MIT OR Apache-2.0
//! A private prefix with Slurm as Debian packages it, for tests and the demo: no service is started, no user made.
//!
//! INVARIANT: the prefix appears by one rename and counts as complete only with its stamp.

use super::announce;
use super::apt;
use super::private;
use super::process;
use anyhow::Context;
use anyhow::Result;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::path::PathBuf;

/// Slurm 22.05.
const SUITE: apt::Suite = apt::Suite::named("bookworm");
/// Slurm's, and the libraries that few machines have. What else they need is on every machine with a compiler.
const PACKAGES: [&str; 9] = [
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "libhwloc15",
    "liblua5.1-0",
    "libmunge2",
    "libjson-c5",
    "libyaml-0-2",
];
/// The daemons, which Debian installs under other names; one that is not called by its own does not know that it is one, and
/// has no GPUs.
const DAEMONS: [&str; 3] = ["slurmctld", "slurmd", "slurmstepd"];
const CLIENTS: [&str; 6] = ["sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"];
const STAMP: &str = "stasis-stamp";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The prefix, made at `private`/slurm if it is not there.
///
/// # Errors
/// The packages could not be downloaded or unpacked.
pub fn find_or_install(private: &Path) -> Result<PathBuf> {
    let prefix = private.join("slurm");
    let stamp = format!("{PACKAGES:?}\n");
    if fs::read_to_string(prefix.join(STAMP)).is_ok_and(|found| found == stamp) {
        write_programs(&prefix)?;
        return Ok(prefix);
    }
    announce(format_args!(
        "installing Slurm from Debian {} ({} packages, 4 MB, 15 MB unpacked) into {}; nothing of it is started",
        SUITE.name,
        PACKAGES.len(),
        prefix.display()
    ));
    let download = private.join("slurm.download");
    let names: Vec<String> = PACKAGES.map(str::to_owned).to_vec();
    let files = apt::fetch(&download, &SUITE, |_| Ok(names.clone()))
        .context("Could not download Slurm; run again when Debian's mirror can be reached")?;
    let scratch = private.join("slurm.new");
    process::remove(&scratch)?;
    apt::unpack(&files, &scratch.join("root"))?;
    for directory in ["usr/share", "etc"] {
        process::remove(&scratch.join("root").join(directory))?;
    }
    symlink(Path::new("root").join(LIBRARIES).join("slurm-wlm"), scratch.join("plugins"))
        .context("Could not make the link to Slurm's plugins")?;
    write_programs(&scratch)?;
    let path = scratch.join(STAMP);
    fs::write(&path, stamp).with_context(|| format!("Could not write {}", path.display()))?;
    process::remove(&prefix)?;
    fs::rename(&scratch, &prefix)
        .with_context(|| format!("Could not move the prefix to {}", prefix.display()))?;
    // The directory only helps a later run after a failure; if it stays it does no harm.
    let _ = fs::remove_dir_all(&download);
    Ok(prefix)
}

/// Writes the programs that start Slurm's with the prefix's libraries. A variable of the environment would reach the jobs.
fn write_programs(prefix: &Path) -> Result<()> {
    let daemons = DAEMONS.map(|name| (format!("sbin/{name}"), format!("usr/sbin/{name}-wlm"), name));
    let clients = CLIENTS.map(|name| (format!("bin/{name}"), format!("usr/bin/{name}"), name));
    for (place, program, name) in daemons.into_iter().chain(clients) {
        let text = format!(
            "#!/bin/sh\nroot=$(cd \"${{0%/*}}/../root\" && pwd -P) || exit\nlib=\"$root/{LIBRARIES}\"\n\
             exec /lib64/ld-linux-x86-64.so.2 --library-path \"$lib/slurm-wlm:$lib\" --argv0 {name} \"$root/{program}\" \"$@\"\n"
        );
        private::write_program(&prefix.join(place), &text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_are_called_by_their_names() {
        let prefix = std::env::temp_dir().join(format!("stasis-slurm-{}", std::process::id()));
        write_programs(&prefix).unwrap();
        let text = fs::read_to_string(prefix.join("sbin/slurmd")).unwrap();
        assert!(text.contains("--argv0 slurmd \"$root/usr/sbin/slurmd-wlm\""), "{text}");
        assert!(fs::read_to_string(prefix.join("bin/sbatch")).unwrap().contains("--argv0 sbatch"));
        process::remove(&prefix).unwrap();
    }
}
